"""`longhouse` in a process of its own, forked from one that has loaded it, with a kill point or as a mutant."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos import clocks, freezing, kill_points, mutants
from longhouse.cli.main import cli
from longhouse.store import journals

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["longhouse.cli.processes.preload"])
PR_SET_PDEATHSIG: Final = 1
SNAPSHOT_EVERY: Final = 12
"""Events: sessions of the chaos test are short, and their snapshots are checked too."""


@dataclass(frozen=True)
class Launch:
    """What is started."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    point: str = ""
    nth: int = 1
    mutant: str = ""


class Launched:
    """A process, until it has ended."""

    def __init__(self, launch: Launch) -> None:
        self._process = _CONTEXT.Process(target=_run, args=(launch,))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._end)

    @property
    def code(self) -> int | None:
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            if not self.ended.is_set():
                os.kill(self.pid, number)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self.ended.set()


def _run(launch: Launch) -> None:
    os.setsid()  # Ctrl-C reaches only the harness, which ends what it started
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.chdir(launch.folder)
    os.environ.clear()
    os.environ.update(launch.environment)
    output = os.open(launch.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for channel in (1, 2):
        os.dup2(output, channel)
    journals.SNAPSHOT_EVERY = SNAPSHOT_EVERY  # type: ignore[misc]
    freezing.arm()
    clocks.arm()
    if launch.mutant:
        mutants.BY_NAME[launch.mutant].break_it()
    if launch.point:
        kill_points.arm(launch.point, launch.nth)
    sys.argv = ["longhouse", *launch.command]
    cli(prog_name="longhouse")
