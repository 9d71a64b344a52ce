"""What becomes of the events of a session in a branch of it: which are renamed, and which the fork adds. No I/O."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from longhouse.journal import events
from longhouse.journal.events import Event, Fault, Origin, Outcome, Recorded
from longhouse.journal.fold import extended
from longhouse.journal.json_text import object_of
from longhouse.journal.session import Open, Session

BY: Final = "fork"
"""Who cancels and doubts in a branch what its origin had begun."""
BEGUN_THERE: Final = "it was made in the session {origin}, of which this one is a branch, and may have been run there"
CANCELLED: Final = Fault(code="cancelled", message="nobody in this branch had asked for it")
NOT_MADE: Final = Fault(code="not_made", message="the agent had not been asked when this branch was forked")


@dataclass(frozen=True, slots=True)
class BranchNames:
    """The new names of what a branch has of its own."""

    conversation: str
    sessions: Mapping[str, str]
    traces: Mapping[str, str]

    def renamed(self, event: Event) -> Event:
        """The event with the names of the branch. A task from a session outside the branch loses its sender: no result
        leaves the branch."""
        match event:
            case events.Opened():
                return replace(event, conversation=self.conversation)
            case events.Prompted():
                return replace(
                    event,
                    trace=self.traces.get(event.trace, event.trace),
                    reply_to=self._reply_to(event.reply_to),
                    root=self.sessions.get(event.root, ""),
                )
            case events.Started() | events.Cancelled():
                return replace(event, trace=self.traces.get(event.trace, event.trace))
        return event

    def _reply_to(self, known: events.ReplyTo | None) -> events.ReplyTo | None:
        if known is None or known.session not in self.sessions:
            return None
        return replace(known, session=self.sessions[known.session])


RENAMED: Final = (events.Opened, events.Prompted, events.Started, events.Cancelled)
"""The kinds of events that name conversations, sessions or traces."""


def origins_of(session: Session, after: int, left_out: Sequence[str] = ()) -> tuple[Origin, ...]:
    """Where a branch of this session comes from, and where that came from."""
    return (*session.origins, Origin(session=session.id, after=after, left_out=tuple(left_out)))


class AgentCalls(msgspec.Struct, frozen=True):
    """The calls of agents in the first events of a session, by the handle of the task that they wait for."""

    made: Collection[str]
    returned: Collection[str]
    """Tasks whose outcome the session knows."""
    open: Mapping[str, str]
    """Open call -> the task that it waits for."""


def agent_calls(records: Sequence[Recorded]) -> AgentCalls:
    awaited: dict[str, str] = {}
    open_calls: dict[str, str] = {}
    returned: set[str] = set()
    for event in (record.event for record in records):
        if isinstance(event, events.Called) and event.call_kind == "agent":
            given = object_of(event.arguments) if event.role == "collects" else None
            awaited[event.call] = open_calls[event.call] = str(given.get("handle")) if given else event.call
        elif isinstance(event, events.Returned) and event.call in awaited:
            open_calls.pop(event.call, None)
            if event.by == "agent":
                returned.add(awaited[event.call])
    return AgentCalls(awaited.keys(), returned, open_calls)


def postponed(session: Session, records: Sequence[Recorded], by: timedelta) -> dict[int, events.Called]:
    """Seq -> the call that waits for approval, with as much time for it as was left."""
    waiting = {call.seq for call in session.unapproved}
    called = {one.seq: one.event for one in records if one.seq in waiting and isinstance(one.event, events.Called)}
    return {
        seq: replace(one, approve_by=one.approve_by + by) for seq, one in called.items() if one.approve_by is not None
    }


class BranchPoint(msgspec.Struct, frozen=True):
    """What lies between the last event that a session of a branch has inherited and its own first one."""

    origin: str
    at: datetime
    is_top: bool
    """Whether it is the session that was forked, and no agent below it."""
    cancelled: Collection[str]
    """Traces that a session of the branch had cancelled."""
    outcomes: Mapping[str, Outcome | None]
    """Open call of an agent -> the outcome that is known; None: the agent is at work. Not named: it was never asked."""
    deleted: Collection[int] = ()
    """Turns of the origin that were deleted from its ledger by now, by their `Started`."""


def joined(session: Session, joint: BranchPoint) -> tuple[Session, list[Event]]:
    """The session of a branch ready to go on, and the events that make it so.

    Calls that must not happen twice are doubtful, since their origin may run them. What nobody in the branch has asked
    for is cancelled. The time since the last event counts for no budget.
    """
    new: list[Event] = []
    if deleted := tuple(sorted(seq for seq in joint.deleted if seq <= session.head and seq not in session.deleted)):
        new.append(events.Noted(about="outdated", deleted=deleted))
    for trace in _unwanted(session, joint):
        at_work = session.running_turn is not None and session.trace == trace
        new += [_ended(call) for call in session.open.values()] if at_work else []
        new.append(events.Cancelled(trace=trace, by=BY))
    after = extended(session, new, joint.at)
    turn = after.running_turn
    if turn is None:
        return after, new
    idle = (joint.at - turn.worked_at).total_seconds()
    if turn.resting_since is None and idle > 0:
        new.append(events.Spent(usage=events.Usage(), reason="the branch was forked", waited=round(idle, 3)))
    new += [one for call in after.open.values() if (one := _known(call, joint.outcomes))]
    if due := after.due_calls:
        new.append(events.Resumed(worker=BY, previous=f"{joint.origin}{events.INTERRUPTED}"))
        doubt = BEGUN_THERE.format(origin=joint.origin)
        once = [call.call for call in due if call.effect == "once"]
        new += [events.Decided(call=call, decision="unknown", by=BY, comment=doubt) for call in once]
    return extended(session, new, joint.at), new


def _unwanted(session: Session, joint: BranchPoint) -> list[str]:
    """The traces of what is at work or waits in a session, and that nobody in the branch wants."""
    turn = session.running_turn
    prompts = [*([turn.prompted] if turn else []), *(waiting.prompt for waiting in session.queue)]
    unasked = [one.trace for one in prompts if one.reply_to is None and not joint.is_top]
    return list(dict.fromkeys([*unasked, *(one.trace for one in prompts if one.trace in joint.cancelled)]))


def _ended(call: Open) -> Event:
    if call.is_step:
        return events.Decided(call=call.call, decision="give_up", by=BY)
    return events.Returned(call=call.call, outcome=CANCELLED)


def _known(call: Open, outcomes: Mapping[str, Outcome | None]) -> events.Returned | None:
    """The outcome of an open call of an agent, where nobody is left to give it."""
    if call.call_kind != "agent":
        return None
    outcome = outcomes.get(call.call, NOT_MADE)
    return events.Returned(call=call.call, outcome=outcome, by="agent") if outcome else None
