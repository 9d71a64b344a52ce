"""How an agent thinks: a strategy turns a session into a request, and a reply into intents. No I/O anywhere here."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, Protocol

import msgspec

from longhouse.agents.template import Template
from longhouse.agents.tool import Tool
from longhouse.journal.events import ProviderCall, Usage
from longhouse.journal.messages import Message
from longhouse.journal.session import Session


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the agent wants to use, under its real name."""

    tool: str
    arguments: str
    provider_id: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a reply means: tools to use, an answer in plain text, a thought on the way, or nothing that can be read."""

    intents: tuple[Intent, ...] = ()
    answer: str | None = None
    thought: str = ""
    """Structured reasoning as JSON, in the model's own key order."""
    problem: str = ""
    """Why the reply cannot be read; the model is told, and asked again."""


ANY_FORMAT: Final = msgspec.Raw()
"""No response format; this very value is left out of a request. (A Raw that may be None could not be decoded.)"""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = True


class Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A Chat Completions request in the order of its fields on the wire."""

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
    stream: bool = False
    stream_options: StreamOptions | None = None


@dataclass(frozen=True)
class Request:
    """One question to a model."""

    body: Body
    names: dict[str, str] = field(default_factory=dict)
    """Name on the wire -> the tool's real name; the way back goes through the request's own table."""
    text_is: Literal["answer", "thought", "structure"] = "answer"
    """Words for the user, the answer if no tool is called beside them; thinking aloud; or JSON with the choice."""
    phase: str = ""
    offered: tuple[Tool, ...] = ()
    only: str | None = None
    """The one tool that may be called in this phase; another one is refused in words."""

    @cached_property
    def encoded(self) -> bytes:
        return msgspec.json.encode(self.body)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.encoded).hexdigest()


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's finished message, added up from its deltas."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ProviderCall, ...] = ()
    usage: Usage | None = None
    finish: str = ""
    model: str = ""
    said: int = 0
    """Characters of the text that the client was shown as content."""


class Strategy(Protocol):
    """A way of thinking. It keeps no state of its own: the journal says what comes next."""

    def propose(self, session: Session, template: Template, offered: Sequence[Tool]) -> Request: ...

    def interpret(self, request: Request, reply: Reply) -> Verdict: ...
