"""The delegation tree: the recursive query that finds the sub-agent sessions of a session, and reads of their journals.

A delegation, its prompt and the head of the child's journal change in one transaction. So the sessions of one query,
read up to the heads from the same query, are a consistent cut: no event in it lacks its cause.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec

from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.session import Session, State
from longhouse.store import journals
from longhouse.store.database import Database, Executor
from longhouse.store.rows import columns

DEEPEST: Final = 33
"""Depths that are followed: no template allows one of more than 32."""

# The recursive query. The roots are sessions, each with the top session that it is read for; a root without a trace is
# followed in all its traces. With `awaited`, delegations of earlier turns that a top session awaits are followed too.
# Agents may call each other in turn: only the shortest way to a session matters, so the tree has depths and no paths.
# The step is made once from each session, however many tasks it was
# given there. Each parameter is in a sub-SELECT: a plan for its values is then no better than the generic plan, so that
# Postgres keeps the generic one. Planning costs more than the query. Rows are looked up in LATERAL sub-SELECTs, which
# the planner cannot turn into a join: it expects many sessions in a tree, and would read whole tables for a few.
TREE: Final = f"""
    WITH RECURSIVE roots (top, id, trace, depth) AS (
        SELECT * FROM unnest(
            (SELECT :top::text[]), (SELECT :id::text[]), (SELECT :trace::text[]), (SELECT :depth::int[])
        )
    ), tree (top, id, trace, depth, prompt, is_open) AS (
        (
            SELECT top, id, trace, depth, 0::bigint, false FROM roots
            UNION ALL
            SELECT r.top, d.child, d.trace, r.depth + 1, d.prompt, d.outcome IS NULL
            FROM roots r CROSS JOIN LATERAL (SELECT * FROM delegations WHERE parent = r.id OFFSET 0) d
            WHERE r.trace IS NULL
            UNION ALL
            SELECT d.parent, d.child, d.trace, 1, d.prompt, true
            FROM roots r JOIN awaits a ON a.parent = r.top
            JOIN delegations d ON d.parent = a.parent AND d.call = a.awaited
            WHERE (SELECT :awaited::bool) AND d.outcome IS NULL
        )
        UNION
        SELECT t.top, d.child, d.trace, t.depth + 1, d.prompt, d.outcome IS NULL
        FROM (SELECT DISTINCT top, id, trace, depth FROM tree WHERE depth < {DEEPEST}) t
        CROSS JOIN LATERAL (SELECT * FROM delegations WHERE parent = t.id AND trace = t.trace OFFSET 0) d
    )
"""
# With `open_only`, only through open delegations; of the sessions that were `seen`, only those whose head has grown.
NODES: Final = f"""
    {TREE}, reached AS (
        SELECT top, id, trace, min(depth) AS depth, min(prompt) AS first FROM tree
        WHERE is_open OR NOT (SELECT :open_only::bool) GROUP BY top, id, trace
    ), nodes AS (
        SELECT top, id, array_agg(trace) AS traces, array_agg(depth) AS depths, min(first) AS first, min(depth) AS depth
        FROM reached GROUP BY top, id
    )
    SELECT n.top, s.id, s.agent, s.label, s.state, s.head, s.due OR s.waits_for IS NOT NULL AS due, s.wake_at, s.holder,
           n.traces, n.depths, n.first
    FROM nodes n CROSS JOIN LATERAL (SELECT * FROM sessions WHERE id = n.id LIMIT 1) s
    LEFT JOIN unnest((SELECT :seen::text[]), (SELECT :seen_heads::bigint[])) AS seen (id, head) ON seen.id = n.id
    WHERE s.head > COALESCE(seen.head, 0) ORDER BY n.depth, s.created_at, s.id
"""
# One checksum of all heads in the session's conversation: any append there changes it.
MARK: Final = """
    SELECT bit_xor(hashtextextended(s.id, s.head))
    FROM sessions top JOIN sessions s USING (owner, conversation_id) WHERE top.id = :session
"""
READ: Final = """
    SELECT j.session_id, j.seq, j.at, j.trace_id, j.worker, j.fence, j.body, f.content
    FROM unnest(:ids::text[], :after::bigint[], :upto::bigint[]) WITH ORDINALITY AS span (session_id, after, upto, nth)
    JOIN journal j ON j.session_id = span.session_id AND j.seq > span.after AND j.seq <= span.upto
    LEFT JOIN files f ON f.digest = j.body_digest
    ORDER BY span.nth, j.seq LIMIT :limit
