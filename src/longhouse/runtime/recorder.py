"""Appends events to the journal, together with their direct consequences in this and in other sessions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from longhouse import clock
from longhouse.agents import rules
from longhouse.agents.template import Template
from longhouse.journal import events
from longhouse.journal.events import Event
from longhouse.journal.fold import extended
from longhouse.journal.session import AGENT_FAILED, Session
from longhouse.runtime.bus import Bus, Facts, SubagentsChanged
from longhouse.runtime.delegation import DelegationPlan, DelegationPlanner
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.store.delegation import delegations
from longhouse.store.delegation.delegations import Recording
from longhouse.store.leases import Lease
from longhouse.tools.uncertain import LOST, unknown


@dataclass(slots=True)
class Run:
    """One run of a worker on one session, from claim to rest."""

    lease: Lease
    session: Session
    loaded: int
    template: Template | None = None
    """The template of the turn, once it is known."""
    rested: bool = False
    is_lost: bool = False
    """The run was broken off, or its lease was lost: it begins nothing more."""
    is_recording: bool = False
    """A write is in flight: whether it was committed is not known."""
    attempts: int = 0
    troubled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Recorder:
    db: Database
    bus: Bus
    delegates: DelegationPlanner
    worker: str
    refused: Counter[str] = field(default_factory=Counter)
    """Refused calls, counted by fault code."""

    async def record(self, run: Run, new: Sequence[Event]) -> None:
        """Appends events with their direct consequences; the same statement releases the lease if nothing is left."""
        at, before = clock.now(), run.session
        tells = run.template is not None and run.template.execution_policy.unknown == "tell"
        after, settled = _settled(before, new, at, teller=self.worker if tells else "")
        begun = await self.delegates.begun(after, run.template, settled) if run.template else None
        run.is_recording = True
        try:
            if begun:
                after, appended = await self._begin(run, before, new, begun, at)
            elif delegations.ends_for_another(before, after):
                appended = await self._end(run, before, after, settled, at)
            else:
                appended = await self._append(run, before, after, settled, at)
        except delegations.DelegationWritten:
            run.session = await journals.catch_up(self.db, before)
            return
        run.is_recording = False
        run.attempts, run.troubled_at = 0, None
        run.rested = appended.rested
        if appended.recorded[0].seq == before.head + 1:
            run.session = after
        else:
            run.session = await journals.catch_up(self.db, before)
        self.refused.update(rules.refusals(appended.recorded))
        self.bus.publish(run.session.id, Facts(appended.recorded))
        if run.session.turn and run.session.turn.prompted.root:
            self.bus.publish(run.session.turn.prompted.root, SubagentsChanged())

    async def _append(
        self, run: Run, before: Session, after: Session, settled: Sequence[Event], at: datetime
    ) -> journals.Appended:
        rest = None if after.can_move else journals.Rest(head=before.head, wake_at=after.wake_at)
        return await journals.append(
            self.db,
            after,
            settled,
            fence=run.lease.fence,
            worker=self.worker,
            at=at,
            rest=rest,
            fingerprint=after.rest_mark if rest or not after.is_running else None,
        )

    async def _begin(
        self, run: Run, before: Session, new: Sequence[Event], begun: DelegationPlan, at: datetime
    ) -> tuple[Session, journals.Appended]:
        """Records sub-agent calls together with the prompts of these sub-agents."""
        after, appended, prompted = await delegations.begin(
            self.db,
            before,
            begun.refusing(new),
            begun.tasks,
            begun.collects,
            settle=lambda new: _settled(before, new, at),
            version_of=begun.versions.__getitem__,
            recording=Recording(run.lease.fence, self.worker, at),
        )
        for child, seq in prompted:
            self.bus.appended(child, seq)
        return after, appended

    async def _end(
        self, run: Run, before: Session, after: Session, settled: Sequence[Event], at: datetime
    ) -> journals.Appended:
        """Records the end of a turn together with the outcome of the parent's call that waits for it."""
        recording = Recording(run.lease.fence, self.worker, at)
        appended, told = await delegations.end(self.db, before, after, settled, recording=recording)
        for session_id, seq in told:
            self.bus.appended(session_id, seq)
        return appended


def _settled(session: Session, new: Sequence[Event], at: datetime, *, teller: str = "") -> tuple[Session, list[Event]]:
    """Folds these events; adds the end of the turn once a finishing tool has returned and no call is open.

    With a `teller`, calls with an unknown outcome return a fault that says so, and no person is asked.
    """
    settled = list(new)
    after = extended(session, settled, at)
    if teller and after.uncertain:
        told = ((call.call, unknown(call.tool, call.doubt or LOST)) for call in after.uncertain)
        settled += [events.Returned(call=call, outcome=fault, by=teller) for call, fault in told]
        after = extended(session, settled, at)
    turn = after.turn
    if turn and turn.verdict and not turn.ended and not after.open:
        answer = turn.answer or ""
        end: Event = events.Finished(answer=answer)
        if turn.verdict == "FAILED":
            end = events.Failed(reason=answer, code=AGENT_FAILED)
        settled.append(end)
        after = extended(session, settled, at)
    return after, settled
