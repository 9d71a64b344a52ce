"""Estimates the tokens of a text: cheap, the same in every process, without a call to a provider.

A real tokenizer belongs to one family of models, costs a hundred times as much and changes with its version; the
context window is computed anew for every request and must be the same next year, on any machine. So we count UTF-8
bytes and take four per token: one token for four English characters, one for two Cyrillic ones, three for four Chinese
or Japanese ones, which is close to what today's models count.
"""

from collections.abc import Iterable
from typing import Final

from longhouse.journal.messages import Assistant, ImagePart, Message, User, text_of

BYTES: Final = 4
MESSAGE: Final = 4
"""Tokens for the role and the delimiters of each message and of each call."""
IMAGE: Final = 1000
"""Tokens of an image of ordinary size; the number of its bytes says nothing about its tokens."""


def estimate(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return -(-size // BYTES)


def of(message: Message) -> int:
    cost = MESSAGE + estimate(text_of(message.content))
    if type(message) is Assistant:
        if message.reasoning_content:
            cost += estimate(message.reasoning_content)
        for call in message.tool_calls:
            cost += MESSAGE + estimate(call.id) + estimate(call.function.name) + estimate(call.function.arguments)
        for extra in (message.extra_content, *[call.extra_content for call in message.tool_calls]):
            if extra:
                cost += -(-len(bytes(extra)) // BYTES)
    elif type(message) is User and type(message.content) is not str:
        cost += IMAGE * sum(isinstance(part, ImagePart) for part in message.content)
    return cost


def total(messages: Iterable[Message]) -> int:
    cost = 0
    for message in messages:
        text = message.content
        # Nearly all messages of a long history are plain text: `of` would take three times as long for each.
        if type(text) is str and text.isascii() and not (type(message) is Assistant and message.tool_calls):
            cost += MESSAGE + (len(text) + BYTES - 1) // BYTES
        else:
            cost += of(message)
    return cost
