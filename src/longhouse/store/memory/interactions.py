"""The ledger's table: rows derived from journals, and pages of them."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, get_args

import asyncpg
import msgspec
from msgspec.structs import asdict, astuple

from longhouse.journal.events import Collected, ExternalInteraction
from longhouse.journal.roles import FORM
from longhouse.store.database import Database, Executor, Transaction
from longhouse.store.lists import pages
from longhouse.store.lists.pages import Position

PROJECTION: Final = "ledger"
"""The name of the ledger's cursors."""
TOOLS: Final = "ledger_tools"
"""The name of the cursors up to which records of tools are found by `query`."""

LONGEST_TURN: Final = 100_000
"""Events."""

MOST_AT_ONCE: Final = 128
"""Rows of one statement: to encode them takes about 4 ms, in which nothing else runs."""

Type = Literal["input", "output"]
EventRows = list[Sequence[Any]]


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the ledger; an input and its output share the `pair_id`, which is the id of the input."""

    id: str
    conversation_id: str
    trace_id: str
    source: str
    source_type: Collected
    target: str
    target_type: Collected
    content: str
    type: Type
    timestamp: datetime
    pair_id: str

    @classmethod
    def from_outside(cls, conversation: str, given: ExternalInteraction, text: str) -> "Interaction":
        """The record of what was added from outside, as its event tells it."""
        told = asdict(given)
        trace, at, pair = told.pop("trace"), told.pop("at"), told.pop("pair_id") or given.id
        return cls(**told, conversation_id=conversation, trace_id=trace, content=text, timestamp=at, pair_id=pair)

    def involves(self, agent: str) -> bool:
        return (agent, "agent") in ((self.source, self.source_type), (self.target, self.target_type))


class LedgerRow(msgspec.Struct, frozen=True):
    """An interaction with what is stored beside it."""

    interaction: Interaction
    owner: str
    user: str | None
    session_id: str
    seq: int
    agent: str
    """The agent whose journal tells it; empty for an interaction from outside."""
    depth: int
    shown: bool = True
    """False: kept for the memory of its agent alone, since another journal tells the same."""
    detail: str | None = None
    """As JSON: what the messages of its agent are rebuilt with."""
    is_found: bool = True
    """Not stored; false: other records say the same, so this one is not found by `query`."""
    since: int = 0
    """Not stored; the event by which its pair came to be told: a cut takes both records of a pair, or neither."""

    @property
    def key(self) -> "Key":
        return self.session_id, self.interaction.id


Key = tuple[str, str]
"""A record: the session whose journal tells it, and its id."""


PUBLIC: Final = tuple(Interaction.__struct_fields__)
BESIDE: Final = LedgerRow.__struct_fields__[1:-2]
COLUMNS: Final = ", ".join(PUBLIC)
ALL: Final = f"""{COLUMNS}, owner, "user", session_id, seq, agent, depth, shown, detail"""

CURSORS: Final = "SELECT session_id, head FROM projection_cursors WHERE projection = :name AND session_id = ANY(:ids)"
_EVENTS: Final = """
    SELECT asked.id, j.seq, j.at, j.trace_id, j.worker, j.fence, j.body, f.content
    FROM {asked} JOIN LATERAL (
        SELECT * FROM journal WHERE session_id = asked.id AND {where} ORDER BY seq LIMIT :limit
    ) j ON true LEFT JOIN files f ON f.digest = j.body_digest
    ORDER BY asked.id, j.seq
