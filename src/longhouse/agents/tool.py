"""A tool as agents see it: name, schema, effect, limits. How it runs is not known here."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from longhouse.journal.events import Effect
from longhouse.journal.messages import Assistant, Message
from longhouse.journal.roles import Role

ToolType = Literal["system", "aux", "domain", "meta"]
RiskLevel = Literal["low", "medium", "high"]
Remembers = Literal["", "outline", "search", "page"]
"""What working memory keeps of a tool's results; empty: nothing."""

Isolation = Literal["process", "none"]
"""Where a Python tool runs: in a process of its own, or in the server."""

_encode: Final = msgspec.json.Encoder().encode
_WIRE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, eq=False)
class Tool:
    """A versioned description of a tool. Compared by identity, so that values built from it can be cached by it."""

    name: str
    description: str
    schema: dict[str, Any]
    version: int = 1
    effect: Effect = "read"
    timeout: float = 60.0
    max_output: int = 40_000
    inline: bool = False
    """Pure and instant: its outcome is recorded together with the reply that called it."""
    finishes: bool = False
    """Ends the turn."""
    closing: bool = False
    """Still open when a budget is spent: it helps to finish the turn."""
    asks: bool = False
    """Its call stays open until a person answers."""
    needs_approval: bool = False
    """Its calls start only after a person has approved them."""
    approval_timeout: float = 86_400.0
    """Seconds after which a call that nobody approved is denied."""
    per_minute: int | None = None
    """Rate limit: calls per minute and owner."""
    role: Role = ""
    """Its role in a turn, recorded with its calls; the fields above control how a call is handled."""
    remembers: Remembers = ""
    """Only for tools that read: the same call is answered from memory."""
    probe: str = ""
    """Only for `once`: the tool that says whether a call took effect whose worker or result was lost."""
    is_served: bool = False
    """Clients of the MCP server may call it directly."""
    agent: str | None = None
    """The template of the sub-agent that does the work; the call stays open until that agent has answered."""

    @property
    def is_delegated(self) -> bool:
        return self.agent is not None or self.role == "collects"

    @cached_property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"

    def spec(self, wire_name: str) -> msgspec.Raw:
        """The tool definition for the provider; encoded once, since it is sent with every step."""
        specs: dict[str, msgspec.Raw] = self.__dict__.setdefault("_specs", {})  # a cached property would take a lock
        known = specs.get(wire_name)
        if known is None:
            function = {"name": wire_name, "description": self.description, "parameters": self.schema}
            known = specs[wire_name] = msgspec.Raw(_encode({"type": "function", "function": function}))
        return known


def wire_names(names: Iterable[str]) -> dict[str, str]:
    """Real name -> a name that providers accept: unchanged if valid, else encoded without collisions."""
    names = set(names)
    if all(map(_WIRE_NAME.fullmatch, names)):
        return dict(zip(names, names, strict=True))
    plain = {name for name in names if _WIRE_NAME.fullmatch(name)}
    table = {name: name for name in plain}
    taken = set(plain)
    for name in sorted(names - plain):  # the encoding does not depend on the order of the names
        wire = plain_wire = _OTHER.sub("_", name)
        digest = name
        while not wire or wire in taken or len(wire) > 64:
            digest = hashlib.sha256(digest.encode()).hexdigest()
            wire = f"{plain_wire[:57]}_{digest[:6]}"
        table[name] = wire
        taken.add(wire)
    return table


def sendable(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Imported messages, whose tool names may be arbitrary, with tool names that every provider accepts."""
    used = {call.function.name for one in messages if isinstance(one, Assistant) for call in one.tool_calls}
    names = wire_names(used)
    return tuple(_renamed(one, names) if isinstance(one, Assistant) and one.tool_calls else one for one in messages)


def _renamed(message: Assistant, names: dict[str, str]) -> Assistant:
    calls = tuple(
        msgspec.structs.replace(call, function=msgspec.structs.replace(call.function, name=names[call.function.name]))
        for call in message.tool_calls
    )
    return msgspec.structs.replace(message, tool_calls=calls)
