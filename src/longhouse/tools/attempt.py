"""A tool's work, kept to its time: what does not stop when it is told to is left behind."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

log = structlog.get_logger()

GRACE: Final = 0.5
"""Seconds that work gets to stop once it is told to."""


class Late(Exception):  # noqa: N818 - it says what happened
    """The time was up. `error` is what the work said when it was stopped; None: it did not listen."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error


@dataclass(frozen=True, slots=True)
class _Ended:
    """How the work ended. An exit that it raises must not reach the loop, as it would from a task."""

    value: Any = None
    error: BaseException | None = None


class Attempts:
    """Runs work within its time, and counts what it had to leave behind."""

    def __init__(self) -> None:
        self._left: set[asyncio.Task[_Ended]] = set()

    @property
    def left(self) -> int:
        return len(self._left)

    async def run(self, work: Callable[[], Awaitable[Any]], seconds: float, **about: str) -> Any:
        """What the work gives or raises; Late at the end of its time, however deaf it is. `about` goes to the log."""
        task = asyncio.create_task(_ended(work))
        try:
            await asyncio.wait({task}, timeout=seconds)
        finally:
            if is_late := not task.done():
                await self._stop(task, about)
        if is_late:
            has_stopped = task.done() and not task.cancelled()
            if has_stopped and task.result().error is None:
                return task.result().value  # it came to its end after all: what is known is not thrown away
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
        # Whoever ends the loop waits for all tasks that are known to it; this one would never end.
        asyncio.tasks._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        log.warning("a tool does not stop when it is told to, and is left behind", left=self.left, **about)


async def _ended(work: Callable[[], Awaitable[Any]]) -> _Ended:
    try:
        return _Ended(value=await work())
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything, an exit included
        return _Ended(error=error)
