"""Who is beneath whom: the agents that a trace has reached from a session, and those that it waits for."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Final

from longhouse.journal.events import Recorded
from longhouse.journal.session import Session
from longhouse.store import journals
from longhouse.store.database import Database

# Every session that this trace has reached from here, itself first; with $3, only those still at it. Who has ended may
# have left others at work, so the way leads through everybody; agents may have called each other in turn, so it is
# bounded by the depth at which nobody calls anybody any more.
TREE: Final = """
    WITH RECURSIVE tree (id, depth) AS (
        SELECT $1::text, 0
        UNION
        SELECT d.child, tree.depth + 1 FROM tree JOIN delegations d ON d.parent = tree.id
        WHERE d.trace = $2 AND tree.depth < 33
    )
    SELECT s.id, s.agent, s.label, s.state, s.head, s.due, s.wake_at, s.holder, s.parent, min(tree.depth) AS depth
    FROM tree JOIN sessions s ON s.id = tree.id
    WHERE NOT $3 OR s.id = $1 OR EXISTS (
        SELECT FROM delegations d WHERE d.child = s.id AND d.trace = $2 AND d.outcome IS NULL
    )
    GROUP BY s.id ORDER BY depth, s.created_at, s.id
"""
# The traces at whose end a session waits: its own, and those of earlier turns whose outcome it collects.
AWAITED: Final = """
    SELECT DISTINCT d.child, d.trace FROM awaits a JOIN delegations d ON d.parent = a.parent AND d.call = a.awaited
    WHERE a.parent = $1 AND d.trace <> $2 AND d.outcome IS NULL
"""
# The traces that went through a session and in which somebody is still at work, in the order in which they came.
LEFT_AT_WORK: Final = """
    SELECT d.trace FROM sessions s JOIN delegations d ON d.parent = s.id
    WHERE s.owner = $2 AND s.conversation_id = $3 AND d.outcome IS NULL
      AND EXISTS (SELECT FROM delegations own WHERE own.parent = $1 AND own.trace = d.trace)
    GROUP BY d.trace ORDER BY min(d.at), d.trace
"""

# One look at several trees, so that no journal is seen further than what it has followed from in another.
REACHED: Final = """
    WITH RECURSIVE tree (id, trace, depth) AS (
        SELECT id, trace, depth FROM unnest($1::text[], $2::text[], $3::int[]) AS roots (id, trace, depth)
        UNION
        SELECT d.child, d.trace, tree.depth + 1
        FROM tree JOIN delegations d ON d.parent = tree.id AND d.trace = tree.trace
        WHERE tree.depth < 33
    )
    SELECT s.id, s.agent, s.head, tree.trace, min(tree.depth) AS depth
    FROM tree JOIN sessions s ON s.id = tree.id
    GROUP BY s.id, tree.trace ORDER BY depth, s.created_at, s.id
"""
READ: Final = """
    SELECT j.session_id, j.seq, j.at, j.trace_id, j.worker, j.fence, j.body, f.content
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS span (session_id, trace, after, upto)
    JOIN journal j ON j.session_id = span.session_id AND j.trace_id = span.trace
        AND j.seq > span.after AND j.seq <= span.upto
    LEFT JOIN files f ON f.digest = j.body_digest
    ORDER BY j.session_id, j.seq
"""
HEADS: Final = "SELECT id, head FROM sessions WHERE owner = $1 AND conversation_id = $2 AND side = 'sub'"
HEADS_AT: Final = """
    SELECT s.id, last.seq AS head FROM sessions s CROSS JOIN LATERAL (
        SELECT j.seq FROM journal j WHERE j.session_id = s.id AND j.at <= $3 ORDER BY j.seq DESC LIMIT 1
    ) AS last
    WHERE s.owner = $1 AND s.conversation_id = $2 AND s.side = 'sub'
"""
# Where a call with the id $4 was put to a person and has its outcome or its decision: in the session $1, in whichever
# turn, and in what the trace $2 has reached from it, or collects by the handles $3.
OVER: Final = """
    WITH RECURSIVE roots (id, trace) AS (
        SELECT $1::text, $2::text UNION SELECT child, trace FROM delegations WHERE parent = $1 AND call = ANY($3)
    ), tree (id, trace, depth) AS (
        SELECT id, trace, 0 FROM roots
        UNION
        SELECT d.child, d.trace, tree.depth + 1
        FROM tree JOIN delegations d ON d.parent = tree.id AND d.trace = tree.trace
        WHERE tree.depth < 33
    ), put (id, agent, label) AS (
        SELECT DISTINCT s.id, s.agent, s.label FROM tree JOIN sessions s ON s.id = tree.id
        JOIN journal_events e ON e.session_id = s.id AND (e.trace_id = tree.trace OR s.id = $1)
        WHERE e.call_id = $4 AND (
            e.kind = 'Decided'
            OR (e.kind = 'Called' AND (e.body->>'approve_by' IS NOT NULL OR e.body->>'call_kind' = 'ask'))
            OR (e.kind = 'Called' AND e.body->>'effect' = 'once' AND EXISTS (
                SELECT FROM journal lost WHERE lost.session_id = s.id AND lost.kind = 'Resumed' AND lost.seq > e.seq
            ))
        )
    )
    SELECT put.id, put.agent, put.label FROM put
    WHERE EXISTS (SELECT FROM journal r WHERE r.session_id = put.id AND r.call_id = $4 AND r.kind = 'Returned')
       OR 'unknown' <> (
            SELECT d.body->>'decision' FROM journal_events d
            WHERE d.session_id = put.id AND d.call_id = $4 AND d.kind = 'Decided' ORDER BY d.seq DESC LIMIT 1
       )
