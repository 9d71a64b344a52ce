"""The CPU time of processes by the nanosecond, as the scheduler of Linux counts it; other clocks take hundredths of a
second, in which several steps are made."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

Times = Mapping[int, float]
"""Process -> the seconds of CPU that its threads have used."""


def times(processes: Iterable[psutil.Process]) -> Times:
    used = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it ended since
            used[process.pid] = _used(process)
    return used


def between(before: Times, after: Times) -> float:
    """Seconds of CPU of those that are there after it."""
    return sum(used - before.get(pid, 0.0) for pid, used in after.items())


def _used(process: psutil.Process) -> float:
    try:
        threads = [(one / "schedstat").read_text() for one in Path("/proc", str(process.pid), "task").iterdir()]
    except OSError:  # another system, or a thread that has just ended
        clocks = process.cpu_times()
        return float(clocks.user + clocks.system)
    return sum(int(thread.split()[0]) for thread in threads) / 1e9
