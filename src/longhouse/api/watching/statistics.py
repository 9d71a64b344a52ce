"""Statistics per agent and tool over a window: counted from the journals, slice by slice, once for all callers."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import Annotated, Any, Final, Literal, TypedDict

from fastapi import Query
from pydantic import Field

from longhouse import clock
from longhouse.api import auth, errors, wire
from longhouse.api.http.json_route import Answers, of_app, strict_router
from longhouse.api.pagination import Omittable
from longhouse.store.database import PASSING, Database
from longhouse.store.lists import statistics
from longhouse.store.lists.statistics import SLICE, Count

DAY: Final = timedelta(hours=24)
COUNTED_EVERY: Final = 5.0
"""Seconds; whoever asks sooner is told what was counted last."""
SETTLED_AFTER: Final = timedelta(minutes=2)
"""After its end a slice is counted once more: what was under way at its end is written by then."""
NOT_AGAIN_FOR: Final = 5.0
"""Seconds for which nobody counts again after Postgres failed, or took too long."""

WINDOWS: Final = {"1h": timedelta(hours=1), "6h": timedelta(hours=6), "24h": DAY}
EXAMPLE: Final[dict[str, Any]] = {
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
        self._settled: dict[datetime, list[Count]] = {}
        """Slices that are not counted again."""
        self._present: dict[datetime, list[Count]] = {}
        self._counted_at = self._failed_at = float("-inf")
        self._counting = asyncio.Lock()

    async def rows(self, window: timedelta = DAY, owner: str | None = None) -> list[Count]:
        """What was counted within a window, of one owner or of all."""
        since = clock.now() - window
        await self._refresh(since)
        return [
            row
            for moment, rows in (*self._settled.items(), *self._present.items())
            if moment + SLICE > since
            for row in rows
            if owner is None or row.owner == owner
        ]

    async def _refresh(self, since: datetime) -> None:
        """Counts what is missing from `since` on."""
        async with self._counting:  # those who come meanwhile wait for the same counts
            time = asyncio.get_running_loop().time
            if time() - self._failed_at < NOT_AGAIN_FOR:
                raise errors.unavailable("The statistics could not be counted just now.")
            try:
                await self._count_missing(since)
            except PASSING:
                self._failed_at = time()
                raise

    async def _count_missing(self, since: datetime) -> None:
        """Counts from the newest slice back; what was counted is kept, even if an older slice takes too long."""
        now, loop = clock.now(), asyncio.get_running_loop()
        oldest, present = statistics.slice_of(now - DAY), statistics.slice_of(now - SETTLED_AFTER)
        if loop.time() - self._counted_at >= COUNTED_EVERY:
            self._present = await self._count(present, now + SLICE)
            self._counted_at = loop.time()
            self._settled = {moment: rows for moment, rows in self._settled.items() if moment >= oldest}
        missing = [one for one in _slices(statistics.slice_of(since), present) if one not in self._settled]
        for _, group in groupby(reversed(missing), key=lambda moment: moment.replace(minute=0)):
            in_hour = list(group)
            counted = await self._count(in_hour[-1], in_hour[0] + SLICE)
            self._settled |= counted
            for moment in counted:  # one of them may have been the present one so far
                self._present.pop(moment, None)

    async def _count(self, since: datetime, until: datetime) -> dict[datetime, list[Count]]:
        found: dict[datetime, list[Count]] = {moment: [] for moment in _slices(since, until)}
        for row in await statistics.count_events(self._db, since, until):
            found[row.slice].append(row)
        return found


def _slices(since: datetime, until: datetime) -> Iterator[datetime]:
    while since < until:
        yield since
        since += SLICE


class AgentWork(TypedDict):
    name: str
    turns: int
    completed: int
    failed: int
    cancelled: int
    p50_seconds: float | None
    p95_seconds: float | None
    tokens: int


class ToolWork(TypedDict):
    name: str
    calls: int
    failed: int
    p50_seconds: float | None
    p95_seconds: float | None


class Work(TypedDict):
    agents: list[AgentWork]
    tools: list[ToolWork]


class ShownStatistics(Work):
    since: datetime


def summary(rows: Sequence[Count]) -> Work:
    """The agents and tools of these counts, those with most work first."""
    agents: list[AgentWork] = [
        {
            "name": name,
            "turns": _times(turns),
            "completed": _times(turns, "Finished"),
            "failed": _times(turns, "Failed"),
            "cancelled": _times(turns, "Cancelled"),
            "p50_seconds": statistics.percentile(turns, 0.5),
            "p95_seconds": statistics.percentile(turns, 0.95),
            "tokens": sum(row.tokens for row in of_agent if row.kind == "reply"),
        }
        for name, of_agent in _by_name(row for row in rows if row.kind in ("turn", "reply"))
        for turns in [[row for row in of_agent if row.kind == "turn"]]
    ]
    tools: list[ToolWork] = [
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


def _by_name(rows: Iterator[Count]) -> Iterator[tuple[str, list[Count]]]:
    found: defaultdict[str, list[Count]] = defaultdict(list)
    for row in rows:
        found[row.name].append(row)
    yield from found.items()


def _times(rows: Sequence[Count], what: str = "") -> int:
    return sum(row.times for row in rows if not what or row.what == what)


class WindowQuery(wire.StrictModel):
    window: Literal["1h", "6h", "24h"] = Field("24h", description="How far back, in slices of 15 minutes")


class WindowOfOwner(WindowQuery):
    owner: Omittable[wire.Id] = Field(None, description="Of this owner")


router = strict_router("Watching", auth.user)
admin_router = strict_router("Admin", auth.admin)
Counts = Annotated[Statistics, of_app("statistics")]
ANSWERS: Final[Answers] = {200: wire.answer("Agents and tools, the busiest first.", EXAMPLE)}


@router.get("/v1/statistics", responses=ANSWERS)
async def get_statistics(
    caller: auth.User, counts: Counts, asked: Annotated[WindowQuery, Query()]
) -> wire.Json[ShownStatistics]:
    """How often your agents and their tools worked, succeeded and failed, and how long they took.

    A turn lasts from its start to its end, waits included; a call that needs approval from its approval on. Counts are
    a few seconds old at most; percentiles are exact to about a twentieth.
    """
    return await _answer(counts, asked, caller.owner)


@admin_router.get("/admin/statistics", responses=ANSWERS)
async def get_all_statistics(counts: Counts, asked: Annotated[WindowOfOwner, Query()]) -> wire.Json[ShownStatistics]:
    """As `/v1/statistics`, over all owners or of one."""
    return await _answer(counts, asked, asked.owner)


async def _answer(counts: Statistics, asked: WindowQuery, owner: str | None) -> wire.Json[ShownStatistics]:
    window = WINDOWS[asked.window]
    rows = await counts.rows(window, owner)
    return wire.Json({"since": statistics.slice_of(clock.now() - window), **summary(rows)})
