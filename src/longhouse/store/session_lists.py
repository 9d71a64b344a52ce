"""Lists of sessions that are searched by text and by failing tools, and how many sessions have which value."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import asyncpg

from longhouse.journal.counters import COUNTERS_VERSION, folded
from longhouse.store import session_counters, sessions
from longhouse.store.database import Database
from longhouse.store.pages import Position, page
from longhouse.store.sessions import SessionRow

SEARCHED: Final = 10_000
"""Sessions that a search looks through, and that facets count: the newest ones."""
MOST_VALUES: Final = 100
"""Values of one facet."""
OVERVIEW: Final = f"""
    SELECT id, head, state, agent, owner, created_at, (
        SELECT c.head FROM session_counters c WHERE c.session_id = sessions.id AND c.version = {COUNTERS_VERSION}
    ) AS counted
    FROM sessions
"""


@dataclass(frozen=True, slots=True)
class Facets:
    """How many of the sessions that were looked at have each value, most first."""

    sessions: int
    is_complete: bool
    """Whether all were looked at; otherwise the newest ones were."""
    states: dict[str, int]
    agents: dict[str, int]
    owners: dict[str, int]
    failing_tools: dict[str, int]


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
        newest = await _counted_newest(db, owner=owner, **filters)
        filters |= _among(newest, q, tool)
    return await sessions.sessions(db, owner=owner, before=before, limit=limit, **filters)


async def facets(
    db: Database, *, owner: str | None, q: str | None = None, tool: str | None = None, **filters: Any
) -> Facets:
    """The newest sessions, counted by state, agent, owner and failing tool; filtered as a list is."""
    rows = newest = await _counted_newest(db, owner=owner, **filters)
    if q is not None or tool is not None:
        rows = await _newest(db, owner=owner, **{**filters, **_among(newest, q, tool)})
    return Facets(
        sessions=len(rows),
        is_complete=len(newest) < SEARCHED,
        states=_most(row["state"] for row in rows),
        agents=_most(row["agent"] for row in rows),
        owners=_most(row["owner"] for row in rows),
        failing_tools=await session_counters.failing_tools(db, [row["id"] for row in rows], MOST_VALUES),
    )


async def _counted_newest(db: Database, **filters: Any) -> Sequence[asyncpg.Record]:
    """The newest sessions, each counted up to its head."""
    rows = await _newest(db, **filters)
    behind = {row["id"]: row["head"] for row in rows if (row["counted"] or 0) < row["head"]}
    await session_counters.counted(db, behind)
    return rows


async def _newest(db: Database, **filters: Any) -> Sequence[asyncpg.Record]:
    by, conditions = "created_at, id", sessions.FILTERS
    return await page(db, OVERVIEW, by=by, before=None, limit=SEARCHED, conditions=conditions, side="external",
                      **filters)  # fmt: skip


def _among(newest: Sequence[asyncpg.Record], q: str | None, tool: str | None) -> dict[str, Any]:
    """The filters of a search among these sessions."""
    oldest = {"since": newest[-1]["created_at"]} if len(newest) == SEARCHED else {}
    return {"q": None if q is None else folded(q), "tool": tool, **oldest}


def _most(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common(MOST_VALUES))