"""
SINCE: Final = _EVENTS.format(
    asked="unnest(:ids::text[], :heads::bigint[]) AS asked (id, head)", where="seq > asked.head"
)
# From the start of the turn that runs at the cursor: everything that a later event may refer to is in it.
OF_TURN: Final = _EVENTS.format(
    asked="""(
        SELECT one.id, one.head, COALESCE((
            SELECT seq FROM journal WHERE session_id = one.id AND seq <= one.head AND kind = 'Started'
            ORDER BY seq DESC LIMIT 1
        ), 0) AS began
        FROM unnest(:ids::text[], :heads::bigint[]) AS one (id, head)
    ) AS asked""",
    where="seq BETWEEN asked.began AND asked.head",
)
AT: Final = _EVENTS.format(asked="unnest(:ids::text[], :heads::bigint[]) AS asked (id, head)", where="seq = asked.head")

# Waits for a deletion or a rebuild that is under way: after it, what is erased is not there any more, what is cut has
# its cut, and a cursor is where it was left.
REBUILDS: Final = "hashtextextended('longhouse ledger', 0)"
WAIT: Final = f"SELECT pg_advisory_xact_lock_shared({REBUILDS})"
THERE: Final = "SELECT id FROM sessions WHERE id = ANY(:ids) ORDER BY id FOR KEY SHARE"
INVOLVES: Final = "(l.source = {agent} AND l.source_type = 'agent' OR l.target = {agent} AND l.target_type = 'agent')"
_CUT: Final = f"""
    SELECT FROM cuts c
    WHERE l.agent <> '' AND c.owner = l.owner AND c.conversation_id = l.conversation_id
      AND c.trace_id IN ('', l.trace_id)
      AND (c.agent = '' OR {INVOLVES.format(agent="c.agent")})
      AND l.since <= COALESCE((c.heads ->> l.session_id)::bigint, 0)
      AND (c.up_to IS NULL OR (l.timestamp, l.id COLLATE "C") <= (c.up_to, c.up_to_id))
"""
# Cuts are few: they are looked for once for each session, and nearly always there are none. Returned are the sessions
# that were written, and of their records those that are not shown: few, too.
_WRITE: Final = f"""
WITH valid AS (
    SELECT one.* FROM unnest(:sessions::text[], :befores::bigint[], :heads::bigint[]) AS one (session_id, before, head)
    LEFT JOIN projection_cursors c ON c.projection = :name AND c.session_id = one.session_id
    WHERE COALESCE(c.head, 0) = one.before
), saved AS (
    INSERT INTO projection_cursors AS c (projection, session_id, epoch, head)
    SELECT :name, session_id, '', head FROM valid ORDER BY session_id
    ON CONFLICT (projection, session_id) DO UPDATE SET head = excluded.head WHERE c.head < excluded.head
), cuts AS MATERIALIZED (
    SELECT c.* FROM valid JOIN sessions s ON s.id = valid.session_id
    JOIN interaction_cuts c ON c.owner = s.owner AND c.conversation_id = s.conversation_id
), new AS MATERIALIZED (
    SELECT l.*,
           -- What was added from outside leaves its journal when it is cut, and may be older than a cut.
           EXISTS ({_CUT} AND c.agent IN ('', l.agent)) OR l.agent = '' AND NOT EXISTS (
               SELECT FROM journal j WHERE j.session_id = l.session_id AND j.seq = l.seq
           ) AS is_gone
    FROM unnest(:rows::ledger_record[]) AS l WHERE l.session_id IN (SELECT session_id FROM valid)
), written AS (
    INSERT INTO ledger AS told ({ALL})
    SELECT {COLUMNS}, owner, "user", session_id, seq, agent, depth, shown AND NOT EXISTS ({_CUT}), detail
    FROM new l WHERE NOT is_gone
    {{unless}} RETURNING told.session_id, told.id, told.shown
)
SELECT session_id, NULL AS id FROM valid
UNION ALL SELECT session_id, id FROM new WHERE is_gone
UNION ALL SELECT session_id, id FROM written WHERE NOT shown
"""
WRITE_NEW: Final = _WRITE.format(unless="")
# Of what is there already, it is told whether it is hidden.
WRITE: Final = _WRITE.format(unless="ON CONFLICT (session_id, id) DO UPDATE SET shown = told.shown")

FILTERS: Final = {
    "conversation": "l.conversation_id = :conversation",
    "agent": INVOLVES.format(agent=":agent"),
    "trace_id": "l.trace_id = :trace_id",
    "type": "l.type = :type",
    "since": "l.timestamp >= :since",
    "until": "l.timestamp < :until",
    "text": "strpos(lower(l.content), lower(:text)) > 0",
}
TYPED: Final = ("source_type", "target_type")
"""Filters whose few values are written into the statement, where the planner sees which index has them."""
STORY: Final = f"""
    SELECT {COLUMNS} FROM ledger l WHERE l.trace_id = :trace AND l.shown AND (:owner::text IS NULL OR l.owner = :owner)
    ORDER BY l.timestamp, l.depth, l.session_id, l.seq, l.id LIMIT :limit
