"""Hints on their way out: at once while little happens, in batches under load."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from longhouse import background
from longhouse.runtime.bus.hints import Hint, coalesced

APART: Final = 0.02
"""Seconds between two batches: what is written meanwhile goes with the second."""
MOST: Final = 10_000
"""Hints that wait; while nobody takes them, more are dropped."""

Write = Callable[[Sequence[Hint]], Awaitable[None]]


class Outbox:
    """Hands batches of hints to `write`, one batch at a time."""

    def __init__(self, name: str, write: Write) -> None:
        self._name = name
        self._write = write
        self._hints: list[Hint] = []
        self._last = -APART
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[str] | None = None

    def put(self, hint: Hint) -> None:
        if len(self._hints) < MOST:
            self._hints.append(hint)
        if self._timer is None and self._writing is None:
            self._write_soon()

    async def close(self) -> None:
        """Writes what is left; what comes meanwhile is dropped, as hints may be."""
        await self._idle()
        if self._timer:
            self._timer.cancel()
            self._flush()
            await self._idle()

    async def _idle(self) -> None:
        """Waits until no batch is being written."""
        while self._writing:
            await self._writing
            await asyncio.sleep(0)  # an ended task gives no way, and its end is noted by a callback

    def _flush(self) -> None:
        self._timer, self._last = None, asyncio.get_running_loop().time()
        hints, self._hints = coalesced(self._hints), []
        self._writing = asyncio.create_task(background.guarded(self._name, self._write(hints)))
        self._writing.add_done_callback(self._written)

    def _written(self, _: asyncio.Task[str]) -> None:
        self._writing = None
        if self._hints:
            self._write_soon()

    def _write_soon(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(max(loop.time(), self._last + APART), self._flush)
