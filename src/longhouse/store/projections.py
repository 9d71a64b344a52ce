"""Cursors of projections to other systems, one per session: `head > cursor` is work. There is no global cursor."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, get_args

import msgspec

from longhouse.journal.events import Side
from longhouse.journal.session import EPHEMERAL_LABEL
from longhouse.store.database import Database
from longhouse.store.rows import columns


class ProjectionRow(msgspec.Struct, frozen=True):
    """A session as projections need it."""

    id: str
    owner: str
    conversation_id: str
    side: str
    agent: str
    label: str
    head: int
    user: str | None = None

    @property
    def is_ephemeral(self) -> bool:
        """Does the caller keep its history? Then no projection stores it."""
        return re.match(EPHEMERAL_LABEL, self.label) is not None


class HistoryOf(msgspec.Struct, frozen=True):
    """Whose history in a conversation: a sub-agent's, under its label, or that of the user with the root agents."""

    agent: str | None = None
    label: str = ""


COLUMNS: Final = 's.id, s.owner, s.conversation_id, s.side, s.agent, s.label, s.head, s."user"'

STAYS_HERE: Final = "ledger"
"""The projection in this database: it includes sessions from capsules too."""

# Ordered by id, so that a large rebuild continues where its last page ended.
BEHIND: Final = f"""
    SELECT {COLUMNS}
    FROM sessions s LEFT JOIN projection_cursors c ON c.projection = :projection AND c.session_id = s.id
    WHERE s.id > :after AND s.side = ANY(:sides) AND (c.head IS NULL OR s.head > c.head OR c.epoch <> :epoch)
      AND (s.capsule IS NULL OR :projection = '{STAYS_HERE}')
      AND (:since::timestamptz IS NULL OR s.updated_at > :since)
    ORDER BY s.id LIMIT :limit
"""
ROWS: Final = f"SELECT {COLUMNS} FROM sessions s WHERE s.id = ANY(:ids) AND s.side = ANY(:sides)"
OF_CONVERSATIONS: Final = f"""
    SELECT {COLUMNS}
    FROM sessions s
    JOIN unnest(:owners::text[], :conversations::text[], :agents::text[]) AS asked (owner, conversation_id, agent)
      ON s.owner = asked.owner AND s.conversation_id = asked.conversation_id
     AND s.side = CASE WHEN asked.agent IS NULL THEN 'root' ELSE 'sub' END AND s.agent = COALESCE(asked.agent, s.agent)
    ORDER BY s.created_at, s.id
"""
# Of a session that was erased meanwhile nothing stays: whoever erases it waits for the lock, or is waited for.
SAVE: Final = """
    INSERT INTO projection_cursors (projection, session_id, epoch, head)
    SELECT :projection, there.id, :epoch, saved.head
    FROM (SELECT id FROM sessions WHERE id = ANY(:ids::text[]) ORDER BY id FOR KEY SHARE) there
    JOIN unnest(:ids::text[], :heads::bigint[]) AS saved (id, head) ON saved.id = there.id
    ON CONFLICT (projection, session_id) DO UPDATE SET epoch = excluded.epoch, head = excluded.head
    WHERE projection_cursors.head < excluded.head OR projection_cursors.epoch <> excluded.epoch
"""
SAVE_PLACE: Final = """
    INSERT INTO projection_cursors AS c (projection, session_id, epoch, head) VALUES (:projection, :place, '', :nth)
    ON CONFLICT (projection, session_id) DO UPDATE SET head = excluded.head WHERE c.head < excluded.head
"""
CURSOR: Final = "SELECT head FROM projection_cursors WHERE projection = :projection AND session_id = :session"
CLAIM: Final = """
    INSERT INTO projection_cursors (projection, session_id, epoch, head)
    SELECT :projection, there.id, '', :head FROM (SELECT id FROM sessions WHERE id = :session FOR KEY SHARE) there
    ON CONFLICT (projection, session_id) DO UPDATE SET head = excluded.head WHERE projection_cursors.head = :before
    RETURNING head
"""
TIMES: Final = """
    SELECT session_id, seq, at FROM journal WHERE session_id = ANY(:ids) AND kind IN ('Started', 'Replied')
"""
# A turn that is cancelled while it waits in the queue has not started. A title is given after the end of its turn.
ENDED: Final = """
    SELECT e.session_id, began.seq AS began, e.seq AS ended
    FROM unnest(:ids::text[], :heads::bigint[]) AS asked (id, head)
    LEFT JOIN projection_cursors c ON c.projection = :projection AND c.session_id = asked.id
    JOIN journal e ON e.session_id = asked.id AND e.seq > COALESCE(c.head, 0) AND e.seq <= asked.head
    CROSS JOIN LATERAL (
        SELECT seq FROM journal
        WHERE session_id = e.session_id AND seq < e.seq AND kind = 'Started' AND trace_id = e.trace_id
        ORDER BY seq DESC LIMIT 1
    ) began
    WHERE (e.kind IN ('Finished', 'Failed', 'Cancelled') OR e.kind = 'Spent' AND e.body ->> 'title' IS NOT NULL)
      AND e.at > :since
    ORDER BY e.session_id, e.seq
"""
MISSED: Final = """
    SELECT count(*) FROM sessions s
    LEFT JOIN projection_cursors c ON c.projection = :projection AND c.session_id = s.id
    JOIN journal e ON e.session_id = s.id AND e.seq > COALESCE(c.head, 0)
    WHERE s.updated_at > :since AND s.capsule IS NULL AND (c.head IS NULL OR s.head > c.head)
      AND e.kind IN ('Finished', 'Failed', 'Cancelled') AND e.at > :since AND e.at <= :until
"""
IDENTITY: Final = "SELECT id::text FROM identity"
MET: Final = """
    SELECT asked.nth
    FROM unnest(:agent::text[], :label::text[]) WITH ORDINALITY AS asked (agent, label, nth)
    WHERE EXISTS (
        SELECT FROM sessions s
        WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.label !~ :ephemeral
          AND CASE WHEN asked.agent IS NULL THEN s.side = 'root'
              ELSE s.side = 'sub' AND s.agent = asked.agent AND s.label = asked.label END
    ) OR EXISTS (SELECT FROM forgotten WHERE owner = :owner AND conversation_id = :conversation)
"""


