"""What reaches a session from outside: it is committed, and then the worker is woken and the followers are told.

The hints are sent after the commit and outside of any transaction. A lost one costs half a second: the worker's sweep
finds every session that is due.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from longhouse import clock
from longhouse.journal.events import Decided, Event, Fault, Opened, Outcome, Output, Prompted, Returned
from longhouse.journal.fold import blank, extended
from longhouse.journal.session import Session
from longhouse.runtime.bus import Bus
from longhouse.store import erasure, journals
from longhouse.store.database import Database
from longhouse.store.delegation import cancel as cancels
from longhouse.store.delegation import tree
from longhouse.store.journals import Placed
from longhouse.store.requests import Accepted


@dataclass(frozen=True, slots=True)
class Delivered:
    """The session as it was right after the message was committed, and not a step further."""

    session: Session
    is_behind: bool = False
    """Others appended before the message: the session may have gone on while it was read."""


@dataclass(frozen=True, slots=True)
class Inbox:
    db: Database
    bus: Bus

    async def open(
        self, session_id: str, opened: Opened, prompt: Prompted, *, task: str, accepted: Accepted | None = None
    ) -> Delivered:
        """Opens a session with its first prompt; one that was opened at the same moment gets the prompt alone."""
        placed = await journals.open(self.db, session_id, opened, prompt, task=task, accepted=accepted)
        return await self._delivered(blank(placed.session_id), [opened, prompt], placed)

    async def prompt(self, session: Session, prompt: Prompted, *, accepted: Accepted | None = None) -> Delivered:
        """Queues a prompt. An aside belongs to the running turn: NotThere if the session has moved on."""
        head = session.head if prompt.aside else None
        placed = await journals.add(self.db, session.id, [prompt], trace=prompt.trace, head=head, accepted=accepted)
        return await self._delivered(session, [prompt], placed)

    async def answer(
        self, session: Session, call: str, text: str, *, chain: str = "", accepted: Accepted | None = None
    ) -> Delivered:
        """Answers a question of this session; AlreadyReturned if somebody was first."""
        returned = Returned(call=call, outcome=Output(content=text), by="user", chain=chain)
        return await self._settle(session, [returned], accepted)

    async def decide(
        self, session: Session, decided: Decided, result: str | None = None, *, accepted: Accepted | None = None
    ) -> Delivered:
        """Decides on a call of this session as it stands; NotThere if the session has moved on."""
        in_chat = decided.via == "chat"
        return await self._settle(session, with_outcome(decided, result), accepted, head=session.head, is_shown=in_chat)

    async def cancel(self, session: Session) -> Session:
        """Ends the running turn, or the next one waiting; in a session that rests, what it has left at work."""
        # What came after it was asked for is not cancelled.
        trace = _next_trace(session)
        for one in [trace] if trace else await tree.left_at_work(self.db, session):
            stopped = await cancels.cancel(self.db, session, one)
            for ended, fence in stopped.fences.items():
                self.bus.stop(ended, fence)
            for reached, head in (*stopped.ended, *stopped.told):
                self.bus.appended(reached, head)
            session = stopped.top
        return session

    async def forget(self, session_id: str, owner: str) -> bool:
        """Deletes a session of this owner and all that it has called; False where there is none."""
        forgotten = await erasure.forget(self.db, session_id, owner)
        if forgotten is None:
            return False
        for gone in forgotten.ids:
            self.bus.gone(gone)
        for reached, head in forgotten.told:
            self.bus.appended(reached, head)
        return True

    async def report(self, session_id: str, new: Sequence[Event], *, trace: str, head: int | None = None) -> None:
        """Says what came of calls, for a worker that no longer holds the session."""
        placed = await journals.add(self.db, session_id, new, trace=trace, head=head)
        self.bus.appended(session_id, placed.seq)

    async def _settle(
        self,
        session: Session,
        new: Sequence[Event],
        accepted: Accepted | None,
        *,
        head: int | None = None,
        is_shown: bool = True,
    ) -> Delivered:
        """Settles a call. Where another one still waits, its client is shown that at once, and is known by it."""
        after, trace = extended(session, new, clock.now()), session.turn.trace if session.turn else ""
        fingerprint = after.rest_mark if is_shown and not after.can_move else None
        placed = await journals.add(
            self.db, session.id, new, trace=trace, state=after.state, fingerprint=fingerprint, head=head,
            accepted=accepted,
        )  # fmt: skip
        return await self._delivered(session, new, placed)

    async def _delivered(self, session: Session, new: Sequence[Event], placed: Placed) -> Delivered:
        """Sends the hints, before anything else is awaited."""
        self.bus.appended(session.id, placed.seq)
        if placed.seq == session.head + len(new):
            return Delivered(extended(session, new, placed.at))
        return Delivered(await journals.load_up_to(self.db, session, placed.seq), is_behind=True)


def with_outcome(decided: Decided, result: str | None = None) -> list[Event]:
    """A decision, with the outcome of the call where it has one by that."""
    match decided.decision:
        case "happened":
            outcome: Outcome = Output(content=result or "")
        case "give_up":
            outcome = Fault(code="given_up", message="nobody knows whether it happened, and it was given up")
        case "deny":
            why = f": {decided.comment}" if decided.comment else ""
            outcome = Fault(code="denied", message=f"the user did not approve this call{why}")
        case _:
            return [decided]
    return [decided, Returned(call=decided.call, outcome=outcome, by="user")]


def _next_trace(session: Session) -> str:
    """What the session is at, or else what it is about to begin; empty if it rests."""
    if session.turn and session.is_running:
        return session.turn.trace
    return session.queue[0].prompt.trace if session.queue else ""