"""
HEADS: Final = "SELECT id, head FROM sessions WHERE owner = :owner AND conversation_id = :conversation AND side = 'sub'"
HEADS_AT: Final = """
    SELECT s.id, last.seq AS head FROM sessions s CROSS JOIN LATERAL (
        SELECT j.seq FROM journal j WHERE j.session_id = s.id AND j.at <= :at ORDER BY j.seq DESC LIMIT 1
    ) AS last
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.side = 'sub'
"""
# The sessions where a person was asked about a call with this id that now has its outcome or its decision, in any turn
# of the tree.
OVER: Final = f"""
    {TREE}, put (id, agent, label) AS (
        SELECT DISTINCT s.id, s.agent, s.label FROM tree JOIN sessions s ON s.id = tree.id
        JOIN journal_events e ON e.session_id = s.id AND (e.trace_id = tree.trace OR s.id = :session)
        WHERE e.call_id = :call AND (
            e.kind = 'Decided'
            OR (e.kind = 'Called' AND (e.body->>'approve_by' IS NOT NULL OR e.body->>'call_kind' IN ('ask', 'client')))
            OR (e.kind = 'Called' AND e.body->>'effect' = 'once' AND EXISTS (
                SELECT FROM journal lost WHERE lost.session_id = s.id AND lost.kind = 'Resumed' AND lost.seq > e.seq
            ))
        )
    )
    SELECT put.id, put.agent, put.label FROM put
    WHERE EXISTS (SELECT FROM journal r WHERE r.session_id = put.id AND r.call_id = :call AND r.kind = 'Returned')
       OR 'unknown' <> (
            SELECT d.body->>'decision' FROM journal_events d
            WHERE d.session_id = put.id AND d.call_id = :call AND d.kind = 'Decided' ORDER BY d.seq DESC LIMIT 1
       )
"""
# An answer or decision of a person on the call, of this session or of any sub-agent; with `agent`, of the sub-agents
# with this name, which may include a label. A long answer is stored in `files`, and its body is empty.
ANSWERED: Final = """
    SELECT EXISTS (
        SELECT FROM sessions s JOIN journal j ON j.session_id = s.id
        WHERE (s.id = :session OR (s.owner = :owner AND s.conversation_id = :conversation AND s.side = 'sub'))
          AND j.call_id = :call AND (:agent::text IS NULL OR :agent IN (s.agent, s.agent || ':' || s.label))
          AND ((j.kind = 'Decided' AND j.body->>'decision' <> 'unknown')
               OR (j.kind = 'Returned' AND (j.body->>'by' NOT IN ('agent', 'memory') OR j.body_digest IS NOT NULL)))
    )
"""
# The task that the call `handle` has started in an earlier turn; streams have shown it up to the end of the last turn
# in which one of `calls` returned.
BEGUN: Final = """
    SELECT d.child, d.trace, (
        SELECT max(ended.at) FROM journal r CROSS JOIN LATERAL (
            SELECT j.at FROM journal j
            WHERE j.session_id = :session AND j.seq > r.seq AND j.trace_id = r.trace_id
              AND j.kind IN ('Finished', 'Failed', 'Cancelled')
            ORDER BY j.seq LIMIT 1
        ) AS ended
        WHERE r.session_id = :session AND r.kind = 'Returned' AND r.call_id = ANY(:calls) AND r.trace_id <> :trace
    ) AS seen_until
    FROM delegations d WHERE d.parent = :session AND d.call = :handle AND d.trace <> :trace
"""
TOOLS: Final = """
    SELECT body FROM journal_events WHERE session_id = :session AND kind = 'Called' AND call_id = ANY(:calls)