"""
OF_AGENT: Final = f"""
    SELECT {ALL} FROM ledger WHERE owner = :owner AND conversation_id = :conversation AND agent = :agent
    ORDER BY session_id, seq, id
"""
BEHIND: Final = """
    SELECT s.id FROM sessions s
    LEFT JOIN projection_cursors c ON c.projection = :name AND c.session_id = s.id
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND (c.head IS NULL OR c.head < s.head)
"""
EXTERNAL: Final = f"""
    SELECT l.id FROM sessions s JOIN ledger l ON l.session_id = s.id
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.side = 'external' AND l.shown
      AND {INVOLVES.format(agent=":agent")}
    ORDER BY l.timestamp, l.id
"""
_KEYED: Final = f"""
    SELECT l.session_id, {", ".join(f"l.{name}" for name in PUBLIC)}
    FROM unnest(:sessions::text[], :ids::text[]) AS asked (session_id, id)
    JOIN ledger l ON l.session_id = asked.session_id AND l.id = asked.id
    WHERE l.owner = :owner AND l.conversation_id = :conversation AND l.shown
"""
ADDED: Final = f"""
    SELECT {", ".join(f"l.{name}" for name in PUBLIC)} FROM sessions s JOIN ledger l ON l.session_id = s.id
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.side = 'external'
      AND l.id = ANY(:ids) AND l.shown
    ORDER BY l.timestamp, l.id
"""
# Those that this append has not reached yet.
AGENTS: Final = """
    SELECT s.id, s.agent FROM sessions s
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.side <> 'external'
      AND NOT EXISTS (SELECT FROM journal j WHERE j.session_id = s.id AND j.append_id = :append_id AND j.nth = 1)
    ORDER BY s.id
"""
USERS: Final = """
    SELECT DISTINCT "user" FROM sessions WHERE owner = :owner AND conversation_id = :conversation
"""
RESET: Final = (
    "DELETE FROM projection_cursors WHERE projection = ANY(:names)",
    "DELETE FROM ledger",
)
# Sessions whose records of tools were told since they were made ready to be found.
UNFOUND: Final = """
    SELECT s.id, COALESCE(f.head, 0) AS before, c.head FROM sessions s
    JOIN projection_cursors c ON c.projection = :name AND c.session_id = s.id
    LEFT JOIN projection_cursors f ON f.projection = :tools AND f.session_id = s.id
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.side <> 'external'
      AND c.head > COALESCE(f.head, 0)
    ORDER BY s.id
"""
OF_TOOLS: Final = f"""
    SELECT {ALL} FROM ledger WHERE session_id = :session AND seq > :before AND seq <= :head AND shown
      AND 'tool' IN (source_type, target_type) AND COALESCE(detail ->> 'role', '') <> ALL(:form)
    ORDER BY seq, id
"""
# A rebuild that began meanwhile has left no cursor: what it tells is made ready after it.
FOUND: Final = """
    INSERT INTO projection_cursors AS f (projection, session_id, epoch, head)
    SELECT :tools, c.session_id, '', :head FROM projection_cursors c
    WHERE c.projection = :name AND c.session_id = :session AND c.head >= :head
    ON CONFLICT (projection, session_id) DO UPDATE SET head = excluded.head WHERE f.head < excluded.head
