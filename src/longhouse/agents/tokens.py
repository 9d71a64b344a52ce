"""How many tokens a text will cost, roughly: cheap, the same in every process, and never asking a provider.

A real tokenizer belongs to one family of models, costs a hundred times as much and changes with its version; a window
that is chosen anew for every request must come out the same next year, on any machine. So we count bytes of UTF-8 and
take four for a token: English comes out at one token for four characters, Cyrillic at one for two, Chinese and
Japanese at three for four, which is close to what today's models count.
"""

from collections.abc import Iterable
from typing import Final

from longhouse.journal.messages import Assistant, ImagePart, Message, User, text_of

BYTES: Final = 4
MESSAGE: Final = 4
"""For the role and the marks around each message, and around each call."""
IMAGE: Final = 1000
"""An image of ordinary size; its bytes say nothing about it."""


def estimate(text: str) -> int:
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return -(-size // BYTES)


def of(message: Message) -> int:
    cost = MESSAGE + estimate(text_of(message.content))
    if isinstance(message, Assistant):
        for call in message.tool_calls:
            cost += MESSAGE + estimate(call.id) + estimate(call.function.name) + estimate(call.function.arguments)
    elif isinstance(message, User) and not isinstance(message.content, str):
        cost += IMAGE * sum(isinstance(part, ImagePart) for part in message.content)
    return cost


def total(messages: Iterable[Message]) -> int:
    return sum(of(message) for message in messages)
