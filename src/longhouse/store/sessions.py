"""Look-ups: sessions for lists, rests (points where a client can resume) by fingerprint, accepted requests by key."""

from datetime import datetime
from typing import Final

import msgspec

from longhouse.journal.events import Side
from longhouse.journal.session import EPHEMERAL
from longhouse.store.database import Database, Executor
from longhouse.store.lists.pages import Position, page


class SessionRow(msgspec.Struct, frozen=True):
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


class Rested(msgspec.Struct, frozen=True):
    """A session found by the fingerprint of one of its rests; `is_newest`: the session has no later rest."""

    session_id: str
    conversation_id: str
    is_newest: bool


class AcceptedRequest(msgspec.Struct, frozen=True):
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

SESSION: Final = f"SELECT {COLUMNS} FROM sessions WHERE id = :session AND owner = :owner AND side <> 'external'"

OWNER: Final = "SELECT owner FROM sessions WHERE id = :session AND side <> 'external'"
AGENT: Final = "SELECT agent FROM sessions WHERE id = :session AND side <> 'external'"
BEGINNING: Final = """
    SELECT id FROM sessions
    WHERE side <> 'external' AND (starts_with(id, :start) OR starts_with(substring(id FROM '[^_]*$'), :start))
    ORDER BY id = :start DESC, created_at DESC LIMIT 5
"""

FILTERS: Final = {
    "side": "side <> :side",
    "owner": "owner = :owner",
    "state": "state = :state",
    "template": "agent = :template",
    "conversation_id": "conversation_id = :conversation_id",
    "parent": "parent = :parent",
    "schedule": "id IN (SELECT session_id FROM schedule_runs WHERE schedule_id = :schedule)",
    "since": "created_at >= :since",
    "until": "created_at < :until",
    # These two see what was counted: `session_lists` counts first.
    "q": """(strpos(lower(id), :q) > 0 OR EXISTS (
        SELECT FROM session_counters c WHERE c.session_id = sessions.id AND strpos(c.found_by, :q) > 0
    ))""",
    "tool": """EXISTS (
        SELECT FROM session_counters c WHERE c.session_id = sessions.id AND :tool = ANY(c.failed_tools)
    )""",
}

# Starts at the fingerprint, which few rests share: a join would start at the sessions of the agent, and read them all.
# A branch has the same fingerprints as its origin: a client that does not name its conversation never meant the branch.
RESTED: Final = """
    SELECT r.session_id, s.conversation_id,
           r.seq = (SELECT max(seq) FROM rests WHERE session_id = r.session_id) AS is_newest
    FROM rests r CROSS JOIN LATERAL (SELECT * FROM sessions WHERE id = r.session_id LIMIT 1) s
    WHERE r.fingerprint = :fingerprint AND s.owner = :owner AND s.agent = :agent
      AND CASE WHEN :conversation::text IS NULL THEN s.family IS NULL ELSE s.conversation_id = :conversation END
    ORDER BY is_newest DESC, s.updated_at DESC, r.seq DESC LIMIT 1
"""

MARK: Final = """
    INSERT INTO rests (fingerprint, session_id, seq)
    SELECT :fingerprint, there.id, :seq FROM (SELECT id FROM sessions WHERE id = :session FOR KEY SHARE) there
    ON CONFLICT DO NOTHING
"""

# In the conversation that a fork has opened, the branch stands for the session without a label.
FIND: Final = """
    SELECT id FROM sessions
    WHERE owner = :owner AND conversation_id = :conversation AND side = :side AND agent = :agent
      AND (label = :label OR :label = '' AND side = 'root' AND starts_with(label, 'branch-') AND family IS NOT NULL)
    ORDER BY label = :label DESC, created_at LIMIT 1
"""
# The newest session of a conversation that was opened for one request with the caller's memory, and waits for a person.
WAITING_ONCE: Final = f"""
    SELECT id FROM sessions
    WHERE owner = :owner AND conversation_id = :conversation AND side = 'root' AND agent = :agent
      AND starts_with(label, '{EPHEMERAL}') AND state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL')
    ORDER BY created_at DESC LIMIT 1
"""
RELATIVES: Final = """
    SELECT s.id FROM sessions s WHERE s.owner = :owner AND s.conversation_id <> :conversation AND s.side <> 'external'
      AND (s.family = :family OR s.conversation_id = :family)
"""
FAMILY: Final = "SELECT COALESCE(family, conversation_id) FROM sessions WHERE id = :session"

AGENT_OF: Final = """
    SELECT s.agent FROM sessions s
    WHERE s.owner = :owner AND s.side = 'root' AND (
        s.conversation_id = :conversation OR s.id IN (SELECT session_id FROM rests WHERE fingerprint = :fingerprint)
    )
    ORDER BY s.updated_at DESC LIMIT 1
"""

