"""Statistics per agent and tool over a window: counted from the journals, slice by slice, once for all callers."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal

from fastapi import Query, Response
from pydantic import Field

from longhouse import clock
from longhouse.api import auth, wire
from longhouse.api.json_route import of_app, strict_router
from longhouse.api.pagination import Omittable
from longhouse.store import statistics
from longhouse.store.database import Database
from longhouse.store.statistics import SLICE, Counted

DAY: Final = timedelta(hours=24)
COUNTED_EVERY: Final = 5.0
"""Seconds; whoever asks sooner is told what was counted last."""
SETTLED_AFTER: Final = timedelta(minutes=2)
"""After its end a slice is counted once more: what was under way at its end is written by then."""

WINDOWS: Final = {"1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": DAY}
SHOWN: Final[dict[str, Any]] = {
    "since": "2026-01-31T12:00:00Z",
    "agents": [
        {
            "name": "warehouse_clerk",
            "turns": 120,
            "completed": 114,
            "failed": 4,
            "cancelled": 2,
            "p50_seconds": 3.1,
            "p95_seconds": 12.4,
            "tokens": 251_300,
        }
    ],
    "tools": [{"name": "stock_of_item", "calls": 310, "failed": 3, "p50_seconds": 0.12, "p95_seconds": 0.9}],
}


class Statistics:
    """What happened in the last day. A slice that is over is counted once; only the present one is counted again."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._slices: dict[datetime, list[Counted]] = {}
        self._settled = datetime.min.replace(tzinfo=UTC)
        """Slices before this one are not counted again."""
        self._counted_at = float("-inf")
        self._counting = asyncio.Lock()

    async def rows(self, window: timedelta = DAY, owner: str | None = None) -> list[Counted]:
        """What was counted within a window, of one owner or of all."""
        await self._refresh()
        since = clock.now() - window
        return [
            row
            for moment, rows in self._slices.items()
            if moment + SLICE > since
            for row in rows
            if owner is None or row.owner == owner
        ]

    async def _refresh(self) -> None:
        async with self._counting:  # those who come meanwhile wait for the same counts
            loop = asyncio.get_running_loop()
            if loop.time() - self._counted_at < COUNTED_EVERY:
                return
            now = clock.now()
            oldest = statistics.slice_of(now - DAY)
            since = max(oldest, self._settled)
            found = await statistics.counted(self._db, since, now + SLICE)
            self._slices = {moment: rows for moment, rows in self._slices.items() if oldest <= moment < since}
            for row in found:
                self._slices.setdefault(row.slice, []).append(row)
            self._settled = statistics.slice_of(now - SETTLED_AFTER)
            self._counted_at = loop.time()


def summary(rows: Sequence[Counted]) -> dict[str, Any]:
    """The agents and tools of these counts, those with most work first."""
    agents = [
        {
            "name": name,
            "turns": _times(turns),
            **{label: _times(turns, what) for label, what in ENDS.items()},
            "p50_seconds": statistics.percentile(turns, 0.5),
            "p95_seconds": statistics.percentile(turns, 0.95),
            "tokens": sum(row.tokens for row in of_agent if row.kind == "reply"),
        }
        for name, of_agent in _by_name(row for row in rows if row.kind in ("turn", "reply"))
        for turns in [[row for row in of_agent if row.kind == "turn"]]
    ]
    tools = [
        {
            "name": name,
            "calls": _times(calls),
            "failed": _times(calls, "failed"),
            "p50_seconds": statistics.percentile(calls, 0.5),
            "p95_seconds": statistics.percentile(calls, 0.95),
        }
        for name, calls in _by_name(row for row in rows if row.kind == "call")
    ]
    return {
        "agents": sorted(agents, key=lambda one: (-one["turns"], one["name"])),
        "tools": sorted(tools, key=lambda one: (-one["calls"], one["name"])),
    }


ENDS: Final = {"completed": "Finished", "failed": "Failed", "cancelled": "Cancelled"}


def _by_name(rows: Iterator[Counted]) -> Iterator[tuple[str, list[Counted]]]:
    found: defaultdict[str, list[Counted]] = defaultdict(list)
    for row in rows:
        found[row.name].append(row)
    yield from found.items()


def _times(rows: Sequence[Counted], what: str = "") -> int:
    return sum(row.times for row in rows if not what or row.what == what)


class Asked(wire.StrictModel):
    window: Literal["1h", "6h", "24h"] = Field("24h", description="How far back, in slices of 15 minutes")


class AskedOfAll(Asked):
    owner: Omittable[wire.Id] = Field(None, description="Of this owner")


router = strict_router("Watching", auth.user)
admin_router = strict_router("Admin", auth.admin)
Counts = Annotated[Statistics, of_app("statistics")]
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {200: wire.answer("Agents and tools, the busiest first.", SHOWN)}


@router.get("/v1/statistics", responses=ANSWERS)
async def get_statistics(caller: auth.User, counts: Counts, asked: Annotated[Asked, Query()]) -> Response:
    """How often your agents and their tools worked, succeeded and failed, and how long they took.

    A turn lasts from its start to its end, waits included; a call that needs approval from its approval on. Counts are
    a few seconds old at most; percentiles are exact to about a twentieth.
    """
    return await _answer(counts, asked, caller.owner)


@admin_router.get("/admin/statistics", responses=ANSWERS)
async def get_all_statistics(counts: Counts, asked: Annotated[AskedOfAll, Query()]) -> Response:
    """As `/v1/statistics`, over all owners or of one."""
    return await _answer(counts, asked, asked.owner)


async def _answer(counts: Statistics, asked: Asked, owner: str | None) -> Response:
    window = WINDOWS[asked.window]
    rows = await counts.rows(window, owner)
    return wire.Json({"since": statistics.slice_of(clock.now() - window), **summary(rows)})
