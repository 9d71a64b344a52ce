"""A catalog of a hundred thousand tools: how fast it fills over HTTP, how fast it is read, and what a start costs."""

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import msgspec

from bench.house import Ground, House, ground, house
from longhouse.web.admin_docs import TOOL

TOOLS = 100_000
BATCH = 1_000
READS = 200


async def play(tools: int = TOOLS) -> list[dict[str, Any]]:
    """Starts on an empty catalog, fills it, reads it, and starts again."""
    async with ground() as under:
        empty = await started(under)
        async with house(under) as served, aiohttp.ClientSession(served.url) as http:
            row = {"tools": tools, **await filled(under, served, http, tools)}
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


async def filled(under: Ground, served: House, http: aiohttp.ClientSession, tools: int) -> dict[str, Any]:
    seconds, cpu, postgres = 0.0, served.cpu(), under.postgres_cpu()
    slowest = 0.0
    for body in batches(tools):
        took = await _took(lambda body=body: _post(http, body))  # type: ignore[misc]
        seconds, slowest = seconds + took, max(slowest, took)
    return {
        "published/s": round(tools / seconds),
        "slowest batch ms": round(slowest * 1000),
        "CPU us each": round((served.cpu() - cpu) / tools * 1e6),
        "Postgres us each": round((under.postgres_cpu() - postgres) / tools * 1e6),
    }


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


async def _post(http: aiohttp.ClientSession, body: bytes) -> None:
    async with http.post("/admin/tools", data=body, headers={"content-type": "application/json"}) as response:
        assert response.status == 201, await response.text()


async def _get(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        assert response.status == 200, await response.text()
        await response.read()
