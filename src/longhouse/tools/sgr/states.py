"""The states of an agent, under the names and values that tools of SGR-Agent Core use."""

import enum
from typing import Any


class _Finished(frozenset[str]):
    @property
    def value(self) -> "_Finished":
        return self


class AgentStatesEnum(enum.StrEnum):
    """A state also equals its upper-case name and prints as it: Longhouse writes states in upper case."""

    INITED = "inited"
    RESEARCHING = "researching"
    WAITING_FOR_CLARIFICATION = "waiting_for_clarification"
    COMPLETED = "completed"
    ERROR = "error"
    FAILED = "failed"
    CANCELLED = "cancelled"

    FINISH_STATES = enum.nonmember(_Finished({COMPLETED, ERROR, FAILED, CANCELLED}))

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str.lower(other) == self.value

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.value)

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls.__members__.get(value) if isinstance(value, str) else None


def state_name(state: str) -> str:
    """The journal's name of a state. ERROR and CANCELLED become FAILED: the agent stopped before it was done."""
    name = str.upper(state)
    return "FAILED" if name in ("ERROR", "CANCELLED") else name
