"""The delegation tree: the one query that finds the sessions beneath a session, and what is read of their journals.

A delegation, its prompt and the head of the child's journal change in one transaction. So what one query finds, read up
to the heads that the same query found, is complete: no event in it has a cause that is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import datetime
from typing import Final

import asyncpg

from longhouse.journal.events import Recorded
from longhouse.journal.session import Session, State
from longhouse.store import journals
from longhouse.store.database import Asked, Database

# The recursive query. The roots $1..$4 are sessions, each under the top session that it is read for; a root without a
# trace is followed in every trace that went through it. With $5, what a top session awaits from earlier turns is
# followed too. Agents may have called each other in turn: of all the ways to one only the shortest matters, so the tree
# has depths and no paths, and no template lets more than 32 agents stand one below the other. The step is made once
# from each session, however many tasks it was given there. Parameters stand in a SELECT of their own: a plan made for
# their values is no better than one for any, so that Postgres keeps the latter, and planning costs more than the query.
TREE: Final = """
    WITH RECURSIVE roots (top, id, trace, depth) AS (
        SELECT * FROM unnest((SELECT $1::text[]), (SELECT $2::text[]), (SELECT $3::text[]), (SELECT $4::int[]))
    ), tree (top, id, trace, depth, prompt, is_open) AS (
        (
            SELECT top, id, trace, depth, 0::bigint, false FROM roots
            UNION ALL
            SELECT r.top, d.child, d.trace, r.depth + 1, d.prompt, d.outcome IS NULL
            FROM roots r JOIN delegations d ON d.parent = r.id WHERE r.trace IS NULL
            UNION ALL
            SELECT d.parent, d.child, d.trace, 1, d.prompt, true
            FROM roots r JOIN awaits a ON a.parent = r.top
            JOIN delegations d ON d.parent = a.parent AND d.call = a.awaited
            WHERE (SELECT $5::bool) AND d.outcome IS NULL
        )
        UNION
        SELECT t.top, d.child, d.trace, t.depth + 1, d.prompt, d.outcome IS NULL
        FROM (SELECT DISTINCT top, id, trace, depth FROM tree WHERE depth < 33) t
        JOIN delegations d ON d.parent = t.id AND d.trace = t.trace
    )
"""
# With $6, only by open delegations; of sessions in $7, only those whose head is beyond $8.
NODES: Final = f"""
    {TREE}, reached AS (
        SELECT top, id, trace, min(depth) AS depth, min(prompt) AS first FROM tree
        WHERE is_open OR NOT (SELECT $6::bool) GROUP BY top, id, trace
    )
    SELECT r.top, s.id, s.agent, s.label, s.state, s.head, s.due, s.wake_at, s.holder,
           array_agg(r.trace) AS traces, array_agg(r.depth) AS depths, min(r.first) AS first
    FROM reached r JOIN sessions s ON s.id = r.id
    LEFT JOIN unnest((SELECT $7::text[]), (SELECT $8::bigint[])) AS seen (id, head) ON seen.id = r.id
    WHERE s.head > COALESCE(seen.head, 0)
    GROUP BY r.top, s.id ORDER BY min(r.depth), s.created_at, s.id
"""
# One number for all heads in the conversation of $1: any append there changes it.
MARK: Final = """
    SELECT bit_xor(hashtextextended(s.id, s.head))
    FROM sessions top JOIN sessions s USING (owner, conversation_id) WHERE top.id = $1
"""
READ: Final = """
    SELECT j.session_id, j.seq, j.at, j.trace_id, j.worker, j.fence, j.body, f.content
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS span (session_id, after, upto, nth)
    JOIN journal j ON j.session_id = span.session_id AND j.seq > span.after AND j.seq <= span.upto
    LEFT JOIN files f ON f.digest = j.body_digest
    ORDER BY span.nth, j.seq LIMIT $4
"""
HEADS: Final = "SELECT id, head FROM sessions WHERE owner = $1 AND conversation_id = $2 AND side = 'sub'"
HEADS_AT: Final = """
    SELECT s.id, last.seq AS head FROM sessions s CROSS JOIN LATERAL (
        SELECT j.seq FROM journal j WHERE j.session_id = s.id AND j.at <= $3 ORDER BY j.seq DESC LIMIT 1
    ) AS last
    WHERE s.owner = $1 AND s.conversation_id = $2 AND s.side = 'sub'
