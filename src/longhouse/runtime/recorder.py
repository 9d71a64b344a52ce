"""Appends events to the journal, together with their direct consequences in this and in other sessions."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from longhouse import clock
from longhouse.agents import rules
from longhouse.agents.requests import answer_format
from longhouse.agents.template import Template
from longhouse.journal import events
from longhouse.journal.events import Event
from longhouse.journal.fold import extended
from longhouse.journal.session import AGENT_FAILED, Session, ended_turn
from longhouse.runtime.bus.items import Facts, SubagentsChanged
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.steps import answer_check
from longhouse.runtime.steps.delegation import DelegationPlanner
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.store.delegation import delegations
from longhouse.store.delegation.delegations import Recording
from longhouse.store.leases import Lease
from longhouse.tools.arguments import apart
from longhouse.tools.outcomes import LOST, unknown

NOTICED: Final = 1.0
"""Seconds without work from which on they are recorded."""
IDLE: Final = "stood still, or a clock was set"


@dataclass
class Run:
    """One run of a worker on one session, from claim to rest."""

    lease: Lease
    session: Session
    template: Template | None = None
    """The template of the turn, once it is known."""
    rested: bool = False
    is_lost: bool = False
    """The run was broken off, or its lease was lost: it begins nothing more."""
    probed: set[str] = field(default_factory=set)
    """Calls of which probes were asked."""
    probe_at: datetime | None = None
    """When probes are asked again whether calls of lost workers took effect."""
    measured: tuple[datetime, float] | None = None
    """The turn's last moment of work, if this run has recorded it, and the same by the clock that nobody sets."""
    is_recording: bool = False
    """A write is in flight: whether it was committed is not known."""

    def __post_init__(self) -> None:
        self.loaded = self.session.head
        self.attempts, self.troubled_at = self.lease.attempts, self.lease.troubled_at
        self.spent = self.lease.spent
        """The budget that the session's key had used up when the session was claimed or last appended to."""


class Recorder(msgspec.Struct, frozen=True):
    db: Database
    bus: Bus
    delegates: DelegationPlanner
    worker: str
    able: Callable[[Session, Collection[str]], Awaitable[Sequence[str]]]
    """Calls in doubt, other than these, of which probes can tell: those are asked before a person is."""
    refused: Counter[str] = msgspec.field(default_factory=Counter)
    """Refused calls, counted by fault code."""
    on_written: list[Callable[[], None]] = msgspec.field(default_factory=list)
    """Called after each write."""

    async def record(self, run: Run, new: Sequence[Event]) -> None:
        """Appends events with their direct consequences; the same statement releases the lease if nothing is left."""
        at, before, measured_at = clock.now(), run.session, time.monotonic()
        new = [*_idle(run, at, measured_at), *new]
        try:
            after, appended, reached = await self._write(run, before, new, at)
        except delegations.DelegationWritten:
            run.session = await journals.catch_up(self.db, before)
            if ended_turn(before, run.session):
                self.bus.turn_ended(run.session)
            return
        run.is_recording = False
        if after.turn and after.turn.worked_at == at:
            run.measured = at, measured_at
        for written in self.on_written:
            written()
        run.attempts, run.troubled_at = 0, None
        run.rested, run.spent = appended.rested, appended.spent
        for session_id, seq in reached:
            self.bus.appended(session_id, seq)
        if appended.recorded[0].seq == before.head + 1:
            run.session = after
        else:
            run.session = await journals.catch_up(self.db, before)
        for code in rules.refusals(appended.recorded):
            self.refused[code] += 1
        has_ended = ended_turn(before, after)
        more_follow = after.can_move and not has_ended
        self.bus.publish(run.session.id, Facts(appended.recorded, more_follow, run.session))
        if has_ended:
            self.bus.turn_ended(after)
        if run.session.turn and (root := run.session.turn.prompted.root):
            self.bus.publish(root, SubagentsChanged(more_follow))

    async def _write(
        self, run: Run, before: Session, new: Sequence[Event], at: datetime
    ) -> tuple[Session, journals.Appended, list[tuple[str, int]]]:
        """The session after the append, what was appended, and other sessions that were appended to, with heads."""
        settle = partial(settled_with, before, new, at)
        # An answer that takes long to check is not checked on the event loop.
        is_checked = before.turn and answer_format.is_asked(before.turn.prompted)
        after, settled = await apart(settle) if is_checked else settle()
        asked: Sequence[str] = ()
        if after.open and after.uncertain:
            asked = await self.able(after, run.probed)
            if asked:
                new = [_probed(one, before, asked) for one in new]
                after, settled = settled_with(before, new, at)
            elif run.template and run.template.execution_policy.unknown == "tell":
                after, settled = await apart(partial(settled_with, before, new, at, reported_by=self.worker))
        recording = Recording(run.lease.fence, self.worker, at, keeps=bool(asked))
        plan = await self.delegates.plan(after, run.template, settled) if run.template else None
        run.is_recording = True
        if plan:
            return await delegations.begin(
                self.db,
                before,
                new,
                plan.tasks,
                plan.collects,
                faults=plan.faults,
                settle=lambda new: settled_with(before, new, at),
                recording=recording,
            )
        if turn := delegations.ending_turn(before, after):
            return after, *await delegations.end(self.db, before, after, turn, settled, recording=recording)
        return after, await delegations.append(self.db, before, after, settled, recording=recording), []


