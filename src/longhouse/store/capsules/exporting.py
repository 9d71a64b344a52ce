"""Reads what a capsule is made of: a session, all that it has called, and their files."""

from collections.abc import Sequence
from typing import Final

import asyncpg
import msgspec

from longhouse.store import files
from longhouse.store.backups.archive import ArchiveWriter
from longhouse.store.capsules.format import DelegationLine, EventLine, SessionLine, line
from longhouse.store.database import Database
from longhouse.store.delegation import tree

PAGE: Final = 500

SESSIONS: Final = """
    SELECT id, owner, "user", conversation_id, side, agent, label, parent, head, state, version, trace_id, task,
           created_at, updated_at
    FROM sessions WHERE id = ANY(:ids) ORDER BY id
"""
EVENTS: Final = """
    SELECT seq, at, trace_id, worker, fence, body, body_digest FROM journal
    WHERE session_id = :session AND seq > :after AND seq <= :head ORDER BY seq LIMIT :limit
"""
DELEGATIONS: Final = """
    SELECT d.parent, d.call, d.child, d.prompt, d.trace, d.outcome, d.at,
           ARRAY(SELECT a.call FROM awaits a WHERE a.parent = d.parent AND a.awaited = d.call ORDER BY a.call) AS awaits
    FROM delegations d WHERE d.parent = ANY(:ids) AND d.child = ANY(:ids) ORDER BY d.parent, d.call
"""
FILE: Final = "SELECT media_type, content FROM files WHERE digest = :digest"


async def tree_of(db: Database, session_id: str) -> list[SessionLine]:
    """A session and all that it has called, up to heads that fit together; empty if it was erased meanwhile."""
    ids = sorted(await tree.ever_called(db, session_id))
    rows = [SessionLine(**dict(row)) for row in await db.rows(SESSIONS, ids=ids)]
    return rows if any(row.id == session_id for row in rows) else []


async def write_tree(db: Database, writer: ArchiveWriter, sessions: Sequence[SessionLine]) -> dict[str, str]:
    """Writes rows, events, delegations and files of a tree; returns the media types of the files."""
    writer.put("sessions.jsonl", b"".join(map(line, sessions)))
    with writer.part("journal.jsonl") as part:
        for session in sessions:
            seq = 0
            while page := await db.rows(EVENTS, session=session.id, after=seq, head=session.head, limit=PAGE):
                part.write(b"".join(line(_event(session.id, row)) for row in page))
                seq = page[-1]["seq"]
    heads = {one.id: one.head for one in sessions}
    rows = await db.rows(DELEGATIONS, ids=list(heads))
    known = [_delegation(row) for row in rows if row["prompt"] <= heads[row["child"]]]
    writer.put("delegations.jsonl", b"".join(map(line, known)))
    media_types = {}
    for digest, media_type in (await files.held(db, list(heads))).items():
        if kept := await db.row(FILE, digest=digest):
            media_types[digest] = media_type or kept["media_type"]
            writer.put(f"files/{digest}", kept["content"])
    return media_types


def _event(session_id: str, row: asyncpg.Record) -> EventLine:
    # A line end within JSON can only be a space between its parts.
    body = msgspec.Raw(row["body"].replace("\n", " ").encode())
    fields = {name: row[name] for name in ("seq", "at", "trace_id", "worker", "fence", "body_digest")}
    return EventLine(session_id=session_id, body=body, **fields)


def _delegation(row: asyncpg.Record) -> DelegationLine:
    outcome = msgspec.Raw((row["outcome"] or "null").replace("\n", " ").encode())
    return DelegationLine(**{**dict(row), "outcome": outcome, "awaits": tuple(row["awaits"])})
