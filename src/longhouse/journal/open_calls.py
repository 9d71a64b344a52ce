"""The calls of a session that have not returned yet, as its events change them."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import asdict, replace

from longhouse.journal.events import (
    BY_PROBE,
    Called,
    Decided,
    Event,
    Failed,
    Finished,
    Recorded,
    Resumed,
    Returned,
    Started,
)
from longhouse.journal.session import LOST_STEP, LOST_STEP_PREFIX, Open, calls_to_run


def apply(calls: dict[str, Open], event: Event, seq: int, at: datetime) -> None:
    """Applies an event to the open calls; events that concern none of them change nothing."""
    match event:
        case Called():
            calls[event.call] = Open(**asdict(event), seq=seq, at=at)
        case Returned():
            calls.pop(event.call, None)
        case Decided() if event.call.startswith(LOST_STEP_PREFIX):
            _decide_step(calls, event, seq, at)
        case Decided() if call := calls.get(event.call):
            calls[event.call] = _decided(call, event)
        case Started() | Finished() | Failed():
            drop_step(calls)
        case Resumed():
            _resume(calls, event)


def drop_step(calls: dict[str, Open]) -> None:
    """The turn has ended: nobody is asked about its step any more."""
    for name in [name for name, call in calls.items() if call.is_step]:
        del calls[name]


def _decide_step(calls: dict[str, Open], event: Decided, seq: int, at: datetime) -> None:
    if event.decision != "unknown":
        calls.pop(event.call, None)
        return
    calls[event.call] = Open(
        call=event.call,
        tool="",
        arguments="",
        call_kind="step",
        question=LOST_STEP,
        doubt=event.comment,
        seq=seq,
        at=at,
    )


def _decided(call: Open, event: Decided) -> Open:
    match event.decision:
        case "did_not_happen":
            retried = call.retried or call.takes_workers
            again = replace(call, has_waited=True, uncertain=False, doubt="", deadline=None, lost=0)
            return replace(again, retried=retried, probed=False)
        case "approve" if call.approve_by:
            return replace(call, approve_by=None, has_waited=True)
        case "unknown" if event.by.startswith(BY_PROBE):
            return replace(call, probed=False)
        case "unknown":
            return replace(call, uncertain=True, doubt=event.comment, probed=event.probed)
    return call


def _resume(calls: dict[str, Open], event: Resumed) -> None:
    """Calls that a lost worker may have started and that must not run twice become uncertain: a probe or a person
    decides."""
    for call in calls_to_run(calls.values()):  # the others were not running
        is_doubtful = call.effect == "once" and call.call not in event.unbegun
        calls[call.call] = replace(call, lost=call.lost + event.counts, uncertain=call.uncertain or is_doubtful)
    for name, call in calls.items():
        if call.uncertain:
            calls[name] = replace(call, probed=name in event.probed)


def lost_in(records: Sequence[Recorded], call: Open) -> str:
    """The lost worker that had this call to run; empty if none was lost."""
    lost = ""
    for record in records:
        event = record.event
        if isinstance(event, Decided) and event.call == call.call:
            # A probe that cannot tell changes nothing.
            lost = lost if event.decision == "unknown" and event.by.startswith(BY_PROBE) else ""
        elif isinstance(event, Resumed) and call.call not in event.unbegun:
            lost = lost or event.previous
    return lost