"""
# A person's word on the call $4, here or of any agent beneath, or of those with the name $5, which may have a label; a
# long one lies in `files`, and its body says nothing.
ANSWERED: Final = """
    SELECT EXISTS (
        SELECT FROM sessions s JOIN journal j ON j.session_id = s.id
        WHERE (s.id = $1 OR (s.owner = $2 AND s.conversation_id = $3 AND s.side = 'sub'))
          AND j.call_id = $4 AND ($5::text IS NULL OR $5 IN (s.agent, s.agent || ':' || s.label))
          AND ((j.kind = 'Decided' AND j.body->>'decision' <> 'unknown')
               OR (j.kind = 'Returned' AND (j.body->>'by' = 'user' OR j.body_digest IS NOT NULL)))
    )
"""
# What an earlier turn has begun by the call $2; it was told of up to the end of the last turn that made one of $3.
BEGUN: Final = """
    SELECT d.child, d.trace, (
        SELECT max(ended.at) FROM journal r CROSS JOIN LATERAL (
            SELECT j.at FROM journal j
            WHERE j.session_id = $1 AND j.seq > r.seq AND j.trace_id = r.trace_id
              AND j.kind IN ('Finished', 'Failed', 'Cancelled')
            ORDER BY j.seq LIMIT 1
        ) AS ended
        WHERE r.session_id = $1 AND r.kind = 'Returned' AND r.call_id = ANY($3) AND r.trace_id <> $4
    ) AS told
    FROM delegations d WHERE d.parent = $1 AND d.call = $2 AND d.trace <> $4
"""


@dataclass(frozen=True, slots=True)
class Node:
    """A session in the tree of a trace."""

    id: str
    agent: str
    label: str
    state: str
    head: int
    due: bool
    wake_at: datetime | None
    holder: str | None
    parent: str | None
    depth: int

    @property
    def rests(self) -> bool:
        return not self.due and self.wake_at is None


@dataclass(frozen=True, slots=True)
class Asker:
    """A session that has asked a person, by what it is called."""

    id: str
    agent: str
    label: str


@dataclass(frozen=True, slots=True)
class Root:
    """Where the tree of a trace is followed from."""

    id: str
    trace: str
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Reached:
    """A session that a trace has reached, and how far its journal goes."""

    id: str
    agent: str
    head: int
    trace: str
    depth: int


@dataclass(frozen=True, slots=True)
class Span:
    """What one trace added to a journal between two events of it."""

    session: str
    trace: str
    after: int
    upto: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A task that an earlier turn has given, and up to when its turns have told of it."""

    child: str
    trace: str
    told: datetime | None


async def tree(db: Database, session_id: str, trace: str, *, working: bool = False) -> list[Node]:
    """The sessions that this trace has reached from here, itself first; with `working`, those still at it."""
    return [Node(*row) for row in await db.rows(TREE, session_id, trace, working)]


async def left_at_work(db: Database, session: Session) -> list[str]:
    """The traces of a session, ended there or not, in which others are still at work."""
    rows = await db.rows(LEFT_AT_WORK, session.id, session.owner, session.conversation)
    return [row["trace"] for row in rows]


async def beneath(db: Database, session_id: str, trace: str) -> list[Node]:
    """Those at work beneath a session whose outcomes it may wait for, also where an earlier turn has asked them."""
    found = {node.id: node for node in await tree(db, session_id, trace, working=True)}
    for row in await db.rows(AWAITED, session_id, trace):
        found |= {node.id: node for node in await tree(db, row["child"], row["trace"], working=True)}
    return [node for node in found.values() if node.id != session_id]


async def reached(db: Database, roots: Sequence[Root]) -> list[Reached]:
    """All that these traces have reached from here, as it is at one moment; a session once for each of them."""
    ids, traces, depths = map(list, zip(*map(astuple, roots), strict=True))
    return [Reached(*row) for row in await db.rows(REACHED, ids, traces, depths)]


async def read(db: Database, spans: Sequence[Span]) -> dict[str, list[Recorded]]:
    """Session -> its events in these spans."""
    found: dict[str, list[Recorded]] = {}
    if spans:
        for row in await db.rows(READ, *map(list, zip(*map(astuple, spans), strict=True))):
            found.setdefault(row["session_id"], []).append(journals.recorded(row[1:]))
    return found


async def heads(db: Database, session: Session, at: datetime | None = None) -> dict[str, int]:
    """How far the journals go of all agents that others have called in this conversation; with `at`, went then."""
    asked = (HEADS_AT, session.owner, session.conversation, at) if at else (HEADS, session.owner, session.conversation)
    return {row["id"]: row["head"] for row in await db.rows(*asked)}


async def over(db: Database, session: Session, call: str, handles: Sequence[str]) -> list[Asker]:
    """The sessions in the tree of a turn where a person was asked about a call of this id, and is asked no more.

    `handles` are what the turn collects.
    """
    trace = session.turn.trace if session.turn else ""
    return [Asker(*row) for row in await db.rows(OVER, session.id, trace, list(handles), call)]


async def was_answered(db: Database, session: Session, name: str) -> bool:
    """Has a person answered or decided this call, of the session or of an agent beneath, by its id or its label?"""
    agent, _, call = name.rpartition("/")
    return bool(await db.value(ANSWERED, session.id, session.owner, session.conversation, call, agent or None))


async def begun(db: Database, session: Session, trace: str, handle: str, calls: Sequence[str]) -> Begun | None:
    """What the call `handle` has begun in another turn than that of `trace`; `calls` have told of it before."""
    row = await db.row(BEGUN, session.id, handle, [handle, *calls], trace)
    return Begun(*row) if row else None