async def behind(
    db: Database,
    projection: str,
    *,
    sides: Sequence[Side],
    epoch: str,
    after: str,
    limit: int,
    since: datetime | None = None,
) -> Sequence[ProjectionRow]:
    """Sessions with new events since they were projected, or never projected; only ids greater than `after`. `since`:
    none whose last event is older."""
    where = {"projection": projection, "sides": sides, "epoch": epoch, "since": since}
    return await db.read(ProjectionRow, BEHIND, **where, after=after, limit=limit)


async def ended_turns(
    db: Database, projection: str, rows: Sequence[ProjectionRow], since: datetime
) -> list[tuple[str, int, int]]:
    """The turns of these sessions that have ended and are not projected: session, and the seq of start and end; or of
    the title that followed."""
    ids, heads = [row.id for row in rows], [row.head for row in rows]
    return [tuple(row) for row in await db.rows(ENDED, projection=projection, ids=ids, heads=heads, since=since)]


async def missed(db: Database, projection: str, since: datetime, until: datetime) -> int:
    """How many turns ended in this time and were not projected."""
    return int(await db.value(MISSED, projection=projection, since=since, until=until))


async def rows(db: Database, ids: Sequence[str], *, sides: Sequence[Side] = get_args(Side)) -> Sequence[ProjectionRow]:
    return await db.read(ProjectionRow, ROWS, ids=ids, sides=sides)


async def of_conversations(db: Database, asked: Sequence[tuple[str, str, str | None]]) -> Sequence[ProjectionRow]:
    """The sessions of these (owner, conversation, sub-agent), oldest first, with any label; root sessions for None."""
    owners, conversations, agents = ([one[nth] for one in asked] for nth in range(3))
    asked_for = {"owners": owners, "conversations": conversations, "agents": agents}
    return await db.read(ProjectionRow, OF_CONVERSATIONS, **asked_for)


async def save(db: Database, projection: str, *, epoch: str, heads: Mapping[str, int]) -> None:
    """Stores the heads up to which these sessions were projected."""
    # Sorted, so that two concurrent saves lock the rows in the same order.
    ids = sorted(heads)
    await db.run(SAVE, projection=projection, epoch=epoch, ids=ids, heads=[heads[one] for one in ids])


async def save_place(db: Database, projection: str, place: str, nth: int) -> None:
    """Stores the erasure up to which this place has none of what was erased; it is told as a session is."""
    await db.run(SAVE_PLACE, projection=projection, place=place, nth=nth)


async def cursor(db: Database, projection: str, session_id: str) -> int:
    return int(await db.value(CURSOR, projection=projection, session=session_id) or 0)


async def claim(db: Database, projection: str, session_id: str, *, before: int, head: int) -> bool:
    """Claims the events between `before` and `head` for this process; False if another process has them, or if the
    session was erased."""
    return await db.value(CLAIM, projection=projection, session=session_id, before=before, head=head) is not None


async def times(db: Database, ids: Sequence[str]) -> dict[tuple[str, int], datetime]:
    """(session, seq) -> the time at which that entry of the session's transcript was written."""
    return {(session_id, seq): at for session_id, seq, at in await db.rows(TIMES, ids=ids)}


async def identity(db: Database) -> str:
    """The id of this database, by which systems that store projections of it tell it from others."""
    return str(await db.value(IDENTITY))


async def met(db: Database, owner: str, conversation_id: str, asked: Sequence[HistoryOf]) -> set[HistoryOf]:
    """Those of which the conversation has a session already; erased sessions count for all of them."""
    found = await db.column(
        MET,
        owner=owner,
        conversation=conversation_id,
        ephemeral=EPHEMERAL_LABEL,
        **columns(asked, "agent", "label"),
    )
    return {asked[nth - 1] for nth in found}
