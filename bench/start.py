"""What it costs to start a house, and what a house costs that has nothing to do.

`python -m bench.start`. One `longhouse serve` with its embedded Postgres: seconds until `/ready` answers, in a new data
folder and in one that was stopped cleanly, and of that the start of Postgres alone; then, when what follows a start is
over, memory, CPU, wake-ups and statements.
"""

import asyncio
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import psutil
import uvloop

from bench.house import printing
from bench.report import console, machine, show
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import open_postgres

STARTS: Final = 5
SETTLES: Final = 12.0
"""Seconds: indexes, sizes and sweeps that follow a start."""
IDLE: Final = 25.0
CALLS: Final = "SELECT sum(calls) FROM public.pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"


def helps() -> dict[str, Any]:
    """CPU of `longhouse --help`, by the clock of the kernel for children."""
    seconds = []
    for _ in range(STARTS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "longhouse", "--help"], check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {"--help, s of CPU": f"{statistics.median(seconds):.2f}"}


async def starts(folder: Path) -> dict[str, Any]:
    """Seconds until a house is ready: the first time, and when it was stopped cleanly."""
    async with serving(folder) as (_, first):
        pass
    postgres_alone, warm, cpu = [], [], []
    for _ in range(STARTS):
        async with serving(folder) as (process, seconds):
            warm.append(seconds)
            cpu.append(sum(process.cpu_times()[:2]))
        began = time.perf_counter()
        async with open_postgres(folder):
            postgres_alone.append(time.perf_counter() - began)
    return {
        "new folder, s": f"{first:.2f}",
        "warm, s (median, best)": f"{statistics.median(warm):.2f}, {min(warm):.2f}",
        "Postgres alone": f"{statistics.median(postgres_alone):.2f}",
        "s of CPU to ready": f"{statistics.median(cpu):.2f}",
    }


async def idles(folder: Path) -> list[dict[str, Any]]:
    """What a house costs that has nothing to do: one that has just written its tools to the index, and one that has
    not searched."""
    async with open_postgres(folder) as postgres, open_database(postgres.dsn) as db:
        await db.run("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
    rows = []
    for has in ("has searched", "has not"):
        async with serving(folder) as (process, _):
            rows.append({"": has, **await idling(folder, process)})
    return rows


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[psutil.Process, float]]:
    """A house in this folder; the seconds until it was ready. It is stopped cleanly."""
    settings = {"LONGHOUSE_DATA_DIR": str(folder), "LONGHOUSE_LOG_LEVEL": "error"}
    began = time.perf_counter()
    async with printing(sys.executable, "-m", "longhouse", "serve", "--port", "0", **settings) as (process, line):
        url = line.rpartition(" ")[2]
        async with aiohttp.ClientSession(url) as http:
            await until_ready(http)
        yield psutil.Process(process.pid), time.perf_counter() - began
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def until_ready(http: aiohttp.ClientSession) -> None:
    while True:
        with suppress(aiohttp.ClientConnectionError):
            async with http.get("/ready") as answer:
                if answer.status == 200:
                    return
        await asyncio.sleep(0.005)


async def idling(folder: Path, process: psutil.Process) -> dict[str, Any]:
    """What the house costs while nothing happens."""
    async with open_postgres(folder) as attached, open_database(attached.dsn) as db:
        await db.run("CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA public")
        postmaster = psutil.Process(await db.value("SELECT pg_backend_pid()")).parent()
        assert postmaster is not None
        await asyncio.sleep(SETTLES)
        before = await observed(db, process, postmaster)
        await asyncio.sleep(IDLE)
        after = await observed(db, process, postmaster)
    ours, theirs, wakes, calls = (late - early for early, late in zip(before, after, strict=True))
    memory = process.memory_full_info()
    return {
        "RSS MiB": f"{memory.rss / 2**20:.1f}",
        "PSS": f"{memory.pss / 2**20:.1f}",
        "private": f"{memory.uss / 2**20:.1f}",
        "threads": process.num_threads(),
        "% of a core": f"{100 * ours / IDLE:.2f}",
        "Postgres": f"{100 * theirs / IDLE:.2f}",
        "wake-ups/s": f"{wakes / IDLE:.1f}",
        "statements/s": f"{calls / IDLE:.1f}",
    }


async def observed(db: Database, process: psutil.Process, postmaster: psutil.Process) -> tuple[float, ...]:
    """CPU of the process and of Postgres, wake-ups of all threads of the process, statements; each so far."""
    calls = await db.value(CALLS)
    ours = process.cpu_times()
    theirs = tree_cpu(postmaster)
    return ours.user + ours.system, theirs, wakeups(process.pid), float(calls or 0)


def tree_cpu(postmaster: psutil.Process) -> float:
    times = postmaster.cpu_times()
    total = times.user + times.system + times.children_user + times.children_system
    for child in postmaster.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it ended since; the postmaster has its time
            own = child.cpu_times()
            total += own.user + own.system
    return total


def wakeups(pid: int) -> int:
    """How often a thread of the process has slept and was woken."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):
            lines = status.read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total


async def measure() -> list[tuple[str, list[dict[str, Any]]]]:
    with tempfile.TemporaryDirectory(prefix="longhouse-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # noqa: ASYNC240 - Postgres may run under another account, which must enter
        started = {**await starts(folder), **helps()}
        return [("starting a house", [started]), ("a house that has nothing to do", await idles(folder))]


async def main() -> None:
    console.print(machine())
    for title, rows in await measure():
        show(title, rows)


if __name__ == "__main__":
    uvloop.run(main())
