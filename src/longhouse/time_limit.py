"""TimeLimit: a block that ends after so many seconds."""

import asyncio
from types import TracebackType


class TimeLimit:
    """After so many seconds, cancels the task of its block, and raises TimeoutError; a result that came nevertheless
    counts.

    As `asyncio.timeout`, at a third of its cost: each step of an agent needs two of them.
    """

    __slots__ = ("_cancelling", "_seconds", "_task", "_timer", "is_over")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._task: asyncio.Task[object]
        self.is_over = False

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._timer = loop.call_later(self._seconds, self._stop)

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        # Where somebody else has cancelled the task too, that is not taken back.
        if self.is_over and self._task.uncancel() <= self._cancelling and error is not None:
            raise TimeoutError from error

    def _stop(self) -> None:
        self.is_over = True
        self._task.cancel()
