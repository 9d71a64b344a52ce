"""A catalog of a hundred thousand tools: how fast it fills, how fast it is read over HTTP, and what a start costs."""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import msgspec

from bench.house import Ground, ground, house
from longhouse.api.admin.docs import TOOL
from longhouse.catalog.validation import CatalogValidator
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.search import index

TOOLS = 100_000
BATCH = 1_000
READS = 200
INDEX_WITHIN = 300


async def play(tools: int = TOOLS) -> list[dict[str, Any]]:
    """Starts on an empty catalog, fills it, reads it, and starts again."""
    os.environ["LONGHOUSE_SECRET_WAREHOUSE"] = "key-of-the-warehouse"  # the example of a tool names it
    async with ground() as under:
        empty = await started(under)
        row = {"tools": tools, **await filled(under, tools)}
        async with house(under) as served, aiohttp.ClientSession(served.url) as http:
            await indexed(under)
            row |= await read(http, tools)
        full = await started(under)
    return [{**row, "start, empty s": round(empty, 2), "start, full s": round(full, 2)}]


async def started(under: Ground) -> float:
    """Seconds until a Longhouse says where it serves, the best of three."""
    took = []
    for _ in range(3):
        began = time.perf_counter()
        async with house(under):
            took.append(time.perf_counter() - began)
    return min(took)


def batches(tools: int) -> Iterator[bytes]:
    for start in range(0, tools, BATCH):
        some = [
            {**TOOL, "name": f"tool_{n:06}", "description_short": f"{TOOL['description_short']} Depot {n}."}
            for n in range(start, min(start + BATCH, tools))
        ]
        yield msgspec.json.encode(some)


async def filled(under: Ground, tools: int) -> dict[str, Any]:
    """All that a request of the Admin API does but for HTTP itself; no process is there to index meanwhile."""
    catalog = Catalog(under.db)
    admission = CatalogValidator(catalog)
    late, cpu, postgres = [], time.process_time(), under.postgres_cpu()
    for body in batches(tools):
        began = time.perf_counter()
        await admission.publish(catalog.tools, msgspec.json.decode(body), by="bench")
        late.append(time.perf_counter() - began)
    return {
        "published/s": round(tools / sum(late)),
        "slowest batch ms": round(max(late) * 1000),
        "CPU us each": round((time.process_time() - cpu) / tools * 1e6),
        "Postgres us each": round((under.postgres_cpu() - postgres) / tools * 1e6),
    }


async def indexed(under: Ground) -> None:
    """Waits until the server has taken up what was published, so that reading is measured by itself."""
    async with asyncio.timeout(INDEX_WITHIN):
        while await index.behind(under.db, None):  # noqa: ASYNC110 - it is another's
            await asyncio.sleep(0.5)


async def read(http: aiohttp.ClientSession, tools: int) -> dict[str, Any]:
    """Milliseconds, p50 and p95, for one tool, for one of its versions, and for a page of fifty anywhere."""
    step = max(1, tools // READS)
    found: dict[str, Any] = {}
    for name, path in (
        ("get", "/admin/tools/tool_{:06}"),
        ("get version", "/admin/tools/tool_{:06}@1"),
        ("page of 50", "/admin/tools?limit=50&before=tool_{:06}"),
        ("active page of 50", "/admin/tools?limit=50&inactive=false&before=tool_{:06}"),
    ):
        late = sorted([await _took(lambda n=n, path=path: _get(http, path.format(n))) for n in range(0, tools, step)])  # type: ignore[misc]
        found[f"{name} ms"] = f"{statistics.median(late) * 1000:.1f} / {late[int(len(late) * 0.95)] * 1000:.1f}"
    return found


async def _took(do: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await do()
    return time.perf_counter() - began


async def _get(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        assert response.status == 200, await response.text()
        await response.read()
