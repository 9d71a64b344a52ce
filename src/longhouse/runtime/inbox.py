"""Inbox of sessions: commits prompts, answers, decisions and cancellations, then wakes the worker and the followers.

Hints are sent after the commit, outside any transaction. A lost hint costs half a second: the worker's sweep finds
every session that is due.
"""

import asyncio
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
from msgspec import structs

from longhouse import clock
from longhouse.agents.rules import WORKER_LOST
from longhouse.journal.events import (
    ClientTools,
    Condensed,
    Decided,
    Event,
    Fault,
    Opened,
    Outcome,
    Output,
    Prompted,
    Returned,
)
from longhouse.journal.fold import blank, extended
from longhouse.journal.session import INTERRUPTED, MOST_LOST, Open, Session
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.workers.reservation import Reservation
from longhouse.store import forks, journals
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import cancel as cancels
from longhouse.store.delegation import tree
from longhouse.store.erasing import erasure
from longhouse.store.erasing.erasure import Forgotten
from longhouse.store.forks import Allowed, Fork
from longhouse.store.journals import Placed
from longhouse.store.requests import RequestIdentity


class Delivered(msgspec.Struct, frozen=True):
    """The session right after the commit of the message, and no later."""

    session: Session
    is_behind: bool = False
    """Others appended before the message: the session may have advanced before it was read."""