AGENTS_IN: Final = """
    SELECT agent FROM sessions WHERE owner = :owner AND conversation_id = :conversation AND side = 'root'
    UNION SELECT split_part(template, '@', 1) FROM schedules WHERE owner = :owner AND conversation_id = :conversation
    ORDER BY agent
"""

BY_KEY: Final = """
    SELECT digest, session_id, trace_id, seq FROM requests
    WHERE owner = :owner AND key = :key AND at > now() - interval '24 hours'
"""
BY_DIGEST: Final = """
    SELECT digest, session_id, trace_id, seq FROM requests
    WHERE owner = :owner AND digest = :digest AND at > now() - interval '10 minutes' ORDER BY at DESC LIMIT 1
"""
# An idempotency key may be used again after 24 hours, so the sweep deletes it before that.
FORGET_REQUESTS: Final = "DELETE FROM requests WHERE at < now() - interval '24 hours'"


async def session(db: Database, session_id: str, owner: str) -> SessionRow | None:
    if "\x00" in session_id:
        return None  # Postgres refuses NUL characters even in a look-up
    return await db.read_one(SessionRow, SESSION, session=session_id, owner=owner)


async def owner_of(db: Database, session_id: str) -> str | None:
    """The owner of a session; None if there is no such session."""
    return await db.read_one(str, OWNER, session=session_id) if "\x00" not in session_id else None


async def agent(db: Database, session_id: str) -> str | None:
    """The agent of a session; None if there is no such session."""
    return await db.read_one(str, AGENT, session=session_id)


async def beginning_with(db: Database, start: str) -> list[str]:
    """The session with this id, or the newest few whose id begins so, or the part of it behind the agent's name."""
    if not start.isprintable():
        return []  # Postgres refuses some of them even in a look-up, and no id has them
    found = await db.column(BEGINNING, start=start)
    return [start] if start in found else found


async def sessions(
    db: Database, *, owner: str | None, before: Position | None = None, limit: int, **filters: str | datetime | None
) -> list[SessionRow]:
    """A page of sessions, newest first; `filters` are those of FILTERS, and None leaves one out."""
    select, by = f"SELECT {COLUMNS} FROM sessions", "created_at, id"
    rows = await page(db, select, by=by, before=before, limit=limit, conditions=FILTERS, owner=owner,
                      side="external", **filters)  # fmt: skip
    return [SessionRow(*row) for row in rows]


async def rested(
    db: Database, fingerprint: str, *, owner: str, agent: str, conversation_id: str | None
) -> Rested | None:
    """The session with a rest of this fingerprint; of several, one where it is the newest rest comes first."""
    return await db.read_one(
        Rested, RESTED, fingerprint=fingerprint, owner=owner, agent=agent, conversation=conversation_id
    )


async def mark_rest(db: Database, fingerprint: str, session_id: str, seq: int) -> None:
    """Stores one more fingerprint for a rest."""
    await db.run(MARK, fingerprint=fingerprint, session=session_id, seq=seq)


async def find(
    db: Executor, *, owner: str, conversation: str, agent: str, side: Side = "root", label: str = ""
) -> str | None:
    """The id of the conversation's session with this agent; None if there is none."""
    where = {"owner": owner, "conversation": conversation, "side": side}
    return await db.read_one(str, FIND, **where, agent=agent, label=label)


async def waiting_once(db: Executor, owner: str, conversation: str, agent: str) -> str | None:
    """The session that an earlier request with its own memory has left waiting for a person in this conversation."""
    return await db.read_one(str, WAITING_ONCE, owner=owner, conversation=conversation, agent=agent)


async def relatives(db: Executor, session_id: str, *, owner: str, conversation: str) -> list[str]:
    """The sessions of other branches of the same conversation: what they say is not remembered here."""
    family = await db.value(FAMILY, session=session_id)
    if family is None:
        return []
    return await db.column(RELATIVES, owner=owner, conversation=conversation, family=family)


async def agent_of(db: Database, owner: str, *, conversation: str | None, fingerprint: str | None) -> str | None:
    """The agent that answered last in this conversation, or in the one with a rest of this fingerprint."""
    return await db.read_one(str, AGENT_OF, owner=owner, conversation=conversation, fingerprint=fingerprint)


async def agents_in(db: Database, owner: str, conversation: str) -> list[str]:
    """The agents that clients, or schedules, talk to in this conversation."""
    return await db.column(AGENTS_IN, owner=owner, conversation=conversation)


async def request_by_key(db: Database, owner: str, key: str) -> AcceptedRequest | None:
    return await db.read_one(AcceptedRequest, BY_KEY, owner=owner, key=key)


async def request_by_digest(db: Database, owner: str, digest: str) -> AcceptedRequest | None:
    return await db.read_one(AcceptedRequest, BY_DIGEST, owner=owner, digest=digest)


async def forget_requests(db: Database) -> None:
    await db.run(FORGET_REQUESTS)