"""


class Root(msgspec.Struct, frozen=True):
    """A session from which a tree is read, and the top session that it is read for."""

    top: str
    id: str
    trace: str | None
    """None: all traces of the session."""
    depth: int = 0


class Node(msgspec.Struct, frozen=True):
    """A session of the tree."""

    top: str
    id: str
    agent: str
    label: str
    state: str
    head: int
    due: bool
    wake_at: datetime | None
    holder: str | None
    depths: Mapping[str, int]
    """Trace -> the depth below the top session in that trace."""
    first: int
    """The seq of the first prompt that a delegation of these traces has appended to it; 0 for a root."""

    @property
    def can_move(self) -> bool:
        """Can it advance without an action of a person?"""
        # A back-off ends by itself; a session that waits for approval needs a person even if it has a deadline.
        wakes = self.wake_at is not None and self.state != State.WAITING_FOR_APPROVAL
        return self.due or self.holder is not None or wakes


class Asker(msgspec.Struct, frozen=True):
    """A session that has asked a person, with its agent and label."""

    id: str
    agent: str
    label: str


class OpenDelegation(msgspec.Struct, frozen=True):
    """A task that an earlier turn has delegated, and the time up to which streams of earlier turns have shown it."""

    child: str
    trace: str
    seen_until: datetime | None


async def nodes(
    db: Executor,
    roots: Sequence[Root],
    *,
    awaited: bool = False,
    open_only: bool = False,
    seen_heads: Mapping[str, int] | None = None,
) -> list[Node]:
    """The sessions of a tree, the roots first.

    `awaited`: also delegations of earlier turns that the top sessions await. `open_only`: only delegations without an
    outcome. `seen_heads`: leaves out sessions whose head is not greater than this.
    """
    if not roots:
        return []
    seen = seen_heads or {}
    flags = {"awaited": awaited, "open_only": open_only}
    heads = {"seen": list(seen), "seen_heads": list(seen.values())}
    return await db.read(_node, NODES, **columns(roots, *Root.__struct_fields__), **flags, **heads)


def _node(*row: Any) -> Node:
    *known, traces, depths, first = row
    reached = {trace: depth for trace, depth in zip(traces, depths, strict=True) if trace is not None}
    return Node(*(*known, reached, first))


def callers(session: str, trace: str) -> str:
    """The way up, as the beginning of a query: the sessions that called one in a trace, itself first. Both are SQL."""
    return f"""
        WITH RECURSIVE callers (id, depth) AS (
            SELECT {session}, 0
            UNION
            SELECT d.parent, c.depth + 1 FROM callers c JOIN delegations d ON d.child = c.id
            WHERE d.trace = {trace} AND c.depth < {DEEPEST}
        )
    """


async def ever_called(db: Executor, *session_ids: str) -> set[str]:
    """The sessions and all that they have called, directly or indirectly, in any trace."""
    found: set[str] = set()
    new = set(session_ids)
    while new:
        found |= new
        new = {node.id for node in await nodes(db, [Root(one, one, None) for one in new])} - found
    return found


async def mark(db: Database, session_id: str) -> int | None:
    """A checksum that changes with every append to a journal of the session's conversation."""
    found: int | None = await db.value(MARK, session=session_id)
    return found


async def read(
    db: Database, spans: Mapping[str, tuple[int, int]], limit: int | None = None
) -> dict[str, list[Recorded]]:
    """Session -> its events after one seq up to another; in all about `limit` events, the first ones."""
    if not spans:
        return {}
    after, upto = map(list, zip(*spans.values(), strict=True))
    rows = await db.rows(READ, ids=list(spans), after=after, upto=upto, limit=limit)
    found: dict[str, list[Recorded]] = {}
    for row in rows if len(rows) != limit else _whole(rows):
        found.setdefault(row["session_id"], []).append(journals.recorded(row[1:]))
    return found


def _whole(rows: Sequence[asyncpg.Record]) -> Sequence[asyncpg.Record]:
    """Leaves out the last append, which the limit may have cut: a reply is shown together with its calls."""
    last = (rows[-1]["session_id"], rows[-1]["at"])
    return [row for row in rows if (row["session_id"], row["at"]) != last] or rows


async def left_at_work(db: Database, session: Session) -> list[str]:
    """The traces of a session, ended or not, in which sub-agents still work for it."""
    found = await nodes(db, [Root(session.id, session.id, None)], open_only=True)
    return list(dict.fromkeys(trace for node in found for trace in node.depths))


async def heads(db: Database, session: Session, at: datetime | None = None) -> dict[str, int]:
    """Session -> head, of all sub-agents in this conversation; with `at`, the head at that time."""
    given = {"at": at} if at else {}
    sql = HEADS_AT if at else HEADS
    return dict(await db.rows(sql, owner=session.owner, conversation=session.conversation, **given))


async def closed_questions(db: Database, session: Session, call: str) -> list[Asker]:
    """The session and its sub-agents, of all its turns, where a person was asked about a call with this id, and the
    question is closed."""
    roots = columns([Root(session.id, session.id, None)], *Root.__struct_fields__)
    return await db.read(Asker, OVER, **roots, awaited=False, session=session.id, call=call)


async def was_answered(db: Database, session: Session, name: str) -> bool:
    """Has a person answered or decided this call of the session or of a sub-agent?

    `name` is the id of the call, which may follow the agent: `<agent>/<id>` or `<agent>:<label>/<id>`.
    """
    agent, _, call = name.rpartition("/")
    return bool(
        await db.value(
            ANSWERED,
            session=session.id,
            owner=session.owner,
            conversation=session.conversation,
            call=call,
            agent=agent or None,
        )
    )


async def open_delegation(
    db: Database, session: Session, trace: str, handle: str, calls: Sequence[str]
) -> OpenDelegation | None:
    """The task that the call `handle` has started in another turn than that of `trace`; `calls` collected it before."""
    return await db.read_one(
        OpenDelegation, BEGUN, session=session.id, handle=handle, calls=[handle, *calls], trace=trace
    )


async def tools(db: Database, session_id: str, calls: Sequence[str]) -> dict[str, str]:
    """Call -> the name of its tool; empty where the call is not shown as work."""
    called = await db.read(events.decode, TOOLS, session=session_id, calls=list(calls))
    return {one.call: one.tool if one.is_work else "" for one in called if isinstance(one, events.Called)}
