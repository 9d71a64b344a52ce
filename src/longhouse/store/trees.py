"""The agents beneath a session, over all the traces that went through it: who they are, and what is new in their lives.

A task, its prompt and the head of the session it went to change in one transaction. So what one look finds, read up to
the heads that the same look found, is whole: nothing is missing in it that something else in it has followed from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg

from longhouse.journal.events import Recorded
from longhouse.store import journals
from longhouse.store.database import Database

# By depth and not by path: of all the ways by which a task can reach an agent only the shortest matters, and no
# template lets more than 32 agents stand one below the other.
BELOW: Final = """
    WITH RECURSIVE below (id, trace, depth) AS (
        SELECT d.child, d.trace, 1 FROM delegations d WHERE d.parent = $1
        UNION
        SELECT d.child, d.trace, below.depth + 1
        FROM below JOIN delegations d ON d.parent = below.id AND d.trace = below.trace
        WHERE below.depth < 33 AND d.child <> $1
    )
"""

# Asked first, since mostly the answer is no: whatever the trace, which in a long life are many.
HAS_GROWN: Final = """
    WITH RECURSIVE below (id) AS (
        SELECT $1::text UNION SELECT d.child FROM below JOIN delegations d ON d.parent = below.id
    )
    SELECT EXISTS (
        SELECT FROM below JOIN sessions s ON s.id = below.id
        LEFT JOIN unnest($2::text[], $3::bigint[]) AS known (id, seq) ON known.id = s.id
        WHERE s.head > COALESCE(known.seq, 0)
    )
"""

GROWN: Final = f"""
    {BELOW}, reached AS (
        SELECT id, trace, min(depth) AS depth FROM below GROUP BY id, trace
    ), nodes AS (
        SELECT $1::text AS id, '{{}}'::text[] AS traces, '{{}}'::int[] AS depths
        UNION ALL
        SELECT id, array_agg(trace), array_agg(depth) FROM reached GROUP BY id
    )
    SELECT s.id, s.agent, s.head, n.traces, n.depths,
           (SELECT min(d.prompt) FROM delegations d WHERE d.child = n.id AND d.trace = ANY (n.traces)) AS first
    FROM nodes n JOIN sessions s ON s.id = n.id
    LEFT JOIN unnest($2::text[], $3::bigint[]) AS known (id, seq) ON known.id = s.id
    WHERE s.head > COALESCE(known.seq, 0)
    ORDER BY s.created_at, s.id
"""

# A provider that is waited out wakes its agent by itself; a question with a deadline is a question all the same.
AT_WORK: Final = f"""
    {BELOW}
    SELECT EXISTS (
        SELECT FROM below JOIN sessions s ON s.id = below.id
        WHERE (s.due OR s.holder IS NOT NULL OR (s.wake_at IS NOT NULL AND s.state <> 'WAITING_FOR_APPROVAL'))
          AND EXISTS (
              SELECT FROM delegations d WHERE d.child = below.id AND d.trace = below.trace AND d.outcome IS NULL
          )
    )
"""

# Of a page of sessions, each with its trace: what the agents ask that are still at work for them.
ASKED: Final = """
    WITH RECURSIVE below (root, id, trace, depth) AS (
        (
            SELECT root, root, trace, 0 FROM unnest($1::text[], $2::text[]) AS roots (root, trace)
            UNION
            -- Somebody whom an earlier turn has asked, and this one waits for.
            SELECT d.parent, d.child, d.trace, 1
            FROM awaits a JOIN delegations d ON d.parent = a.parent AND d.call = a.awaited
            WHERE a.parent = ANY($1) AND d.outcome IS NULL
        )
        UNION
        SELECT below.root, d.child, d.trace, below.depth + 1
        FROM below JOIN delegations d ON d.parent = below.id AND d.trace = below.trace
        WHERE below.depth < 33
    )
    SELECT below.root, array_agg(DISTINCT s.state) AS states
    FROM below JOIN sessions s ON s.id = below.id
    WHERE s.id <> below.root AND s.state IN ('WAITING_FOR_CLARIFICATION', 'WAITING_FOR_APPROVAL')
      AND EXISTS (SELECT FROM delegations d WHERE d.child = s.id AND d.trace = below.trace AND d.outcome IS NULL)
    GROUP BY below.root
