"""`longhouse work` in processes that are forked from one that has loaded the modules: a start takes no second."""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess

from bench.house import Ground

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["longhouse.cli.processes.preload"])


@dataclass(frozen=True)
class Workers:
    """Workers of one house, by process id."""

    under: Ground
    settings: Mapping[str, str]
    processes: dict[int, BaseProcess] = field(default_factory=dict)

    async def start(self) -> int:
        """One more; it may claim sessions when this returns."""
        process = _CONTEXT.Process(target=_work, args=(dict(self.settings),))
        process.start()
        assert process.pid is not None
        self.processes[process.pid] = process
        async with asyncio.timeout(60):
            while not await self.under.db.value("SELECT count(*) FROM workers WHERE pid = :pid", pid=process.pid):  # noqa: ASYNC110 - no event tells it
                await asyncio.sleep(0.02)
        return process.pid

    def kill(self, pid: int) -> None:
        """As `kill -9` does."""
        os.kill(pid, signal.SIGKILL)
        self.processes.pop(pid).join()

    async def holder(self, session_id: str) -> tuple[str, int]:
        """The worker that holds the session, and its process."""
        row = await self.under.db.row(
            "SELECT w.id, w.pid FROM sessions s JOIN workers w ON w.id = s.holder WHERE s.id = :session",
            session=session_id,
        )
        assert row is not None, "nobody holds the session"
        return row["id"], row["pid"]


@asynccontextmanager
async def working(under: Ground, number: int, **settings: str) -> AsyncIterator[Workers]:
    """So many workers, with LONGHOUSE_* variables."""
    known = {"database_url": under.dsn, "llm_base_url": under.model_url, "log_level": "error", **settings}
    workers = Workers(under, {f"LONGHOUSE_{name.upper()}": value for name, value in known.items()})
    try:
        for _ in range(number):
            await workers.start()
        yield workers
    finally:
        for process in workers.processes.values():
            with suppress(ProcessLookupError):
                process.kill()
        for process in workers.processes.values():
            process.join()
        await under.db.run("DELETE FROM workers")


def _work(settings: dict[str, str]) -> None:
    from longhouse.cli.main import cli  # noqa: PLC0415 - in the forked process, which has it loaded

    os.environ.update(settings)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.argv = ["longhouse", "work"]
    cli(prog_name="longhouse")
