"""Where the time of a step goes: in our process by parts of the code, in Postgres by statements.

`make profile`, or `python -m bench.profile [FOLDER]`. The process is sampled while it plays ten-step sessions, twenty
at once. The folder, runs/profile unless one is named, gets the flame graph and the stacks it is drawn from.
"""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop

from bench import flames, spine
from bench.house import Ground, ground, house
from bench.report import console, machine, show

SESSIONS: Final = 300
AT_ONCE: Final = 20
LINES: Final = 25
"""Functions and statements that are shown."""

AREAS: Final = {
    "asyncpg/": "asyncpg",
    "longhouse/store/": "store: statements and their parameters",
    "aiohttp/": "aiohttp, the model's HTTP client",
    "longhouse/models/": "model stream: request and reply",
    "longhouse/runtime/steps/model_stream": "model stream: request and reply",
    "uvicorn/": "web: uvicorn, Starlette, FastAPI",
    "starlette/": "web: uvicorn, Starlette, FastAPI",
    "fastapi/": "web: uvicorn, Starlette, FastAPI",
    "longhouse/api/": "web: our routes and streams",
    "longhouse/journal/fold": "fold",
    "longhouse/journal/": "journal: events, session",
    "longhouse/agents/": "strategy: the request, the rules",
    "longhouse/tools/": "offering and tools",
    "longhouse/runtime/recorder": "recorder",
    "longhouse/runtime/bus/": "bus",
    "longhouse/runtime/": "runtime: engine, worker, tool runner",
    "longhouse/memory/": "memory and ledger",
    "longhouse/": "the rest of Longhouse",
}
"""The beginning of a file's path -> the part that it belongs to; the first one that fits counts. Other libraries, and
those of Python, count for the part that calls them."""
ELSEWHERE: Final = "event loop and other libraries"

STATEMENTS: Final = """
    SELECT calls, total_exec_time AS executing, total_plan_time AS planning, wal_bytes::bigint AS wal, query
    FROM pg_stat_statements WHERE calls > :least ORDER BY total_exec_time + total_plan_time DESC LIMIT :most
"""


def area_of(stack: str) -> str:
    """The part of the code that a sampled stack belongs to: that of its innermost frame that is in one."""
    for frame in reversed(stack.split(";")):
        path = frame.rpartition(" (")[2]
        if area := next((area for start, area in AREAS.items() if path.startswith(start)), None):
            return area
    return ELSEWHERE


def by_area(stacks: Counter[str], per_step: float) -> list[dict[str, Any]]:
    areas: Counter[str] = Counter()
    for stack, samples in stacks.items():
        areas[area_of(stack)] += samples
    return _shares(areas, per_step, "part")


def by_function(stacks: Counter[str], per_step: float) -> list[dict[str, Any]]:
    """Functions by the time in which they, or what they call, run."""
    functions: Counter[str] = Counter()
    for stack, samples in stacks.items():
        functions.update(dict.fromkeys(stack.split(";"), samples))
    return _shares(functions, per_step, "function, with what it calls", total=stacks.total())[:LINES]


def _shares(counted: Counter[str], per_step: float, name: str, total: int = 0) -> list[dict[str, Any]]:
    total = total or counted.total()
    return [
        {name: what, "%": round(100 * samples / total, 1), "ms/step": round(samples / total * per_step, 3)}
        for what, samples in counted.most_common()
    ]


def read(path: Path) -> Counter[str]:
    """Stacks, outermost frame first, and how often each was seen."""
    lines = (line.rpartition(" ") for line in path.read_text().splitlines())
    stacks: Counter[str] = Counter()
    for stack, _, samples in lines:
        stacks[stack] += int(samples)
    return stacks


@asynccontextmanager
async def sampled(process: psutil.Process, path: Path) -> AsyncIterator[None]:
    """Samples a process of `bench.sampler` for as long as the block runs; then the stacks are in the file."""
    process.send_signal(signal.SIGUSR1)
    yield
    process.send_signal(signal.SIGUSR1)
    async with asyncio.timeout(30):
        while not path.exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.1)


async def statements(under: Ground, steps: int) -> list[dict[str, Any]]:
    found = await under.db.rows(STATEMENTS, least=steps // 100, most=LINES)
    return [
        {
            "calls/step": round(one["calls"] / steps, 2),
            "executing ms/step": round(one["executing"] / steps, 3),
            "planning ms/step": round(one["planning"] / steps, 3),
            "WAL bytes/step": round(one["wal"] / steps),
            "statement": " ".join(one["query"].split())[:90],
        }
        for one in found
    ]


async def main(folder: Path) -> None:
    stacks = folder / "stacks.txt"
    console.print(machine())
    async with ground(counts=True) as under:
        await under.db.run("ALTER SYSTEM SET pg_stat_statements.track_planning = on")
        await under.db.run("SELECT pg_reload_conf()")
        stacks.unlink(missing_ok=True)
        async with house(under, module=("bench.sampler", str(stacks))) as served:
            await spine.play(under, served, sessions=60, at_once=AT_ONCE)  # warm-up
            await under.db.run("SELECT pg_stat_statements_reset()")
            async with sampled(served.process, stacks):
                played = await spine.play(under, served, sessions=SESSIONS, at_once=AT_ONCE)
        show("a durable ten-step session over HTTP, sampled", [played.row()])
        seen, per_step = read(stacks), played.cpu / played.steps * 1000
        show("where a step's CPU goes", by_area(seen, per_step))
        show("functions", by_function(seen, per_step))
        show("Postgres, by statement", await statements(under, played.steps))
    (folder / "flames.svg").write_text(flames.drawn(seen))
    console.print(f"the flame graph: {folder / 'flames.svg'}")


if __name__ == "__main__":
    wanted = Path(*sys.argv[1:2] or ("runs", "profile"))
    wanted.mkdir(parents=True, exist_ok=True)
    uvloop.run(main(wanted))
