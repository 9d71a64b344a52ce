"""What the benchmarks run against: a Postgres, a model and a Longhouse, each in a process of its own."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from aiohttp import web

from longhouse.store import migrate
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import open_postgres

RESTS_AT: Final = 20_000
"""Bytes of WAL in a second: with fewer, nothing but heartbeats and sweeps is written."""
QUIET_FOR: Final = 12
"""Seconds; what follows a turn (its ledger, its index) is looked for every ten."""
SETTLES_WITHIN: Final = 1_800.0


@dataclass(frozen=True)
class Ground:
    """The machine under the benchmarks."""

    db: Database
    dsn: str
    model_url: str
    postmaster: psutil.Process

    def postgres_cpu(self) -> float:
        """Seconds of CPU of all Postgres processes, those that ended included."""
        times = self.postmaster.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in self.postmaster.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ended since; the postmaster has its time
                with_child = child.cpu_times()
                total += with_child.user + with_child.system
        return total

    async def written(self) -> tuple[int, int]:
        """Transactions that wrote something, and bytes of WAL so far. Postgres counts commits too, but only seconds
        later."""
        commits = await self.db.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        wal = await self.db.value("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        return int(commits), int(wal)

    async def settled(self) -> None:
        """Waits until nothing more is written: not the ledger and index of the turns, nor what Postgres tidies."""
        quiet, (_, before) = 0, await self.written()
        async with asyncio.timeout(SETTLES_WITHIN):
            while quiet < QUIET_FOR:
                await asyncio.sleep(1)
                _, now = await self.written()
                quiet, before = (quiet + 1 if now - before < RESTS_AT else 0), now


@dataclass(frozen=True)
class House:
    url: str
    process: psutil.Process

    def cpu(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def rss(self) -> int:
        return int(self.process.memory_info().rss)


@asynccontextmanager
async def ground(*, counts: bool = False) -> AsyncIterator[Ground]:
    """`counts`: Postgres counts statements, in pg_stat_statements."""
    with tempfile.TemporaryDirectory(prefix="longhouse-bench-") as folder:
        Path(folder).chmod(0o711)  # noqa: ASYNC240 - Postgres may run under another account, which must enter
        if counts:
            async with open_postgres(Path(folder)) as postgres, open_database(postgres.dsn) as db:
                await db.run("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
        async with (
            open_postgres(Path(folder)) as postgres,
            open_database(postgres.dsn) as db,
            printing(sys.executable, "-m", "bench.model") as (_, model_url),
        ):
            await migrate.migrate(db, may_extend=postgres.vectors)
            if counts:
                await db.run("CREATE EXTENSION pg_stat_statements")
            pid = await db.value("SELECT pg_backend_pid()")
            postmaster = psutil.Process(pid).parent()
            assert postmaster is not None
            yield Ground(db, postgres.dsn, model_url, postmaster)


@asynccontextmanager
async def house(
    under: Ground, *arguments: str, module: Sequence[str] = ("longhouse",), **more: str
) -> AsyncIterator[House]:
    """`longhouse serve`, or a command with these arguments, with LONGHOUSE_* variables."""
    settings = {
        "LONGHOUSE_DATABASE_URL": under.dsn,
        "LONGHOUSE_LLM_BASE_URL": under.model_url,
        "LONGHOUSE_LOG_LEVEL": "warning",
        "LONGHOUSE_WORKER_SLOTS": "128",
        **{f"LONGHOUSE_{name.upper()}": value for name, value in more.items()},
    }
    command = (sys.executable, "-m", *module, *(arguments or ("serve", "--port", "0")))
    async with printing(*command, **settings) as (process, line):
        yield House(line.rpartition(" ")[2], psutil.Process(process.pid))


@asynccontextmanager
async def printing(*command: str, **settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A process and the first line it prints."""
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **settings}, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(30):
            line = (await process.stdout.readline()).decode().strip()
        yield process, line
    finally:
        with suppress(ProcessLookupError):  # it was stopped cleanly
            process.kill()
        await process.wait()


@asynccontextmanager
async def listening(answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """The address of a model in this process, so that one clock tells when it was asked."""
    runner = web.ServerRunner(web.Server(answer, handler_cancellation=True, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
