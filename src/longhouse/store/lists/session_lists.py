"""Lists of sessions that are searched by text and by failing tools, and how many sessions have which value."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import Any, Final, TypedDict
from weakref import WeakKeyDictionary

import msgspec

from longhouse.journal.counters import COUNTERS_VERSION, folded
from longhouse.store import sessions
from longhouse.store.database import Database
from longhouse.store.lists import session_counters
from longhouse.store.lists.pages import Position
from longhouse.store.sessions import SessionRow

SEARCHED: Final = 10_000
"""Sessions that a search looks through, and that facets count: the newest ones."""
MOST_VALUES: Final = 100
"""Values of one facet."""
SHARED_FOR: Final = 2.0
"""Seconds for which facets are told again to those who ask with the same filters."""

NEWEST: Final = """
    SELECT id, head, state, agent, owner, created_at FROM sessions WHERE {where}
    ORDER BY created_at DESC, id DESC LIMIT :searched
"""
BEHIND: Final = f"""
    SELECT newest.id, newest.head FROM ({NEWEST}) AS newest
    LEFT JOIN session_counters c ON c.session_id = newest.id AND c.version = {COUNTERS_VERSION}
    WHERE c.head IS NULL OR c.head < newest.head
"""
OLDEST: Final = f"SELECT created_at FROM ({NEWEST}) AS newest OFFSET :searched - 1"
COUNT: Final = f"""
    WITH newest AS MATERIALIZED ({NEWEST})
    SELECT 'state' AS facet, state AS value, count(*)::int AS sessions FROM newest GROUP BY state
    UNION ALL SELECT 'agent', agent, count(*)::int FROM newest GROUP BY agent
    UNION ALL SELECT 'owner', owner, count(*)::int FROM newest GROUP BY owner
    UNION ALL SELECT 'tool', tool, count(*)::int
    FROM newest JOIN session_counters c ON c.session_id = newest.id CROSS JOIN unnest(c.failed_tools) AS tool
    GROUP BY tool
    ORDER BY sessions DESC, value
"""


class SessionCounts(TypedDict):
    """How many sessions have each value, most first."""

    sessions: int
    is_complete: bool
    """Whether all were looked at; otherwise the newest ones were."""
    states: dict[str, int]
    agents: dict[str, int]
    failing_tools: dict[str, int]


class AllSessionCounts(SessionCounts):
    owners: dict[str, int]


class _Shared(msgspec.Struct):
    """What somebody has just counted, for all who ask the same; those who come meanwhile wait for it."""

    counted: AllSessionCounts | None = None
    until: float = 0.0
    lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)


_shared: Final[WeakKeyDictionary[Database, dict[str, _Shared]]] = WeakKeyDictionary()


async def search(
    db: Database,
    *,
    owner: str | None,
    before: Position | None = None,
    limit: int,
    q: str | None = None,
    tool: str | None = None,
    **filters: Any,
) -> list[SessionRow]:
    """A page of sessions, newest first; `q` (text) and `tool` (one that failed) look through the newest alone."""
    if q is not None or tool is not None:
        oldest = await _count_newest(db, owner=owner, **filters)
        filters |= _among(oldest, q, tool)
    return await sessions.sessions(db, owner=owner, before=before, limit=limit, **filters)


async def facets(
    db: Database, *, owner: str | None, q: str | None = None, tool: str | None = None, **filters: Any
) -> AllSessionCounts:
    """The newest sessions, counted by state, agent, owner and failing tool; filtered as a list is."""
    known, time = _shared.setdefault(db, {}), asyncio.get_running_loop().time
    for asked in [asked for asked, one in known.items() if one.until < time() and not one.lock.locked()]:
        del known[asked]
    shared = known.setdefault(repr((owner, q, tool, sorted(filters.items()))), _Shared())
    async with shared.lock:
        if shared.counted is None:
            shared.counted = await _facets(db, q, tool, owner=owner, **filters)
            shared.until = time() + SHARED_FOR
        return shared.counted


async def _facets(db: Database, q: str | None, tool: str | None, **filters: Any) -> AllSessionCounts:
    oldest = await _count_newest(db, **filters)
    if q is not None or tool is not None:
        filters |= _among(oldest, q, tool)
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    sql, values = _statement(COUNT, filters)
    for facet, value, number in await db.rows(sql, **values):
        found[facet][value] = number
    return {
        "sessions": sum(found["state"].values()),
        "is_complete": oldest is None,
        "states": found["state"],
        "agents": _most(found["agent"]),
        "failing_tools": _most(found["tool"]),
        "owners": _most(found["owner"]),
    }


async def _count_newest(db: Database, **filters: Any) -> datetime | None:
    """Counts the newest sessions up to their heads; returns when the oldest of them began, None if these are all."""
    sql, values = _statement(BEHIND, filters)
    await session_counters.counted(db, dict(await db.rows(sql, **values)))
    sql, values = _statement(OLDEST, filters)
    oldest: datetime | None = await db.value(sql, **values)
    return oldest


def _statement(sql: str, filters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The statement with the conditions in use, and its values."""
    values = {"side": "external", **{name: value for name, value in filters.items() if value is not None}}
    where = " AND ".join(sessions.FILTERS[name] for name in values)
    return sql.format(where=where), {**values, "searched": SEARCHED}


def _among(oldest: datetime | None, q: str | None, tool: str | None) -> dict[str, Any]:
    """The filters of a search among the sessions from this one on."""
    return {"q": None if q is None else folded(q), "tool": tool, **({"since": oldest} if oldest else {})}


def _most(values: Mapping[str, int]) -> dict[str, int]:
    return dict(islice(values.items(), MOST_VALUES))
