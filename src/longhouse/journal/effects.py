"""Calls that may change the world, as a journal tells of them: intended, done, failed, unknown."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, TypedDict

from longhouse.journal import open_calls
from longhouse.journal.events import Called, Decided, Fault, Recorded, Resumed, Returned
from longhouse.journal.session import Open

EffectState = Literal["intended", "done", "failed", "unknown", "not_begun"]
NOT_BEGUN: Final = frozenset(
    {
        "bad_arguments", "delegate_first", "denied", "not_offered", "rate_limited", "reason_first", "switched_off",
        "too_late", "too_many_calls", "tool_not_runnable", "unknown_tool",
    }
)  # fmt: skip
"""Codes of faults which say that the call was not made."""
UNKNOWN: Final = frozenset({"given_up", "unknown_outcome"})
"""Codes of faults which say that nobody knows whether it took effect."""
BROKEN_OFF: Final = frozenset({"abandoned", "cancelled", "forgotten", "worker_lost"})
"""Codes of faults with which a call was ended from outside, whatever it had done by then."""


class ShownEffect(TypedDict):
    """A call that may have changed the world."""

    call_id: str
    tool: str
    version: int
    effect: str
    key: str
    """The idempotency key that the tool was given."""
    arguments: str
    state: EffectState
    doubt: str | None
    """How its result was lost; it stays when the call is settled."""
    workers_lost: int
    """In all its tries."""
    fault: Fault | None
    by: str | None
    """Who said how it ended, if not the tool."""
    intended_at: datetime
    deadline: datetime | None
    settled_at: datetime | None


def effects_of(session_id: str, records: Iterable[Recorded], *, before: int | None = None) -> list[ShownEffect]:
    """The calls with an effect, in their order: all, or those before this event."""
    found: dict[str, ShownEffect] = {}
    calls: dict[str, Open] = {}
    for record in records:
        event = record.event
        is_asked = before is None or record.seq < before
        if isinstance(event, Called) and event.call_kind == "tool" and event.effect != "read" and is_asked:
            found[event.call] = {
                "call_id": event.call,
                "tool": event.tool,
                "version": event.version,
                "effect": event.effect,
                "key": f"{session_id}:{event.call}",
                "arguments": event.arguments,
                "state": "intended",
                "doubt": None,
                "workers_lost": 0,
                "fault": None,
                "by": None,
                "intended_at": record.at,
                "deadline": event.deadline,
                "settled_at": None,
            }
        if isinstance(event, Returned) and (effect := found.get(event.call)):
            _settle(effect, event, calls.get(event.call), record.at)
        former = {**calls} if isinstance(event, Decided | Resumed) else {}
        open_calls.apply(calls, event, record.seq, record.at)
        for name, was in former.items():
            if (effect := found.get(name)) and (call := calls.get(name)):
                effect["workers_lost"] += max(0, call.lost - was.lost)
                effect["doubt"] = call.doubt or effect["doubt"]
    for name, call in calls.items():
        if effect := found.get(name):
            effect["state"] = "unknown" if call.uncertain else "intended"
    return list(found.values())


def _settle(effect: ShownEffect, event: Returned, call: Open | None, at: datetime) -> None:
    effect["settled_at"], effect["by"] = at, event.by or None
    if not isinstance(event.outcome, Fault):
        effect["state"] = "done"
        return
    effect["fault"], code = event.outcome, event.outcome.code
    if code in BROKEN_OFF:
        # The journal does not say when a call began: one that does not wait for approval may have.
        effect["state"] = "not_begun" if call and call.approve_by else "unknown"
    else:
        effect["state"] = "not_begun" if code in NOT_BEGUN else "unknown" if code in UNKNOWN else "failed"
