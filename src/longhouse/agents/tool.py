"""What a tool is to an agent: a name, a schema, an effect, limits. How it runs is not known here."""

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

_WIRE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, eq=False)
class Tool:
    """A versioned description of an ability. Each is itself only, so that what is built from one can be kept by it."""

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
    """Still open when a budget is spent: it helps to come to an end."""
    asks: bool = False
    """Its call stays open until a person answers."""
    needs_approval: bool = False
    """Its calls begin only after a person has approved them."""
    approval_timeout: float = 86_400.0
    """Seconds after which a call that nobody approved is denied."""
    per_minute: int | None = None
    """Calls of one owner that are made in a minute."""
    role: Role = ""
    """Its part in a turn, which its calls are recorded with; what is done with a call, the fields above say."""
    agent: str | None = None
    """The template whose agent does the work; its call stays open until that agent has answered."""
    collects: bool = False
    """Waits for what another call has begun."""

    @property
    def is_delegated(self) -> bool:
        return self.agent is not None or self.collects

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"

    def spec(self, wire_name: str) -> msgspec.Raw:
        """The tool as a provider is told of it; encoded once, since it goes out with every step."""
        if wire_name not in self._specs:
            function = {"name": wire_name, "description": self.description, "parameters": self.schema}
            self._specs[wire_name] = msgspec.Raw(msgspec.json.encode({"type": "function", "function": function}))
        return self._specs[wire_name]

    @cached_property
    def _specs(self) -> dict[str, msgspec.Raw]:
        return {}


def wire_names(names: Iterable[str]) -> dict[str, str]:
    """Real name -> the name a provider accepts: as it is where it may be, else encoded without collisions."""
    names = sorted(set(names))  # a name's encoding does not depend on who else came first
    plain = {name for name in names if _WIRE_NAME.fullmatch(name)}
    table = {name: name for name in plain}
    taken = set(plain)
    for name in names:
        if name in table:
            continue
        wire = plain_wire = _OTHER.sub("_", name)
        digest = name
        while not wire or wire in taken or len(wire) > 64:
            digest = hashlib.sha256(digest.encode()).hexdigest()
            wire = f"{plain_wire[:57]}_{digest[:6]}"
        table[name] = wire
        taken.add(wire)
    return table


def sendable(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages from elsewhere, with tool names that every provider accepts: there they may be called anything."""
    used = {call.function.name for one in messages if isinstance(one, Assistant) for call in one.tool_calls}
    names = wire_names(used)
    return tuple(_renamed(one, names) if isinstance(one, Assistant) and one.tool_calls else one for one in messages)


def _renamed(message: Assistant, names: dict[str, str]) -> Assistant:
    calls = tuple(
        msgspec.structs.replace(call, function=msgspec.structs.replace(call.function, name=names[call.function.name]))
        for call in message.tool_calls
    )
    return Assistant(content=message.content, tool_calls=calls)
