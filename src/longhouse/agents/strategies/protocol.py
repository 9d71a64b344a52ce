"""What strategies exchange with the engine: a model request, its reply, and the interpreted reply. No I/O."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from weakref import ref

import msgspec
from msgspec import structs

from longhouse.agents.requests import pieces
from longhouse.agents.requests.pieces import RequestPart, Window
from longhouse.agents.tool import Tool
from longhouse.journal.events import ProviderCall, Usage
from longhouse.journal.messages import Message


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that the agent wants to make, under the tool's real name."""

    tool: str
    arguments: str
    provider_id: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """The interpreted reply: tool calls, an answer in plain text, reasoning, or an error if it cannot be parsed."""

    intents: tuple[Intent, ...] = ()
    answer: str | None = None
    thought: str = ""
    """Structured reasoning as JSON, in the model's own key order."""
    problem: str = ""
    """Why the reply cannot be parsed; the model gets this error and is asked again."""


ANY_FORMAT: Final = msgspec.Raw()
"""No response format; this value is omitted from the request. (A Raw that may be None could not be decoded.)"""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, weakref=True):
    """The body of a Chat Completions request, fields in the order in which they are sent."""

    model: str
    messages: Sequence[Message]
    tools: tuple[msgspec.Raw, ...] = ()
    tool_choice: str | dict[str, Any] = ""
    parallel_tool_calls: bool = False
    response_format: msgspec.Raw = ANY_FORMAT
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    reasoning_effort: str | None = None
    extra: Mapping[str, Any] = {}
    """Parameters of the endpoint, sent beside these."""
    stream: bool = False
    stream_options: StreamOptions | None = None


_encode: Final = msgspec.json.Encoder().encode
MOST_KEPT: Final = 2**20
"""Bytes: a longer body, with images, is encoded again rather than kept while its reply streams."""
LONG: Final = 32 * 2**10
"""Bytes of a piece that is sent by itself; shorter ones are joined, since each would be a record of TLS."""
_ENCODED: Final[dict[int, tuple[ref[Body], bytes]]] = {}
"""Id of a body -> its JSON, for as long as there is the body: it is encoded once, to be sent and hashed."""
Cut = tuple[bytes, Sequence[RequestPart], bytes]
"""The JSON of a body in three: up to its first message, the others, and what follows."""
_CUT: Final[dict[int, tuple[ref[Body], Cut]]] = {}
"""Id of a body -> its parts, for as long as there is the body: tools and settings are encoded once, too."""
_STREAMED: Final = b',"stream":true,"stream_options":%b}' % msgspec.json.encode(StreamOptions())


def encoded(body: Body) -> bytes:
    """The JSON of a body."""
    if cut := _cut(body):
        beginning, parts, end = cut
        return b"".join([beginning, *[part.json for part in parts], end])
    return _encoded_whole(body)


def streamed(body: Body) -> list[bytes]:
    """The JSON of a body with the fields that ask for a stream: they are its last ones. It comes in pieces, so that the
    long ones, of a long history, are not copied for each request."""
    if not (cut := _cut(body)):
        return [_encoded_whole(body)[:-1] + _STREAMED]
    beginning, parts, end = cut
    sent: list[bytes] = []
    short = [beginning]
    for part in parts:
        if len(part.json) < LONG:
            short.append(part.json)
            continue
        if short:
            sent.append(b"".join(short))
            short = []
        sent.append(part.json)
    return [*sent, b"".join([*short, end[:-1], _STREAMED])]


def digest(body: Body) -> str:
    """The SHA-256 of the JSON of a body."""
    if cut := _cut(body):
        return pieces.digest(*cut)
    return hashlib.sha256(_encoded_whole(body)).hexdigest()


def _cut(body: Body) -> Cut | None:
    """The JSON of a body in parts; None if it is not known in parts."""
    window = body.messages
    if not isinstance(window, Window) or (parts := window.parts) is None:
        return None
    number = id(body)
    known = _CUT.get(number)
    if known and known[0]() is body:
        return known[1]
    bare = _encode_with(body, ())
    place = len(b'{"model":,"messages":[') + len(_encode(body.model))
    cut = bare[:place] + window.first, parts, bare[place:]
    _CUT[number] = ref(body, lambda _: _CUT.pop(number, None)), cut
    return cut


def _encode_with(body: Body, messages: Sequence[Message]) -> bytes:
    """The JSON of a body with these messages, the parameters of the endpoint last: the same in every process."""
    if not body.extra:
        return _encode(structs.replace(body, messages=messages))
    text = _encode(structs.replace(body, messages=messages, extra={}))
    return text[:-1] + b"," + msgspec.json.encode(body.extra, order="sorted")[1:]


def _encoded_whole(body: Body) -> bytes:
    number = id(body)
    known = _ENCODED.get(number)
    if known and known[0]() is body:
        return known[1]
    text = _encode_with(body, list(body.messages))
    if len(text) > MOST_KEPT:
        return text
    _ENCODED[number] = (ref(body, lambda _: _ENCODED.pop(number, None)), text)
    return text


@dataclass(frozen=True)
class Request:
    """One model request."""

    body: Body
    names: Mapping[str, str] = field(default_factory=dict)
    """Name on the wire -> the tool's real name, for this request."""
    text_is: Literal["answer", "thought", "structure"] = "answer"
    """Use of the reply's text: for the user (the answer if no tool is called), reasoning, or JSON with the tool."""
    phase: str = ""
    offered: tuple[Tool, ...] = ()
    only: str | None = None
    """The only tool that may be called in this phase; calls of others are refused with an error message."""

    @property
    def encoded(self) -> bytes:
        return encoded(self.body)

    @property
    def digest(self) -> str:
        return digest(self.body)


class Reply(msgspec.Struct, frozen=True):
    """A model's complete message, accumulated from its deltas."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    """Words with which the model refuses to answer."""
    calls: tuple[ProviderCall, ...] = ()
    usage: Usage | None = None
    finish: str = ""
    model: str = ""
    streamed_chars: int = 0
    """Characters of the text that were streamed to the client as content."""
    returns_reasoning: bool = False
    """As in `Replied`; `extra` too."""
    extra: str = ""

    @property
    def goes_back(self) -> bool:
        """Does its endpoint want anything of it back?"""
        return self.returns_reasoning or bool(self.extra) or any(call.extra for call in self.calls)
