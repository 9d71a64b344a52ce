"""How long the event loop of a server is held at a time, by the CPU time between two awaits.

`python -m bench.loop_turns`. The server runs on asyncio's own loop, whose callbacks can be watched; all that is ours in
them is the same.
"""

import asyncio
import json
import os
import runpy
import signal
import statistics
import sys
import tempfile
import time
from asyncio import events
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from bench import spine
from bench.house import Ground, ground, house
from bench.report import console, machine, show

LOADS: Final = ((100, 20), (200, 100))
"""Sessions, and how many at once."""
LONG: Final = 0.01
"""Seconds; the share of turns that are longer is told."""


async def measure(under: Ground) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="longhouse-bench-") as folder:
        told = Path(folder) / "turns.json"
        async with house(under, module=("bench.loop_turns", str(told))) as served:
            await spine.play(under, served, sessions=40, at_once=20)  # warm-up
            await _since_then(served.process.pid, told)
            rows = []
            for sessions, at_once in LOADS:
                await spine.play(under, served, sessions=sessions, at_once=at_once)
                rows.append({"at once": at_once, "sessions": sessions, **await _since_then(served.process.pid, told)})
            return rows


async def _since_then(pid: int, told: Path) -> dict[str, Any]:
    """What the server tells of its turns since it was last asked."""
    os.kill(pid, signal.SIGUSR1)
    async with asyncio.timeout(30):
        while not told.exists():  # noqa: ASYNC110, ASYNC240 - it is another's
            await asyncio.sleep(0.05)
    row: dict[str, Any] = json.loads(told.read_bytes())  # noqa: ASYNC240
    told.unlink()  # noqa: ASYNC240
    return row


class _Turns:
    """The turns of the loop of this process since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._took: list[float] = []
        self._longest = (0.0, "")

    def watch(self) -> None:
        run, clock = events.Handle._run, time.thread_time

        def timed(handle: Any) -> None:
            began = clock()
            run(handle)
            took = clock() - began
            self._took.append(took)
            if took > self._longest[0]:
                self._longest = (took, _name_of(handle._callback))

        events.Handle._run = timed  # type: ignore[method-assign,assignment]

    def tell(self, *_: object) -> None:
        took, longest = sorted(self._took), self._longest
        self._took, self._longest = [], (0.0, "")
        written = self._path.with_suffix(".part")
        written.write_text(json.dumps(_row(took, longest) if took else {}))
        written.rename(self._path)


def _row(took: Sequence[float], longest: tuple[float, str]) -> dict[str, Any]:
    return {
        "turns": len(took),
        "p50 µs": round(statistics.median(took) * 1e6),
        "p99 ms": round(took[int(len(took) * 0.99)] * 1e3, 2),
        "p99.9 ms": round(took[int(len(took) * 0.999)] * 1e3, 2),
        f"over {LONG * 1e3:g} ms": sum(one > LONG for one in took),
        "longest ms": round(longest[0] * 1e3, 1),
        "the longest in": longest[1],
    }


def _name_of(callback: Any) -> str:
    """The coroutine, and the one that it waits for now."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))
    names = list[str]()
    one: Any = task.get_coro()
    while one is not None and hasattr(one, "cr_await"):
        names.append(one.__qualname__)
        one = one.cr_await
    return " … ".join(dict.fromkeys((*names[:1], *names[-2:])))


async def main() -> None:
    console.print(machine())
    async with ground() as under:
        show("turns of the event loop", await measure(under))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        turns = _Turns(Path(sys.argv.pop(1)))
        turns.watch()
        signal.signal(signal.SIGUSR1, turns.tell)
        uvloop.new_event_loop = asyncio.SelectorEventLoop  # type: ignore[assignment]
        runpy.run_module("longhouse", run_name="__main__", alter_sys=True)
    else:
        uvloop.run(main())
