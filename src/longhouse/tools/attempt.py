"""Runs a tool call with a timeout; a task that ignores its cancellation is abandoned."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

log = structlog.get_logger()

GRACE: Final = 0.5
"""Seconds that the work has to stop after its cancellation."""


class Late(Exception):  # noqa: N818 - it says what happened
    """Timeout. `error` is what the work raised when it was cancelled; None: it ignored the cancellation."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error


@dataclass(frozen=True, slots=True)
class _Ended:
    """The result of the work. A SystemExit that it raises must not reach the event loop, as it would from a task."""

    value: Any = None
    error: BaseException | None = None


class Attempts:
    """Runs work with a timeout, and counts abandoned tasks."""

    def __init__(self) -> None:
        self._left: set[asyncio.Task[_Ended]] = set()

    @property
    def left(self) -> int:
        return len(self._left)

    async def run(self, work: Callable[[], Awaitable[Any]], seconds: float, **about: str) -> Any:
        """Returns or raises what the work does; Late after the timeout, even if it ignores that. `about` is logged."""
        task = asyncio.create_task(_ended(work))
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            if is_late := not task.done():
                await self._stop(task, about)
        if is_late:
            has_stopped = task.done() and not task.cancelled()
            if has_stopped and task.result().error is None:
                return task.result().value  # the work finished after all: a known result is not thrown away
            raise Late(task.result().error if has_stopped else None)
        ended = task.result()
        if ended.error is not None:
            raise ended.error
        return ended.value

    async def _stop(self, task: asyncio.Task[_Ended], about: dict[str, str]) -> None:
        task.cancel()
        try:
            await asyncio.wait({task}, timeout=GRACE)
        finally:
            if not task.done():
                self._leave(task, about)

    def _leave(self, task: asyncio.Task[_Ended], about: dict[str, str]) -> None:
        self._left.add(task)
        task.add_done_callback(self._left.discard)
        # Closing the loop waits for all registered tasks; this one would never end.
        asyncio.tasks._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        message = "a tool ignored its cancellation and is left behind"
        log.warning("tool_task_abandoned", message=message, left=self.left, **about)


async def _ended(work: Callable[[], Awaitable[Any]]) -> _Ended:
    try:
        return _Ended(value=await work())
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, an exit included
        return _Ended(error=error)