"""
# Where a call with the id $7 was put to a person and has its outcome or its decision: in the session $6, in whichever
# turn, and in the tree.
OVER: Final = f"""
    {TREE}, put (id, agent, label) AS (
        SELECT DISTINCT s.id, s.agent, s.label FROM tree JOIN sessions s ON s.id = tree.id
        JOIN journal_events e ON e.session_id = s.id AND (e.trace_id = tree.trace OR s.id = $6)
        WHERE e.call_id = $7 AND (
            e.kind = 'Decided'
            OR (e.kind = 'Called' AND (e.body->>'approve_by' IS NOT NULL OR e.body->>'call_kind' = 'ask'))
            OR (e.kind = 'Called' AND e.body->>'effect' = 'once' AND EXISTS (
                SELECT FROM journal lost WHERE lost.session_id = s.id AND lost.kind = 'Resumed' AND lost.seq > e.seq
            ))
        )
    )
    SELECT put.id, put.agent, put.label FROM put
    WHERE EXISTS (SELECT FROM journal r WHERE r.session_id = put.id AND r.call_id = $7 AND r.kind = 'Returned')
       OR 'unknown' <> (
            SELECT d.body->>'decision' FROM journal_events d
            WHERE d.session_id = put.id AND d.call_id = $7 AND d.kind = 'Decided' ORDER BY d.seq DESC LIMIT 1
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
# What an earlier turn has begun by the call $2; it was shown up to the end of the last turn that made one of $3.
BEGUN: Final = """
    SELECT d.child, d.trace, (
        SELECT max(ended.at) FROM journal r CROSS JOIN LATERAL (
            SELECT j.at FROM journal j
            WHERE j.session_id = $1 AND j.seq > r.seq AND j.trace_id = r.trace_id
              AND j.kind IN ('Finished', 'Failed', 'Cancelled')
            ORDER BY j.seq LIMIT 1
        ) AS ended
        WHERE r.session_id = $1 AND r.kind = 'Returned' AND r.call_id = ANY($3) AND r.trace_id <> $4
    ) AS seen_until
    FROM delegations d WHERE d.parent = $1 AND d.call = $2 AND d.trace <> $4
"""
TOOLS: Final = """
    SELECT call_id, CASE WHEN body ->> 'question' <> '' THEN '' ELSE body ->> 'tool' END AS tool
    FROM journal_events
    WHERE session_id = $1 AND kind = 'Called' AND call_id = ANY($2)
"""
GIVEN: Final = "SELECT $1::text, child, trace, 1 FROM delegations WHERE parent = $1 AND call = ANY($2)"


@dataclass(frozen=True, slots=True)
class Root:
    """Where a tree is read from, and the top session that it is read for."""

    top: str
    id: str
    trace: str | None
    """None: every trace that went through it."""
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Node:
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
    """Trace -> how far beneath the top session it stands there."""
    first: int
    """The seq of the first prompt that a delegation of these traces gave it; 0 for a root."""

    @property
    def can_move(self) -> bool:
        """Can it go on before a person does something?"""
        # A provider that is waited out wakes by itself; a question with a deadline is a question all the same.
        wakes = self.wake_at is not None and self.state != State.WAITING_FOR_APPROVAL
        return self.due or self.holder is not None or wakes


@dataclass(frozen=True, slots=True)
class Asker:
    """A session that has asked a person, by what it is called."""

    id: str
    agent: str
    label: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A task that an earlier turn has given, and until when the streams of such turns have shown it."""

    child: str
    trace: str
    seen_until: datetime | None


async def nodes(
    db: Asked,
    roots: Sequence[Root],
    *,
    awaited: bool = False,
    open_only: bool = False,
    seen_heads: Mapping[str, int] | None = None,
) -> list[Node]:
    """The sessions of a tree, the roots first.

    `awaited`: also what the top sessions await from earlier turns. `open_only`: those whose outcome is still awaited or
    missing. `seen_heads`: without those whose journals go no further than this.
    """
    if not roots:
        return []
    seen = seen_heads or {}
    rows = await db.rows(NODES, *_columns(roots), awaited, open_only, list(seen), list(seen.values()))
    return [_node(row) for row in rows]


def _node(row: asyncpg.Record) -> Node:
    *known, traces, depths, first = row
    reached = {trace: depth for trace, depth in zip(traces, depths, strict=True) if trace is not None}
    return Node(*(*known, reached, first))


def _columns(roots: Sequence[Root]) -> list[list[object]]:
    return [list(column) for column in zip(*map(astuple, roots), strict=True)]


async def ever_called(db: Asked, session_id: str) -> set[str]:
    """The session and all that it has called, through whomever and in whatever trace."""
    found: set[str] = set()
    new = {session_id}
    while new:
        found |= new
        new = {node.id for node in await nodes(db, [Root(one, one, None) for one in new])} - found
    return found


async def mark(db: Database, session_id: str) -> int | None:
    """A number that changes with every append to a journal of the session's conversation."""
    found: int | None = await db.value(MARK, session_id)
    return found


async def read(
    db: Database, spans: Mapping[str, tuple[int, int]], limit: int | None = None
) -> dict[str, list[Recorded]]:
    """Session -> its events after one seq up to another; about the first `limit` of them all."""
    if not spans:
        return {}
    after, upto = [span[0] for span in spans.values()], [span[1] for span in spans.values()]
    rows = await db.rows(READ, list(spans), after, upto, limit)
    found: dict[str, list[Recorded]] = {}
    for row in rows if len(rows) != limit else _whole(rows):
        found.setdefault(row["session_id"], []).append(journals.recorded(row[1:]))
    return found


def _whole(rows: Sequence[asyncpg.Record]) -> Sequence[asyncpg.Record]:
    """Without the last append, which may have been cut: a reply is shown together with its calls."""
    last = (rows[-1]["session_id"], rows[-1]["at"])
    return [row for row in rows if (row["session_id"], row["at"]) != last] or rows


async def left_at_work(db: Database, session: Session) -> list[str]:
    """The traces of a session, ended there or not, in which others are still at work for it."""
    found = await nodes(db, [Root(session.id, session.id, None)], open_only=True)
    return list(dict.fromkeys(trace for node in found for trace in node.depths))


async def heads(db: Database, session: Session, at: datetime | None = None) -> dict[str, int]:
    """How far the journals go of all agents that others have called in this conversation; with `at`, went then."""
    asked = (HEADS_AT, session.owner, session.conversation, at) if at else (HEADS, session.owner, session.conversation)
    return {row["id"]: row["head"] for row in await db.rows(*asked)}


async def over(db: Database, session: Session, call: str, handles: Sequence[str]) -> list[Asker]:
    """The sessions in the tree of a turn where a person was asked about a call of this id, and is asked no more.

    `handles` are what the turn collects.
    """
    roots = [Root(session.id, session.id, session.turn.trace if session.turn else "")]
    if handles:
        roots += [Root(*row) for row in await db.rows(GIVEN, session.id, list(handles))]
    return [Asker(*row) for row in await db.rows(OVER, *_columns(roots), False, session.id, call)]


async def was_answered(db: Database, session: Session, name: str) -> bool:
    """Has a person answered or decided this call, of the session or of an agent beneath, by its id or its label?"""
    agent, _, call = name.rpartition("/")
    return bool(await db.value(ANSWERED, session.id, session.owner, session.conversation, call, agent or None))


async def begun(db: Database, session: Session, trace: str, handle: str, calls: Sequence[str]) -> Begun | None:
    """What the call `handle` has begun in another turn than that of `trace`; `calls` have collected it before."""
    row = await db.row(BEGUN, session.id, handle, [handle, *calls], trace)
    return Begun(*row) if row else None


async def tools(db: Database, session_id: str, calls: Sequence[str]) -> dict[str, str]:
    """Call -> the tool that it is of; empty for a question."""
    return {row["call_id"]: row["tool"] for row in await db.rows(TOOLS, session_id, list(calls))}
