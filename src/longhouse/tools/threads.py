"""Threads for blocking tools: separate per tool, so that a hanging one takes none from others; none delays exit."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from longhouse.tools.uncertain import NotBegun

log = structlog.get_logger()

EACH: Final = 16
"""Maximum threads of one tool, hanging ones included."""
MOST: Final = 256
"""Maximum threads of all tools together."""


@dataclass(slots=True)
class _Lane:
    """The threads of one tool."""

    seats: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(EACH))
    hanging: int = 0
    """Threads whose call was abandoned and that have not ended."""


class Threads:
    """Each call has its own thread, which ends with it. The process does not wait for these threads at exit."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._alive = 0

    @property
    def hanging(self) -> int:
        return sum(lane.hanging for lane in self._lanes.values())

    async def run(self, tool: str, work: Callable[[], Any]) -> Any:
        """Runs `work` in a thread and returns or raises what it does; NotBegun if no thread is free."""
        lane = self._lanes.setdefault(tool, _Lane())
        await self._seat(tool, lane)
        call = _ThreadCall(asyncio.get_running_loop(), work, lambda call: self._over(lane, call))
        self._alive += 1
        thread = threading.Thread(target=contextvars.copy_context().run, args=(call.run,), name=tool, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._over(lane, call)
            raise NotBegun("this machine has no thread left for it") from None
        try:
            return await call.ended
        except asyncio.CancelledError:
            if not call.is_over:
                call.is_left = True
                lane.hanging += 1
                log.warning(
                    "tool_thread_abandoned",
                    message="a thread of a tool is left behind",
                    tool=tool,
                    hanging=lane.hanging,
                )
            raise

    async def _seat(self, tool: str, lane: _Lane) -> None:
        """Waits for a free thread if the tool's threads are busy; if they all hang, it does not wait."""
        if lane.hanging >= EACH:
            raise NotBegun(f"{EACH} calls of {tool} hang since their time was up; it is not called while they do")
        if self._alive >= MOST:
            raise NotBegun(f"all {MOST} threads for tools of this process are taken; {self.hanging} of them hang")
        try:
            await lane.seats.acquire()
        except asyncio.CancelledError:
            raise NotBegun(f"all {EACH} threads of {tool} were busy") from None

    def _over(self, lane: _Lane, call: "_ThreadCall") -> None:
        self._alive -= 1
        lane.hanging -= call.is_left
        lane.seats.release()


class _ThreadCall:
    """One call in its thread; passes the outcome back to the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], Any], over: Callable[["_ThreadCall"], None]):
        self._loop = loop
        self._work = work
        self._over = over
        self.ended: asyncio.Future[Any] = loop.create_future()
        self.is_over = False
        self.is_left = False

    def run(self) -> None:
        try:
            value, error = self._work(), None
        except BaseException as raised:  # noqa: BLE001 - any exception belongs to the call, not to the thread
            value, error = None, raised
        with suppress(RuntimeError):  # the loop is closed: nobody waits for the outcome
            self._loop.call_soon_threadsafe(self._end, value, error)

    def _end(self, value: Any, error: BaseException | None) -> None:
        self.is_over = True
        self._over(self)
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(value)
        else:
            self.ended.set_exception(_raisable(error))


def _raisable(error: BaseException) -> BaseException:
    """A future cannot carry StopIteration: it would end the coroutine that awaits it."""
    return RuntimeError("the tool raised StopIteration") if isinstance(error, StopIteration) else error