"""
SHOWN: Final = "SELECT id FROM ledger WHERE session_id = :session AND id = ANY(:ids) AND shown"


async def cursors(db: Executor, ids: Sequence[str]) -> dict[str, int]:
    """Session -> the event up to which the ledger tells it."""
    known = dict(await db.rows(CURSORS, name=PROJECTION, ids=ids))
    return {one: known.get(one, 0) for one in ids}


async def events_since(db: Executor, heads: Mapping[str, int], limit: int) -> dict[str, EventRows]:
    """The events of each session after its head, at most `limit` of each, as `journals.recorded` reads them."""
    return _grouped(await db.rows(SINCE, ids=list(heads), heads=list(heads.values()), limit=limit))


async def events_of_turn(db: Executor, heads: Mapping[str, int]) -> dict[str, EventRows]:
    """The events of each session from the start of the turn that had started last at this head, up to the head."""
    return _grouped(await db.rows(OF_TURN, ids=list(heads), heads=list(heads.values()), limit=LONGEST_TURN))


async def events_at(db: Executor, places: Sequence[tuple[str, int]]) -> dict[str, EventRows]:
    """Single events, by session and seq."""
    return _grouped(await db.rows(AT, ids=[one[0] for one in places], heads=[one[1] for one in places], limit=1))


def _grouped(rows: Sequence[asyncpg.Record]) -> dict[str, EventRows]:
    found: dict[str, EventRows] = {}
    for session_id, *event in rows:
        found.setdefault(session_id, []).append(event)
    return found


async def write(
    tx: Transaction, rows: Sequence[LedgerRow], moved: Mapping[str, tuple[int, int]], *, are_new: bool
) -> set[Key]:
    """Adds rows and moves the cursors of their sessions, each from where it was read; returns those that are shown.

    Left out are sessions whose cursor another process has moved, erased ones, and what was cut. `are_new`: a row that
    is there already is a unique violation; to look for each of them first takes a sixth of the time.
    """
    await tx.run(WAIT)
    told: dict[str, list[LedgerRow]] = {row["id"]: [] for row in await tx.rows(THERE, ids=sorted(moved))}
    for row in rows:
        if row.session_id in told:
            told[row.session_id].append(row)
    hidden: set[tuple[str, str | None]] = set()
    for some in _portions(told):
        befores, heads = zip(*map(moved.__getitem__, some), strict=True)
        said = await tx.rows(
            WRITE_NEW if are_new else WRITE,
            name=PROJECTION,
            sessions=some,
            befores=befores,
            heads=heads,
            rows=[_record(row) for one in some for row in told[one]],
        )
        hidden |= {(session_id, own) for session_id, own in said}
    return {row.key for row in rows if (row.session_id, None) in hidden and row.key not in hidden}


def _portions(told: Mapping[str, Sequence[LedgerRow]]) -> Iterator[list[str]]:
    """Sessions that have few rows together, or one of them with many."""
    some: list[str] = []
    count = 0
    for one, rows in told.items():
        if some and count + len(rows) > MOST_AT_ONCE:
            yield some
            some, count = [], 0
        some.append(one)
        count += len(rows)
    if some:
        yield some


def _record(row: LedgerRow) -> tuple[Any, ...]:
    """The values of a `ledger_record`."""
    return (*astuple(row.interaction), *astuple(row)[1:-2], row.since or row.seq)


async def page(
    db: Database, *, owner: str, before: Position | None = None, limit: int, **filters: Any
) -> list[Interaction]:
    """A page of an owner's interactions, newest first; `filters` are those of FILTERS, None leaves one out."""
    typed = [f"l.{name} = '{filters.pop(name)}'" for name in TYPED if filters.get(name) in get_args(Collected)]
    theirs = " AND ".join(["l.owner = :owner", "l.shown", *typed])
    select, conditions = f"SELECT {COLUMNS} FROM ledger l", {**FILTERS, "owner": theirs}
    rows = await pages.page(db, select, by="l.timestamp, l.id", before=before, limit=limit, conditions=conditions,
                            owner=owner, **filters)  # fmt: skip
    return [interaction(row) for row in rows]


def interaction(row: asyncpg.Record) -> Interaction:
    return Interaction(**{name: row[name] for name in PUBLIC})


async def story(db: Executor, trace: str, *, owner: str | None, limit: int) -> list[Interaction]:
    """The interactions of a trace in the order in which they happened, over all agents."""
    return [interaction(row) for row in await db.rows(STORY, trace=trace, owner=owner, limit=limit)]


