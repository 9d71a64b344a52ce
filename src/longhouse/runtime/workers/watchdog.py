"""Watchdog thread: detects a blocked event loop and logs the stack that blocks it. The loop itself cannot."""

import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import takewhile
from pathlib import PurePath
from types import FrameType
from typing import Any, Final

import structlog

from longhouse import background
from longhouse.runtime.recorder import Run
from longhouse.tools.context import ToolContext

log = structlog.get_logger()

AFTER: Final = 1.0
"""Seconds without a loop iteration before a warning is logged; the heartbeat is late after half a lease."""
POLL_EVERY: Final = 0.25
SHOWN: Final = 8
"""Stack frames in a log record, the innermost last."""


class Watchdog:
    """A blocked loop serves no requests and sends no heartbeat, so other workers take over our sessions."""

    def __init__(self) -> None:
        self._last_tick = self._last_check = 0.0
        self._blocked_for, self._log_next_at = 0.0, AFTER
        self._over = threading.Event()
        self.times = 0
        """How often the loop was blocked."""
        self.seconds = 0.0
        """Total seconds blocked; while the loop is blocked, up to the last check."""
        self.lag = 0.0
        """Seconds by which the last tick came late."""

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watches the running loop while the block runs."""
        self._last_tick = self._last_check = time.monotonic()
        thread = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="watchdog", daemon=True)
        thread.start()
        try:
            async with background.running("watchdog", self._tick, every=POLL_EVERY):
                yield
        finally:
            self._over.set()

    async def _tick(self) -> None:
        now = time.monotonic()
        self.lag, self._last_tick = max(0.0, now - self._last_tick - POLL_EVERY), now

    def _watch(self, thread: int) -> None:
        while not self._over.wait(POLL_EVERY):
            now, before, self._last_check = time.monotonic(), self._last_check, time.monotonic()
            if now - before > AFTER:
                # This thread did not run either: the process was stopped, or a library held the GIL.
                log.warning("process_stalled", message="the whole process did not run", seconds=round(now - before, 1))
                self._last_tick = now
            if now - self._last_tick >= AFTER:
                self._blocked(now - self._last_tick, thread)
            elif self._blocked_for:
                seconds = round(self._blocked_for, 1)
                log.warning("event_loop_recovered", message="the event loop runs again", seconds=seconds)
                self._blocked_for, self._log_next_at = 0.0, AFTER

    def _blocked(self, seconds: float, thread: int) -> None:
        if not self._blocked_for:
            self.times += 1
        self.seconds += seconds - self._blocked_for
        self._blocked_for = seconds
        if seconds >= self._log_next_at:
            self._log_next_at = 2 * seconds
            message = "the event loop is blocked by the code in `where`"
            log.warning("event_loop_blocked", message=message, seconds=round(seconds, 1), **blocking_code(thread))


def blocking_code(thread: int) -> dict[str, Any]:
    """What this thread runs: functions and lines, the session and the call. No values: they may be secrets."""
    # `walk_stack` without a frame would walk our own stack.
    frame = sys._current_frames().get(thread)
    outwards = (outer for outer, _ in traceback.walk_stack(frame)) if frame else ()
    frames = list(takewhile(_is_run, outwards))
    return {"where": [_named(frame) for frame in reversed(frames[:SHOWN])], **_on_behalf(frames)}


def _is_run(frame: FrameType) -> bool:
    """Is this frame code that the loop runs, not the loop itself?"""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in ("asyncio", "uvloop")


def _named(frame: FrameType) -> str:
    path = PurePath(frame.f_code.co_filename)
    return f"{'/'.join(path.parts[-2:])}:{frame.f_lineno} {frame.f_code.co_name}"


def _on_behalf(frames: list[FrameType]) -> dict[str, Any]:
    """The tool call or the session found in the local variables of these frames."""
    met = [value for frame in frames for value in list(frame.f_locals.values())]
    for context in (value for value in met if isinstance(value, ToolContext)):
        call = context.session.open.get(context.call) if context.session else None
        return {"session": context.session_id, "call": context.call, "tool": call.tool if call else None}
    return next(({"session": value.session.id} for value in met if isinstance(value, Run)), {})
