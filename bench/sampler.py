"""Runs `longhouse` and samples it: `python -m bench.sampler STACKS ARGUMENTS…`.

SIGUSR1 begins, a second one ends and writes the stacks that were seen. The timer runs by the CPU time of the process,
so that what waits for a core, as whatever has just woken another process does, does not count as work.
"""

import runpy
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

EVERY: Final = 0.002
"""Seconds of CPU time between two samples."""


class Sampler:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_on = False
        self._stacks: Counter[tuple[CodeType, ...]] = Counter()

    def switch(self, _: int, frame: FrameType | None) -> None:
        self._is_on = not self._is_on
        signal.setitimer(signal.ITIMER_PROF, *((EVERY, EVERY) if self._is_on else (0, 0)))
        if not self._is_on:
            self._write()

    def sample(self, _: int, frame: FrameType | None) -> None:
        stack = []
        while frame:
            stack.append(frame.f_code)
            frame = frame.f_back
        self._stacks[tuple(stack)] += 1

    def _write(self) -> None:
        written = self._path.with_suffix(".part")
        written.write_text("".join(f"{_line(stack)} {seen}\n" for stack, seen in self._stacks.items()))
        written.rename(self._path)


def _line(stack: tuple[CodeType, ...]) -> str:
    """Functions with their files, outermost first."""
    return ";".join(f"{code.co_qualname} ({_place(code.co_filename)})" for code in reversed(stack))


def _place(path: str) -> str:
    """The path from the package on."""
    for root in ("site-packages/", "src/", "python3.11/"):
        path = path.rpartition(root)[2]
    return path


if __name__ == "__main__":
    sampler = Sampler(Path(sys.argv[1]))
    signal.signal(signal.SIGUSR1, sampler.switch)
    signal.signal(signal.SIGPROF, sampler.sample)
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("longhouse", run_name="__main__", alter_sys=True)
