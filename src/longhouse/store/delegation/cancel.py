"""Cancels a trace: in every session that works on it, in one transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from longhouse import clock
from longhouse.journal import events
from longhouse.journal.events import Event, Fault
from longhouse.journal.fold import extended
from longhouse.journal.session import Session
from longhouse.store import journals
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import tree
from longhouse.store.delegation.delegations import LOCK, LOCK_ROWS, tell
from longhouse.store.delegation.results import DelegationResult
from longhouse.store.delegation.tree import Root

DROP: Final = """
    UPDATE delegations SET outcome = :outcome WHERE child = :child AND trace = :trace AND outcome IS NULL
    RETURNING parent, call, trace
"""
NO_LONGER: Final = "DELETE FROM awaits WHERE parent = ANY(:parents)"

CANCELLED: Final = Fault(code="cancelled", message="the turn was cancelled")


@dataclass(frozen=True, slots=True)
class Stopped:
    """The sessions that a cancel has written to, with their new heads: turns `ended`, or only events added (`told`)."""

    top: Session
    """The top session after the cancel."""
    ended: list[tuple[str, int]]
    told: list[tuple[str, int]]
    fences: dict[str, int] = field(default_factory=dict)
    """The new fences of the ended sessions: leases with a smaller fence are lost."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """A session of the trace, the events appended to it, and the session after them."""

    session: Session
    new: list[Event]
    after: Session

    @property
    def goes_on(self) -> bool:
        """Is it working on another trace, so that only a prompt in its queue is cancelled?"""
        return self.after.is_running


async def cancel(db: Database, top: Session, trace: str) -> Stopped:
    """Cancels a trace in a session and in the sub-agents that work on it; those at work on other traces continue.

    Long journals are folded before any lock is taken. Once all rows are locked no head moves, and only the events
    appended since are folded.
    """
    roots = [Root(top.id, top.id, trace)]
    nodes = await tree.nodes(db, roots, open_only=True)
    folded = {node.id: await journals.load(db, node.id, node.head) for node in nodes} | {top.id: top}

    async def write(tx: Transaction) -> Stopped:
        await tx.run(LOCK, owner=top.owner, conversation=top.conversation)  # from here on no session can join the tree
        ids = sorted({top.id, *(node.id for node in await tree.nodes(tx, roots, open_only=True))})
        kept = DelegationResult(outcome=CANCELLED).encoded
        dropped = [
            row for session_id in ids for row in await tx.rows(DROP, child=session_id, trace=trace, outcome=kept)
        ]
        outside = {row["parent"] for row in dropped}.difference(ids)
        heads = {row["id"]: row["head"] for row in await tx.rows(LOCK_ROWS, ids=sorted({*ids, *outside}))}
        sessions = {one: await _caught_up(tx, folded, one, heads[one]) for one in ids}
        endings = [_ending(one, trace) for one in sessions.values() if _is_in(one, trace)]
        stopped = Stopped(next((one.after for one in endings if one.session.id == top.id), sessions[top.id]), [], [])
        for ending in endings:
            await _end(tx, ending, trace, stopped)
        # The calls of ended sessions have faults already and wait for nothing. Sessions that continue may wait for a
        # dropped delegation, and get its outcome.
        ended = {session_id for session_id, _ in stopped.ended}
        await tx.run(NO_LONGER, parents=list(ended))
        others = [row for row in dropped if row["parent"] not in ended]
        stopped.told.extend(await tell(tx, others, DelegationResult(outcome=CANCELLED)))
        return stopped

    return await db.together(write)


async def _caught_up(tx: Transaction, folded: Mapping[str, Session], session_id: str, head: int) -> Session:
    session = folded.get(session_id)
    if session is None:
        return await journals.load(tx, session_id, head)
    return session if session.head == head else await journals.catch_up(tx, session)


async def _end(tx: Transaction, ending: _Ending, trace: str, stopped: Stopped) -> None:
    session = ending.session
    if ending.goes_on:
        # It works on another trace: the holder keeps its lease, and a running step is not restarted.
        kept = await journals.add(tx, session.id, ending.new, trace=trace)
        stopped.told.append((session.id, kept.seq))
        return
    done = await journals.cancel(tx, session, ending.new, after=ending.after)
    assert done is not None, "its row is locked"
    stopped.ended.append((session.id, done.seq))
    stopped.fences[session.id] = done.fence


def _is_in(session: Session, trace: str) -> bool:
    """Is the session working on this trace, or is a prompt of it in the queue?"""
    return _is_at(session, trace) or any(waiting.prompt.trace == trace for waiting in session.queue)


def _is_at(session: Session, trace: str) -> bool:
    return session.turn is not None and session.is_running and session.turn.trace == trace


def _ending(session: Session, trace: str) -> _Ending:
    """The events that cancel a trace in one session: each open call gets a fault, so that every call has an outcome."""
    open_calls = session.open if _is_at(session, trace) else {}
    new: list[Event] = [events.Returned(call=call, outcome=CANCELLED) for call in open_calls]
    new.append(events.Cancelled(trace=trace, by="user"))
    return _Ending(session, new, extended(session, new, clock.now()))
