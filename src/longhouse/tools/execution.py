"""Runs tool calls with a timeout, in tasks and in threads; work that does not stop is abandoned.

Each tool has its own threads, so that a hanging one takes none from others, and none delays the exit of the process.
"""

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import structlog

from longhouse.time_limit import TimeLimit
from longhouse.tools.outcomes import NotBegun

log = structlog.get_logger()

GRACE: Final = 0.5
"""Seconds that the work has to stop after its cancellation."""
EACH: Final = 16
"""Maximum threads of one tool, hanging ones included."""
MOST: Final = 256
"""Maximum threads of all tools together."""


class CallTimedOut(Exception):  # noqa: N818 - it says what happened
    """Timeout. `error` is what the work raised when it was cancelled; None: it ignored the cancellation."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error


async def done(task: asyncio.Task[Any], *, within: float | None = None) -> None:
    """Waits for one task, at a third of what `asyncio.wait` costs; like it, neither cancels the task nor raises."""
    if task.done():
        return
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    task.add_done_callback(wake)
    timer = loop.call_later(within, wake) if within is not None else None
    try:
        await waiter
    finally:
        task.remove_done_callback(wake)
        if timer:
            timer.cancel()


async def obeyed(work: Callable[[], Awaitable[Any]], seconds: float) -> Any:
    """Returns or raises what the work does; CallTimedOut after the timeout. For work that ends when it is cancelled: it
    runs in the task of its caller."""
    limit = TimeLimit(seconds)
    try:
        with limit:
            return await work()
    except BaseException as error:
        caller = asyncio.current_task()
        if caller and caller.cancelling():  # by somebody else, whatever the work has made of it
            raise asyncio.CancelledError from error
        if limit.is_over:
            raise CallTimedOut(error.__cause__) from None
        raise


class _Ended(msgspec.Struct, frozen=True):
    """The result of the work. A SystemExit that it raises must not reach the event loop, as it would from a task."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class _ToolThreads(msgspec.Struct):
    """The threads of one tool."""

    free: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(EACH))
    hanging: set[asyncio.Future[_Ended]] = msgspec.field(default_factory=set)
    """Threads whose call was abandoned and that have not ended."""


class CallExecutor:
    """Runs work in tasks and threads, and counts what was abandoned."""

    def __init__(self) -> None:
        self._abandoned: set[asyncio.Task[_Ended]] = set()
        self._threads: set[asyncio.Future[_Ended]] = set()
        self._by_tool: dict[str, _ToolThreads] = {}

    @property
    def left_behind(self) -> int:
        """Number of calls that still run after their timeout, in tasks or threads."""
        return len(self._abandoned) + self._hanging

    @property
    def _hanging(self) -> int:
        return sum(len(threads.hanging) for threads in self._by_tool.values())

    async def run(self, work: Callable[[], Awaitable[Any]], seconds: float, **about: str) -> Any:
        """Returns or raises what the work does; CallTimedOut after the timeout, even if it ignores that.

        `about` is logged.
        """
        task = asyncio.create_task(_ended(work))
        try:
            await done(task, within=seconds)
        finally:
            if is_late := not task.done():
                await self._stop(task, about)
        has_ended = task.done() and not task.cancelled()
        if is_late and (not has_ended or task.result().error is not None):
            raise CallTimedOut(task.result().error if has_ended else None)
        # Work that finished after all has a known result, which is not thrown away.
        return task.result().result()

    async def _stop(self, task: asyncio.Task[_Ended], about: dict[str, str]) -> None:
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE)
        finally:
            if not task.done():
                self._abandon(task, about)

    def _abandon(self, task: asyncio.Task[_Ended], about: dict[str, str]) -> None:
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)
        # Closing the loop waits for all registered tasks; this one would never end.
        asyncio.tasks._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        message = "a tool ignored its cancellation and is left behind"
        log.warning("tool_task_abandoned", message=message, left=len(self._abandoned), **about)

    async def run_in_thread(self, tool: str, work: Callable[[], Any]) -> Any:
        """Runs `work` in a thread of its own and returns or raises what it does; NotBegun if no thread is free."""
        threads = self._by_tool.setdefault(tool, _ToolThreads())
        await self._wait_for_thread(tool, threads)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[_Ended] = loop.create_future()
        self._threads.add(ended)
        ended.add_done_callback(self._threads.discard)
        ended.add_done_callback(lambda _: threads.free.release())

        def run() -> None:
            try:
                result = _Ended(value=work())
            except BaseException as error:  # noqa: BLE001 - any exception belongs to the call, not to the thread
                result = _Ended(error=error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the outcome
                loop.call_soon_threadsafe(ended.set_result, result)

        try:
            threading.Thread(target=contextvars.copy_context().run, args=(run,), name=tool, daemon=True).start()
        except RuntimeError:
            ended.set_result(_Ended(error=NotBegun("this machine has no thread left for it")))
        try:
            return (await asyncio.shield(ended)).result()
        except asyncio.CancelledError:
            if not ended.done():
                threads.hanging.add(ended)
                ended.add_done_callback(threads.hanging.discard)
                message, hanging = "a thread of a tool is left behind", len(threads.hanging)
                log.warning("tool_thread_abandoned", message=message, tool=tool, hanging=hanging)
            raise

    async def _wait_for_thread(self, tool: str, threads: _ToolThreads) -> None:
        """Waits for a free thread if the tool's threads are busy; if they all hang, it does not wait."""
        if len(threads.hanging) >= EACH:
            raise NotBegun(f"{EACH} calls of {tool} still run after their timeout; it is not called meanwhile")
        if len(self._threads) >= MOST:
            raise NotBegun(f"all {MOST} threads for tools of this process are taken; {self._hanging} of them hang")
        try:
            await threads.free.acquire()
        except asyncio.CancelledError:
            raise NotBegun(f"all {EACH} threads of {tool} were busy") from None


async def _ended(work: Callable[[], Awaitable[Any]]) -> _Ended:
    try:
        return _Ended(value=await work())
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, an exit included
        return _Ended(error=error)