"""

READ: Final = """
    SELECT j.session_id, j.seq, j.at, j.trace_id, j.worker, j.fence, j.body, f.content
    FROM unnest($1::text[], $2::bigint[], $3::bigint[]) WITH ORDINALITY AS span (session_id, after, upto, nth)
    JOIN journal j ON j.session_id = span.session_id AND j.seq > span.after AND j.seq <= span.upto
    LEFT JOIN files f ON f.digest = j.body_digest
    ORDER BY span.nth, j.seq LIMIT $4
"""

TOOLS: Final = """
    SELECT call_id, CASE WHEN body ->> 'question' <> '' THEN '' ELSE body ->> 'tool' END AS tool
    FROM journal_events
    WHERE session_id = $1 AND kind = 'Called' AND call_id = ANY($2)
"""

TASKS: Final = "SELECT call, child, prompt FROM delegations WHERE parent = $1"


@dataclass(frozen=True, slots=True)
class Grown:
    """A session of the tree with more in its journal than was seen of it."""

    id: str
    agent: str
    head: int
    depths: Mapping[str, int]
    """Trace -> how far beneath this session stands in it; empty for the session at the top, of which all is told."""
    first: int
    """The first event that is about the session at the top."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a call has given to another agent: the session it went to, and the prompt that it became there."""

    child: str
    prompt: int


async def grown(db: Database, root: str, seen: Mapping[str, int]) -> list[Grown]:
    """The session itself and all beneath it, as far as their journals are longer than what was seen."""
    known = (list(seen), list(seen.values()))
    if not await db.value(HAS_GROWN, root, *known):
        return []
    return [
        Grown(
            id=row["id"],
            agent=row["agent"],
            head=row["head"],
            depths=dict(zip(row["traces"], row["depths"], strict=True)),
            first=row["first"] or 1,
        )
        for row in await db.rows(GROWN, root, *known)
    ]


async def is_at_work(db: Database, root: str) -> bool:
    """Can anybody beneath move before a person does something?"""
    return bool(await db.value(AT_WORK, root))


async def asked(db: Database, traces: Mapping[str, str]) -> dict[str, list[str]]:
    """Session -> the states of those beneath it, in this trace of it, who wait for a person."""
    if not traces:
        return {}
    return {row["root"]: row["states"] for row in await db.rows(ASKED, list(traces), list(traces.values()))}


async def read(db: Database, spans: Mapping[str, tuple[int, int]], limit: int) -> dict[str, list[Recorded]]:
    """Events of several journals, each from after one seq up to another; about the first `limit` of them."""
    after, upto = [span[0] for span in spans.values()], [span[1] for span in spans.values()]
    rows = await db.rows(READ, list(spans), after, upto, limit)
    found: dict[str, list[Recorded]] = {}
    for row in rows if len(rows) < limit else _whole(rows):
        found.setdefault(row["session_id"], []).append(journals.recorded(row[1:]))
    return found


def _whole(rows: Sequence[asyncpg.Record]) -> Sequence[asyncpg.Record]:
    """Without the last append, which may have been cut: a reply is told together with its calls."""
    last = (rows[-1]["session_id"], rows[-1]["at"])
    return [row for row in rows if (row["session_id"], row["at"]) != last] or rows


async def tools(db: Database, session_id: str, calls: Sequence[str]) -> dict[str, str]:
    """Call -> the tool that it is of; empty for a question."""
    return {row["call_id"]: row["tool"] for row in await db.rows(TOOLS, session_id, list(calls))}


async def tasks(db: Database, parent: str) -> dict[str, Task]:
    """Call -> what it has given to another agent."""
    return {row["call"]: Task(row["child"], row["prompt"]) for row in await db.rows(TASKS, parent)}
