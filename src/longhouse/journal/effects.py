"""Calls that may change the world, as a journal tells of them: intended, done, failed, unknown."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

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


class CallEffect(msgspec.Struct):
    """One call of a tool that is `idempotent` or `once`."""

    seq: int
    call: str
    tool: str
    version: int
    effect: str
    arguments: str
    intended_at: datetime
    deadline: datetime | None
    state: EffectState = "intended"
    settled_at: datetime | None = None
    by: str = ""
    """Who said how it ended, if not the tool."""
    doubt: str = ""
    """How its result was lost; it stays when the call is settled."""
    lost: int = 0
    """How many workers were lost while it ran, in all its tries."""
    fault: Fault | None = None


def effects_of(records: Iterable[Recorded]) -> list[CallEffect]:
    """The calls with an effect, in their order."""
    found: dict[str, CallEffect] = {}
    calls: dict[str, Open] = {}
    for record in records:
        event = record.event
        if isinstance(event, Called) and event.call_kind == "tool" and event.effect != "read":
            found[event.call] = CallEffect(
                seq=record.seq,
                call=event.call,
                tool=event.tool,
                version=event.version,
                effect=event.effect,
                arguments=event.arguments,
                intended_at=record.at,
                deadline=event.deadline,
            )
        if isinstance(event, Returned) and (effect := found.get(event.call)):
            _settle(effect, event, calls.get(event.call), record.at)
        before = {**calls} if isinstance(event, Decided | Resumed) else {}
        open_calls.apply(calls, event, record.seq, record.at)
        for name, was in before.items():
            if (effect := found.get(name)) and (call := calls.get(name)):
                effect.lost += max(0, call.lost - was.lost)
                effect.doubt = call.doubt or effect.doubt
    for name, call in calls.items():
        if effect := found.get(name):
            effect.state = "unknown" if call.uncertain else "intended"
    return list(found.values())


def _settle(effect: CallEffect, event: Returned, call: Open | None, at: datetime) -> None:
    effect.settled_at, effect.by = at, event.by
    if not isinstance(event.outcome, Fault):
        effect.state = "done"
        return
    effect.fault, code = event.outcome, event.outcome.code
    if code in BROKEN_OFF:
        # The journal does not say when a call began: one that does not wait for approval may have.
        effect.state = "not_begun" if call and call.approve_by else "unknown"
    else:
        effect.state = "not_begun" if code in NOT_BEGUN else "unknown" if code in UNKNOWN else "failed"
