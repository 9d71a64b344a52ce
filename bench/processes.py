"""`longhouse serve --workers 2` against one process: how many more sessions a second, where cores are free?

`python -m bench.processes`. On a machine whose cores the clients, the model and Postgres share, a second process finds
none free. So each process has a quarter of a core besides, by a cgroup: a second one then brings as much again.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop

from bench import spine
from bench.house import Ground, House, ground, house
from bench.report import console, machine, show

CGROUPS: Final = Path("/sys/fs/cgroup/cpu")
SHARE: Final = 0.25
"""Of a core, for each process."""
PERIOD: Final = 20_000
"""Microseconds in which a process may use its share."""


@dataclass(frozen=True)
class Several(House):
    """A house of several processes."""

    children: Sequence[psutil.Process] = ()

    def cpu(self) -> float:
        times = [one.cpu_times() for one in (self.process, *self.children)]
        return sum(one.user + one.system for one in times)


@asynccontextmanager
async def several(under: Ground, number: int) -> AsyncIterator[Several]:
    async with house(under, "serve", "--port", "0", "--workers", str(number)) as one:
        children = [child for child in one.process.children() if "--child" in child.cmdline()]
        assert len(children) == (number if number > 1 else 0)
        yield Several(one.url, one.process, children)
    await asyncio.to_thread(psutil.wait_procs, children, 30)  # they leave once they see that the first is gone


@contextmanager
def limited(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Each process has its share of a core, and no more."""
    folders = [CGROUPS / f"longhouse-bench-{os.getpid()}-{one.pid}" for one in processes]
    try:
        for folder, process in zip(folders, processes, strict=True):
            folder.mkdir()
            (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(round(PERIOD * SHARE)))
            (folder / "cgroup.procs").write_text(str(process.pid))
        yield
    finally:
        for folder in filter(Path.exists, folders):
            with suppress(ProcessLookupError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    (CGROUPS / "cgroup.procs").write_text(pid)
            folder.rmdir()


def may_limit() -> bool:
    probe = CGROUPS / f"longhouse-bench-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


async def measure(under: Ground) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for is_limited in (True, False):
        if is_limited and not may_limit():
            rows.append(_row("no cgroups here: left out", 0, None, None, None))
            continue
        first: spine.Played | None = None
        for number in (1, 2):
            async with several(under, number) as served:
                await spine.play(under, served, sessions=60, at_once=20)  # warm-up
                with limited(served.children or [served.process]) if is_limited else nullcontext():
                    played = await spine.play(under, served, sessions=100, at_once=20)
                    rush = await spine.play(under, served, sessions=100, at_once=100)
            first = first or played
            cores = f"{SHARE:.0%} of a core for each" if is_limited else "all, shared with everybody"
            rows.append(_row(cores, number, played, rush, first))
    return rows


def _row(
    cores: str, number: int, played: spine.Played | None, rush: spine.Played | None, first: spine.Played | None
) -> dict[str, Any]:
    at_20, at_100 = (one.row() if one else {} for one in (played, rush))
    return {
        "cores": cores,
        "processes": number or "",
        "sessions/s, 20 at once": at_20.get("sessions/s", ""),
        "times": f"{first.seconds / played.seconds:.2f}" if played and first else "",
        "CPU ms/step": at_20.get("CPU ms/step", ""),
        "first content p50 ms": at_20.get("first content p50 ms", ""),
        "sessions/s, 100 at once": at_100.get("sessions/s", ""),
        "first content at 100 p50 ms": at_100.get("first content p50 ms", ""),
    }


async def main() -> None:
    console.print(machine())
    async with ground() as under:
        show("one process and two", await measure(under))


if __name__ == "__main__":
    uvloop.run(main())
