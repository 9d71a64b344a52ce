"""Cancels a trace: in every session that works on it, in one transaction."""

from collections.abc import Mapping
from typing import Final

import msgspec

from longhouse import clock
from longhouse.journal import events
from longhouse.journal.events import Event, Fault
from longhouse.journal.fold import extended
from longhouse.journal.session import Open, Session, ended_turn
from longhouse.store import journals
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import tree
from longhouse.store.delegation.delegations import LOCK, LOCK_ROWS, return_outcome
from longhouse.store.delegation.results import DelegationResult
from longhouse.store.delegation.tree import Root

DROP: Final = """
    UPDATE delegations SET outcome = :outcome WHERE child = :child AND trace = :trace AND outcome IS NULL
    RETURNING parent, call, trace
"""
NO_LONGER: Final = "DELETE FROM awaits WHERE parent = ANY(:parents)"

CANCELLED: Final = Fault(code="cancelled", message="the turn was cancelled")


class CancelResult(msgspec.Struct, frozen=True):
    """The effects of a cancel."""

    top: Session
    """The top session after the cancel."""
    appended: list[tuple[str, int]]
    """The sessions that events were appended to, with their new heads."""
    fences: dict[str, int]
    """The new fences of the sessions whose turn has ended: leases with a smaller fence are lost."""
    ended: list[Session]
    """Those whose running turn was cancelled."""


async def cancel(db: Database, top: Session, trace: str, *, by: str) -> CancelResult:
    """Cancels a trace in a session and in the sub-agents that work on it; those at work on other traces continue.

    Long journals are folded before any lock is taken. Once all rows are locked no head moves, and only the events
    appended since are folded.
    """
    roots = [Root(top.id, top.id, trace)]
    nodes = await tree.nodes(db, roots, open_only=True)
    folded = {node.id: await journals.load(db, node.id, node.head) for node in nodes} | {top.id: top}

    async def write(tx: Transaction) -> CancelResult:
        await tx.run(LOCK, owner=top.owner, conversation=top.conversation)  # from here on no session can join the tree
        ids = sorted({top.id, *(node.id for node in await tree.nodes(tx, roots, open_only=True))})
        kept = DelegationResult(outcome=CANCELLED).encoded
        dropped = [
            row for session_id in ids for row in await tx.rows(DROP, child=session_id, trace=trace, outcome=kept)
        ]
        outside = {row["parent"] for row in dropped}.difference(ids)
        heads = dict(await tx.rows(LOCK_ROWS, ids=sorted({*ids, *outside})))
        appended: list[tuple[str, int]] = []
        fences: dict[str, int] = {}
        caught_up = [await _caught_up(tx, folded, one, heads[one]) for one in ids]
        after = {one.id: await _end(tx, one, trace, appended, fences, by=by) for one in caught_up}
        # The calls of ended sessions have faults already and wait for nothing. Sessions that continue may wait for a
        # dropped delegation, and get its outcome.
        await tx.run(NO_LONGER, parents=list(fences))
        others = [row for row in dropped if row["parent"] not in fences]
        appended.extend(await return_outcome(tx, others, DelegationResult(outcome=CANCELLED)))
        ended = [after[one.id] for one in caught_up if ended_turn(one, after[one.id])]
        return CancelResult(after[top.id], appended, fences, ended)

    return await db.together(write)


async def _caught_up(tx: Transaction, folded: Mapping[str, Session], session_id: str, head: int) -> Session:
    session = folded.get(session_id)
    if session is None:
        return await journals.load(tx, session_id, head)
    return session if session.head == head else await journals.catch_up(tx, session)


async def _end(
    tx: Transaction, session: Session, trace: str, appended: list[tuple[str, int]], fences: dict[str, int], *, by: str
) -> Session:
    """Cancels a trace in one session: each open call gets a fault, so that every call has an outcome."""
    is_at_work = session.turn is not None and session.is_running and session.turn.trace == trace
    if not is_at_work and all(waiting.prompt.trace != trace for waiting in session.queue):
        return session
    new: list[Event] = [_ended(call, by) for call in session.open.values()] if is_at_work else []
    new.append(events.Cancelled(trace=trace, by=by))
    after = extended(session, new, clock.now())
    if after.is_running:
        # It works on another trace: the holder keeps its lease, and a running step is not restarted.
        placed = await journals.add(tx, session.id, new, trace=trace)
    else:
        ended = await journals.cancel(tx, session, new, after=after)
        assert ended is not None, "its row is locked"
        placed, fences[session.id] = ended, ended.fence
    appended.append((session.id, placed.seq))
    return after


def _ended(call: Open, by: str) -> Event:
    """The end of an open call; of a step that lost its workers, which is no call, the end of the question."""
    if call.is_step:
        return events.Decided(call=call.call, decision="give_up", by=by)
    return events.Returned(call=call.call, outcome=CANCELLED)
