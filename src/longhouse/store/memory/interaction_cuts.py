"""Cuts of the ledger: what is deleted or pruned leaves it, and no projection brings it back."""

from datetime import datetime
from typing import Any, Final

from longhouse.agents.requests import tokens
from longhouse.store import files
from longhouse.store.database import Executor, Transaction
from longhouse.store.lists.pages import Position
from longhouse.store.memory import interactions
from longhouse.store.memory.interactions import INVOLVES, WAIT, Key

_CUT: Final = f"""
    l.owner = :owner AND l.conversation_id = :conversation AND (:trace = '' OR l.trace_id = :trace)
    AND (:agent = '' OR {INVOLVES.format(agent=":agent")})
"""
# A cut that lies within a later one says nothing more.
ADD_CUT: Final = """
    WITH within AS (
        DELETE FROM interaction_cuts WHERE owner = :owner AND conversation_id = :conversation AND agent = :agent
        AND trace_id = :trace AND (:up_to::timestamptz IS NULL OR (up_to, up_to_id) <= (:up_to, :up_to_id))
    )
    INSERT INTO interaction_cuts (owner, conversation_id, agent, trace_id, up_to, up_to_id, heads)
    SELECT :owner, :conversation, :agent, :trace, :up_to, :up_to_id, jsonb_object_agg(s.id, s.head)
    FROM sessions s WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.side <> 'external'
    HAVING count(*) > 0
"""
_UP_TO: Final = (
    f"{_CUT} AND (:up_to::timestamptz IS NULL OR (l.timestamp, l.id) <= (:up_to::timestamptz, :up_to_id::text))"
)
DELETE: Final = f"""
    DELETE FROM ledger l WHERE {_UP_TO} AND (:agent IN ('', l.agent) OR l.agent = '')
    RETURNING l.id, l.session_id, l.agent, l.shown
"""
# What another agent's journal tells stays in the memory of that agent.
HIDE: Final = f"""
    UPDATE ledger l SET shown = false WHERE {_UP_TO} AND l.agent NOT IN ('', :agent) AND l.shown
    RETURNING l.id, l.session_id, l.agent, true AS shown
"""
# By their ids: whatever the journal has under one of them goes.
UNWRITE: Final = """
    DELETE FROM journal j USING journal_events e, unnest(:sessions::text[], :ids::text[]) AS gone (session_id, id)
    WHERE e.session_id = gone.session_id AND e.kind = 'Noted' AND e.body #>> '{interaction,id}' = gone.id
      AND j.session_id = e.session_id AND j.seq = e.seq
    RETURNING j.body_digest
"""
LOCK: Final = """
    SELECT FROM sessions WHERE owner = :owner AND conversation_id = :conversation ORDER BY id FOR UPDATE
"""
# The newest record that has to go: too old, past the number, or past the tokens, counted from the newest one.
PRUNED: Final = f"""
    SELECT timestamp, id FROM (
        SELECT l.timestamp, l.id, row_number() OVER newest AS nth,
               sum((octet_length(l.content) + {tokens.BYTES - 1}) / {tokens.BYTES}) OVER newest AS tokens
        FROM ledger l WHERE l.owner = :owner AND l.conversation_id = :conversation AND l.shown
        WINDOW newest AS (ORDER BY l.timestamp DESC, l.id DESC)
    ) l
    WHERE l.timestamp < :older_than OR l.nth > :max_count OR l.tokens > :max_tokens
    ORDER BY l.timestamp DESC, l.id DESC LIMIT 1
"""
# Turns that were deleted; a later summary of them was written without them.
CUT_TURNS: Final = """
    SELECT cut.seq FROM (
        SELECT j.seq, (
            SELECT max((c.heads ->> :session)::bigint) FROM interaction_cuts c
            WHERE c.owner = s.owner AND c.conversation_id = s.conversation_id AND c.agent IN ('', s.agent)
              AND c.trace_id IN ('', j.trace_id) AND (c.heads ->> :session)::bigint >= j.seq
              AND (c.up_to IS NULL OR j.at <= c.up_to)
        ) AS head
        FROM sessions s JOIN journal j ON j.session_id = s.id AND j.kind = 'Started' WHERE s.id = :session
    ) cut
    WHERE cut.head IS NOT NULL AND NOT EXISTS (
        SELECT FROM journal_events e WHERE e.session_id = :session AND e.kind = 'Condensed' AND e.seq > cut.head
        AND (e.body ->> 'upto')::bigint >= cut.seq
    )
"""


SESSIONS_CUT: Final = """
    SELECT id FROM sessions s WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.side <> 'external'
      AND s.capsule IS NULL AND EXISTS (
          SELECT FROM interaction_cuts c WHERE c.owner = s.owner AND c.conversation_id = s.conversation_id
            AND c.agent IN ('', s.agent) AND c.heads ? s.id
      ) ORDER BY id
"""


async def lock(tx: Transaction, owner: str, conversation: str) -> None:
    """Until the transaction ends, nothing is added to this conversation's part of the ledger, and no rebuild begins."""
    await tx.run(WAIT)
    await tx.rows(LOCK, owner=owner, conversation=conversation)


async def pruned(
    tx: Transaction,
    owner: str,
    conversation: str,
    *,
    older_than: datetime | None,
    max_count: int | None,
    max_tokens: int | None,
) -> Position | None:
    """The newest record that has to go."""
    limits = {"older_than": older_than, "max_count": max_count, "max_tokens": max_tokens}
    row = await tx.row(PRUNED, owner=owner, conversation=conversation, **limits)
    return tuple(row) if row else None


async def cut(
    tx: Transaction, owner: str, conversation: str, position: Position | None, *, agent: str = "", trace: str = ""
) -> list[Key]:
    """Deletes up to a position, None: everything; what was added from outside leaves its journal too.

    What a session has not told yet is never told.
    """
    where: dict[str, Any] = {"owner": owner, "conversation": conversation, "agent": agent, "trace": trace}
    where |= {"up_to": position and position[0], "up_to_id": position[1] if position else ""}
    gone = list(await tx.rows(DELETE, **where))
    if agent:
        gone += await tx.rows(HIDE, **where)
    if any(row["agent"] for row in gone) or await interactions.behind(tx, owner, conversation):
        await tx.run(ADD_CUT, **where)
    outside = [row for row in gone if not row["agent"]]
    if outside:
        bodies = await tx.column(
            UNWRITE, sessions=[row["session_id"] for row in outside], ids=[row["id"] for row in outside]
        )
        await files.drop_unused(tx, list(filter(None, bodies)))
    return [(row["session_id"], row["id"]) for row in gone if row["shown"]]


async def sessions_cut(tx: Transaction, owner: str, conversation: str) -> list[str]:
    """The sessions of which something was deleted."""
    return await tx.column(SESSIONS_CUT, owner=owner, conversation=conversation)


async def cut_turns(db: Executor, session_id: str) -> set[int]:
    """Where turns of a session started that were deleted."""
    return set(await db.column(CUT_TURNS, session=session_id))
