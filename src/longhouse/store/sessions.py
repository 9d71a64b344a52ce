"""Look-ups: sessions for lists, rests (points where a client can resume) by fingerprint, accepted requests by key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import asyncpg

from longhouse.store.database import Database


@dataclass(frozen=True, slots=True)
class SessionRow:
    """The row of a session in the table `sessions`."""

    id: str
    owner: str
    user: str | None
    conversation_id: str
    agent: str
    label: str
    version: int
    state: str
    trace_id: str | None
    task: str | None
    head: int
    parent: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SessionQuery:
    owner: str | None
    """None: all owners."""
    state: str | None = None
    template: str | None = None
    conversation_id: str | None = None
    parent: str | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Rested:
    """A session found by the fingerprint of one of its rests; `is_newest`: the session has no later rest."""

    session_id: str
    conversation_id: str
    is_newest: bool


@dataclass(frozen=True, slots=True)
class Turned:
    """The session, turn and event of an accepted request."""

    digest: str
    session_id: str
    trace_id: str
    """The trace of the turn that the client follows."""
    seq: int


# A task may be as long as a request: a page of two hundred whole tasks could be gigabytes.
COLUMNS: Final = """
    id, owner, "user", conversation_id, agent, label, version, state, trace_id, left(task, 1000) AS task, head, parent,
    created_at, updated_at
"""

SESSION: Final = f"SELECT {COLUMNS} FROM sessions WHERE id = $1 AND owner = $2"

LIST: Final = f"""
    SELECT {COLUMNS} FROM sessions
    WHERE owner = $1
      AND ($2::text IS NULL OR state = $2)
      AND ($3::text IS NULL OR agent = $3)
      AND ($4::text IS NULL OR conversation_id = $4)
      AND ($5::text IS NULL OR parent = $5)
      AND ($6::timestamptz IS NULL OR created_at >= $6)
      AND ($7::timestamptz IS NULL OR created_at < $7)
      AND ($8::timestamptz IS NULL OR (created_at, id) < ($8, $9))
    ORDER BY created_at DESC, id DESC LIMIT $10
"""
# A separate statement: one statement with `OR` for both cases would get a plan that uses no index.
LIST_ALL: Final = LIST.replace("owner = $1", "$1::text IS NULL")

RESTED: Final = """
    SELECT r.session_id, s.conversation_id,
           r.seq = (SELECT max(seq) FROM rests WHERE session_id = r.session_id) AS is_newest
    FROM rests r JOIN sessions s ON s.id = r.session_id
    WHERE r.fingerprint = $1 AND s.owner = $2 AND s.agent = $3
      AND ($4::text IS NULL OR s.conversation_id = $4)
    ORDER BY is_newest DESC, s.updated_at DESC, r.seq DESC LIMIT 1
"""

MARK: Final = "INSERT INTO rests (fingerprint, session_id, seq) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"

ROOT: Final = """
    SELECT id FROM sessions
    WHERE owner = $1 AND conversation_id = $2 AND side = 'root' AND agent = $3 AND label = ''
"""

AGENT_OF: Final = """
    SELECT s.agent FROM sessions s
    WHERE s.owner = $1 AND s.side = 'root' AND (
        s.conversation_id = $2 OR s.id IN (SELECT session_id FROM rests WHERE fingerprint = $3)
    )
    ORDER BY s.updated_at DESC LIMIT 1
"""

BY_KEY: Final = """
    SELECT digest, session_id, trace_id, seq FROM requests
    WHERE owner = $1 AND key = $2 AND at > now() - interval '24 hours'
"""
BY_DIGEST: Final = """
    SELECT digest, session_id, trace_id, seq FROM requests
    WHERE owner = $1 AND digest = $2 AND at > now() - interval '10 minutes' ORDER BY at DESC LIMIT 1
"""
# An idempotency key may be used again after 24 hours, so the sweep deletes it before that.
FORGET_REQUESTS: Final = "DELETE FROM requests WHERE at < now() - interval '24 hours'"


async def session(db: Database, session_id: str, owner: str) -> SessionRow | None:
    if "\x00" in session_id:
        return None  # Postgres refuses NUL characters even in a look-up
    row = await db.row(SESSION, session_id, owner)
    return _row(row) if row else None


async def sessions(
    db: Database, filters: SessionQuery, *, before: tuple[datetime, str] | None, limit: int
) -> Sequence[SessionRow]:
    """A page of sessions, newest first; `before` is the last row of the previous page."""
    rows = await db.rows(
        LIST if filters.owner is not None else LIST_ALL,
        filters.owner,
        filters.state,
        filters.template,
        filters.conversation_id,
        filters.parent,
        filters.since,
        filters.until,
        before[0] if before else None,
        before[1] if before else None,
        limit,
    )
    return [_row(row) for row in rows]


async def rested(
    db: Database, fingerprint: str, *, owner: str, agent: str, conversation_id: str | None
) -> Rested | None:
    """The session with a rest of this fingerprint; of several, one where it is the newest rest comes first."""
    row = await db.row(RESTED, fingerprint, owner, agent, conversation_id)
    return Rested(row["session_id"], row["conversation_id"], row["is_newest"]) if row else None


async def mark_rest(db: Database, fingerprint: str, session_id: str, seq: int) -> None:
    """Stores one more fingerprint for a rest."""
    await db.run(MARK, fingerprint, session_id, seq)


async def root(db: Database, *, owner: str, conversation_id: str, agent: str) -> str | None:
    """The id of the conversation's root session with this agent, without a label; None if there is none."""
    found = await db.value(ROOT, owner, conversation_id, agent)
    return str(found) if found else None


async def agent_of(db: Database, owner: str, *, conversation: str | None, fingerprint: str | None) -> str | None:
    """The agent that answered last in this conversation, or in the one with a rest of this fingerprint."""
    found: str | None = await db.value(AGENT_OF, owner, conversation, fingerprint)
    return found


async def request_by_key(db: Database, owner: str, key: str) -> Turned | None:
    row = await db.row(BY_KEY, owner, key)
    return Turned(*row) if row else None


async def request_by_digest(db: Database, owner: str, digest: str) -> Turned | None:
    row = await db.row(BY_DIGEST, owner, digest)
    return Turned(*row) if row else None


async def forget_requests(db: Database) -> None:
    await db.run(FORGET_REQUESTS)


def _row(row: asyncpg.Record) -> SessionRow:
    return SessionRow(*row)