class Inbox(msgspec.Struct, frozen=True):
    db: Database
    bus: Bus

    async def open(
        self, session_id: str, opened: Opened, prompt: Prompted, *, task: str, accepted: RequestIdentity | None = None
    ) -> Delivered:
        """Opens a session with its first prompt; if another request has just opened it, only the prompt is appended."""
        reservation = self.bus.reserve(session_id)
        claimant = reservation.claimant if reservation else None
        opening = journals.open(self.db, session_id, opened, prompt, task=task, accepted=accepted, claimant=claimant)
        placed = await (self._reserved(reservation, opening) if reservation else opening)
        try:
            return await self._delivered(blank(placed.session_id), [opened, prompt], placed)
        finally:
            if reservation:
                reservation.give(placed.lease)  # it is run once whoever has called this waits for something again

    async def _reserved(self, reservation: Reservation, opening: Coroutine[Any, Any, Placed]) -> Placed:
        """A client that leaves does not stop it: what is opened and claimed is run."""
        task = asyncio.create_task(opening)
        try:
            return await asyncio.shield(task)
        except BaseException:
            task.add_done_callback(reservation.settle)
            raise

    async def prompt(self, session: Session, prompt: Prompted, *, accepted: RequestIdentity | None = None) -> Delivered:
        """Queues a prompt. An aside belongs to the running turn: NotThere if the session has moved on."""
        head = session.head if prompt.aside else None
        placed = await journals.add(self.db, session.id, [prompt], trace=prompt.trace, head=head, accepted=accepted)
        return await self._delivered(session, [prompt], placed)

    async def prompt_within(
        self,
        transaction: Transaction,
        session_id: str | None,
        opened: Opened,
        prompt: Prompted,
        *,
        task: str,
        accepted: RequestIdentity,
        most_waiting: int,
    ) -> Placed:
        """Appends a prompt in a transaction of the caller, who calls `notify` after its commit: to this session, or to
        the one that `opened` describes where there is none any more."""
        how: dict[str, Any] = {"accepted": accepted, "most_waiting": most_waiting}
        if session_id:
            with suppress(journals.NotThere):
                return await journals.add(transaction, session_id, [prompt], trace=prompt.trace, **how)
        proposed = f"{opened.agent}_{uuid.uuid4()}"
        return await journals.open(transaction, proposed, opened, prompt, task=task, **how)

    def notify(self, placed: Placed) -> None:
        """Sends the hints of an append that was committed with something else."""
        self.bus.appended(placed.session_id, placed.seq)

    async def answer(
        self,
        session: Session,
        call: str,
        text: str,
        *,
        by: str,
        user: str | None = None,
        chain: str = "",
        accepted: RequestIdentity | None = None,
    ) -> Delivered:
        """Answers a question of this session; AlreadyReturned if another answer was first."""
        returned = Returned(call=call, outcome=Output(content=text), by=by, chain=chain, user=user)
        return await self._settle(session, [returned], accepted)

    async def give_results(
        self,
        session: Session,
        results: Mapping[str, Outcome],
        *,
        by: str,
        user: str | None = None,
        chain: str = "",
        aside: Prompted | None = None,
        client_tools: ClientTools | None = None,
        accepted: RequestIdentity | None = None,
    ) -> Delivered:
        """Returns calls that the client runs, by their ids in the session, in one append; AlreadyReturned if one of
        them has its outcome by now.

        `aside`: what the user said with it; the agent reads it after the results. `client_tools`: what the client
        offers from now on; None: the same as before.
        """
        returned = [
            Returned(call=call, outcome=outcome, by=by, chain=chain, user=user) for call, outcome in results.items()
        ]
        if client_tools is not None and returned:
            returned[-1] = structs.replace(returned[-1], client_tools=client_tools)
        # Before the outcomes, while the calls are open: it is read with them.
        new: list[Event] = [structs.replace(aside, trace=session.trace, aside=True)] if aside else []
        return await self._settle(session, [*new, *returned], accepted)

    async def decide(
        self,
        session: Session,
        decided: Decided,
        result: str | None = None,
        *,
        also: Sequence[Decided] = (),
        accepted: RequestIdentity | None = None,
    ) -> Delivered:
        """Records a decision on a call of this session at its current head; NotThere if the session has moved on.

        `also`: decisions on other calls, in the same append.
        """
        new: list[Event] = []
        for one in (decided, *also):
            call = session.open.get(one.call)
            # A step has no outcome: the worker tries it again, or ends its turn.
            new += [one] if call is not None and call.is_step else with_outcome(one, result, call)
        return await self._settle(session, new, accepted, head=session.head, is_shown=decided.via == "chat")

    async def cancel(self, session: Session, *, by: str, trace: str = "") -> Session:
        """Cancels the running turn, or the next queued one; in a session at rest, its sub-agents that still run.

        `trace`: the turn that is meant, running or queued.
        """
        # Prompts that arrived after the cancellation was requested are not cancelled.
        trace = trace or _next_trace(session)
        for one in [trace] if trace else await tree.left_at_work(self.db, session):
            stopped = await cancels.cancel(self.db, session, one, by=by)
            for ended, fence in stopped.fences.items():
                self.bus.stop(ended, fence)
            for reached, head in stopped.appended:
                self.bus.appended(reached, head)
            for cancelled in stopped.ended:
                self.bus.turn_ended(cancelled)
            session = stopped.top
        return session

    async def fork(
        self,
        session_id: str,
        owner: str,
        after: int,
        *,
        key: str | None = None,
        allowed: Allowed = lambda branch: None,
        accepted: RequestIdentity | None = None,
    ) -> Fork | None:
        """Opens a branch of a session that ends with event `after`; None if there is none. See `forks.fork`."""
        forked = await forks.fork(self.db, session_id, owner, after, key=key, allowed=allowed, accepted=accepted)
        for branch in forked.branches if forked else ():
            tell = self.bus.appended if branch.due else self.bus.noted
            tell(branch.session.id, branch.session.head)
        if forked and forked.outside:
            self.bus.noted(*forked.outside)
        return forked

    async def condense(self, session: Session, summary: Condensed) -> bool:
        """Records a summary of a session at rest; False if it has moved on since it was folded, or is at work."""
        placed = await journals.note(self.db, session.id, [summary], trace=session.trace, head=session.head)
        if placed:
            self.bus.noted(session.id, placed.seq)
        return placed is not None

    async def forget(
        self, session_id: str, owner: str, *, lasting: bool = False, at_rest_since: datetime | None = None
    ) -> Forgotten | None:
        """Deletes a session of this owner and its sub-agent sessions; None if there is none. See `erasure.forget`."""
        forgotten = await erasure.forget(self.db, session_id, owner, lasting=lasting, at_rest_since=at_rest_since)
        if forgotten is not None:
            for gone in forgotten.ids:
                self.bus.gone(gone)
            for reached, head in forgotten.appended:
                self.bus.appended(reached, head)
        return forgotten

    async def report(self, session_id: str, new: Sequence[Event], *, trace: str, head: int | None = None) -> None:
        """Records the outcomes of calls, for a worker that no longer holds the lease."""
        placed = await journals.add(self.db, session_id, new, trace=trace, head=head)
        self.bus.appended(session_id, placed.seq)

    async def _settle(
        self,
        session: Session,
        new: Sequence[Event],
        accepted: RequestIdentity | None,
        *,
        head: int | None = None,
        is_shown: bool = True,
    ) -> Delivered:
        """Settles a call. If another one waits, its client sees that at once and is recognised by the fingerprint."""
        after = extended(session, new, clock.now())
        fingerprint = after.rest_mark if is_shown and not after.can_move else None
        placed = await journals.add(
            self.db, session.id, new, trace=session.trace, state=after.state, fingerprint=fingerprint, head=head,
            accepted=accepted,
        )  # fmt: skip
        return await self._delivered(session, new, placed)

    async def _delivered(self, session: Session, new: Sequence[Event], placed: Placed) -> Delivered:
        """Sends the hints before any further await; who has claimed the session needs none."""
        (self.bus.noted if placed.lease else self.bus.appended)(session.id, placed.seq)
        if placed.seq == session.head + len(new):
            return Delivered(extended(session, new, placed.at))
        return Delivered(await journals.load_up_to(self.db, session, placed.seq), is_behind=True)


def with_outcome(decided: Decided, result: str | None = None, call: Open | None = None) -> list[Event]:
    """The decision, with the outcome of the call if the decision gives one. The tool of a call that takes its workers
    down is closed for the turn when the call is given up."""
    match decided.decision:
        case "happened":
            outcome: Outcome = Output(content=result or "")
        case "give_up" if call and call.is_client:
            outcome = Fault(code="given_up", message="the client has not sent a result, and the call was given up")
        case "give_up" if call and call.lost >= MOST_LOST:
            outcome = Fault(code=WORKER_LOST, message=f"this call {INTERRUPTED}; it is not tried again")
        case "give_up":
            outcome = Fault(code="given_up", message="nobody knows whether it happened, and it was given up")
        case "deny":
            why = f": {decided.comment}" if decided.comment else ""
            outcome = Fault(code="denied", message=f"the user did not approve this call{why}")
        case _:
            return [decided]
    return [decided, Returned(call=decided.call, outcome=outcome, by=decided.by)]


def _next_trace(session: Session) -> str:
    """The trace of the running turn, or of the next queued prompt; empty if there is neither."""
    if turn := session.running_turn:
        return turn.trace
    return session.queue[0].prompt.trace if session.queue else ""