def _idle(run: Run, at: datetime, measured_at: float) -> list[Event]:
    """What has passed since the last work by the clock on the wall, but not as the run has measured it: nobody worked,
    or the clock was set."""
    turn = run.session.turn
    if turn is None or turn.ended or turn.resting_since or run.measured is None or run.measured[0] != turn.worked_at:
        return []
    idle = (at - turn.worked_at).total_seconds() - (measured_at - run.measured[1])
    if abs(idle) < NOTICED:
        return []
    return [events.Spent(usage=events.Usage(), reason=IDLE, waited=round(idle, 3))]


def _probed(event: Event, before: Session, asked: Sequence[str]) -> Event:
    """The event, if it puts calls in doubt of which a probe can tell: with the note that it is asked first. What a
    person was asked about already stays a question."""
    match event:
        case events.Resumed():
            return replace(event, probed=tuple(call for call in asked if not before.open[call].awaits_person))
        case events.Decided(decision="unknown") if event.call in asked:
            return replace(event, probed=True)
    return event


def settled_with(
    session: Session, new: Sequence[Event], at: datetime, *, reported_by: str = ""
) -> tuple[Session, list[Event]]:
    """Folds these events; adds the end of the turn once a finishing tool has returned and no call is open.

    With `reported_by`, calls with an unknown outcome return a fault that says so, and no person is asked.
    """
    settled = list(new)
    after = extended(session, settled, at)
    if reported_by and after.uncertain:
        faults = ((call.call, unknown(call.tool, call.doubt or LOST)) for call in after.uncertain)
        settled += [events.Returned(call=call, outcome=fault, by=reported_by) for call, fault in faults]
        after = extended(session, settled, at)
    turn = after.turn
    if turn and turn.verdict and not turn.ended and not after.open:
        answer = turn.answer or ""
        end: Event = events.Finished(answer=answer)
        if turn.verdict == "FAILED":
            end = events.Failed(reason=answer, code=AGENT_FAILED)
        elif answer_format.is_asked(turn.prompted):
            # A tool that finishes may make the answer itself: only now is it known.
            found = answer_check.shaped(turn, answer)
            if isinstance(found, events.Fault):
                end = events.Failed(reason=found.message, code=found.code)
            else:
                end = events.Finished(answer=found)
        settled.append(end)
        after = extended(session, settled, at)
    return after, settled