async def of_agent(db: Executor, owner: str, conversation: str, agent: str) -> list[LedgerRow]:
    """What the sessions of this agent in this conversation tell, each in the order of its journal."""
    rows = await db.rows(OF_AGENT, owner=owner, conversation=conversation, agent=agent)
    return list(map(_told, rows))


def _told(row: asyncpg.Record) -> LedgerRow:
    return LedgerRow(interaction(row), *(row[name] for name in BESIDE))


async def behind(db: Executor, owner: str, conversation: str) -> list[str]:
    """The sessions of this conversation with events that the ledger does not tell yet."""
    return await db.column(BEHIND, name=PROJECTION, owner=owner, conversation=conversation)


async def external(db: Executor, owner: str, conversation: str, agent: str) -> list[str]:
    """The interactions that were added from outside and in which this agent takes part, oldest first."""
    return await db.column(EXTERNAL, owner=owner, conversation=conversation, agent=agent)


async def added(db: Executor, owner: str, conversation: str, ids: Sequence[str]) -> list[Interaction]:
    """Those of these interactions from outside that are there, oldest first."""
    if not ids:
        return []
    return [interaction(row) for row in await db.rows(ADDED, owner=owner, conversation=conversation, ids=list(ids))]


async def by_keys(db: Executor, owner: str, conversation: str, keys: Sequence[Key]) -> dict[Key, Interaction]:
    """Those of these interactions that are there."""
    where = {"sessions": [one[0] for one in keys], "ids": [one[1] for one in keys]}
    rows = await db.rows(_KEYED, owner=owner, conversation=conversation, **where) if keys else []
    return {(row["session_id"], row["id"]): interaction(row) for row in rows}


async def unfound(db: Executor, owner: str, conversation: str) -> list[tuple[str, int, int]]:
    """Sessions whose records of tools are not found by `query` yet: from which event, and up to which."""
    rows = await db.rows(UNFOUND, name=PROJECTION, tools=TOOLS, owner=owner, conversation=conversation)
    return [tuple(row) for row in rows]


async def of_tools(db: Executor, session_id: str, before: int, head: int) -> list[LedgerRow]:
    """The records of tools that a session told between these events."""
    rows = await db.rows(OF_TOOLS, session=session_id, before=before, head=head, form=sorted(FORM))
    return list(map(_told, rows))


async def found(tx: Transaction, session_id: str, head: int, ids: Sequence[str]) -> set[str]:
    """Moves the cursor of what is found; returns those that are still shown. None are where a session was erased."""
    await tx.run(WAIT)
    if not await tx.rows(THERE, ids=[session_id]):
        return set()
    await tx.run(FOUND, name=PROJECTION, tools=TOOLS, session=session_id, head=head)
    return set(await tx.column(SHOWN, session=session_id, ids=list(ids)))


async def owners(db: Executor, trace: str) -> list[str]:
    """The owners who have something of this trace."""
    sql = "SELECT DISTINCT owner FROM ledger WHERE trace_id = :trace AND shown ORDER BY owner"
    return await db.column(sql, trace=trace)


async def agents(db: Executor, owner: str, conversation: str, append_id: uuid.UUID) -> list[tuple[str, str]]:
    """The sessions of this conversation that this append has not reached, with their agents."""
    return [tuple(row) for row in await db.rows(AGENTS, owner=owner, conversation=conversation, append_id=append_id)]


async def users(db: Executor, owner: str, conversation: str) -> list[str | None]:
    return await db.column(USERS, owner=owner, conversation=conversation)


async def count_sessions(db: Executor) -> int:
    return int(await db.value("SELECT count(*) FROM sessions"))


async def reset(tx: Transaction) -> None:
    """Drops all rows and cursors: the projection makes them again."""
    await tx.run(f"SELECT pg_advisory_xact_lock({REBUILDS})")
    await tx.run(RESET[0], names=[PROJECTION, TOOLS])
    await tx.run(RESET[1])
