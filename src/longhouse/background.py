"""Background tasks: repeat a step with back-off; an exception is logged and never ends the process."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import structlog

from longhouse.store.database import UNREACHABLE

log = structlog.get_logger()

FIRST_PAUSE: Final = 0.05
"""Seconds to wait after a failed step; doubled after each further failure."""
LONGEST_PAUSE: Final = 2.0
TICK: Final = 0.25
"""Seconds. What is repeated begins with others at the same moments: a process that has nothing to do wakes up once for
all of them."""
OWN: Final = int.from_bytes(os.urandom(4)) / 2**32 * TICK
"""Processes of one machine have the same clock: each has moments of its own, or Postgres would hear all at once. In
containers, all may have the same number."""
EARLY: Final = 0.002
"""Seconds by which a timer may end before its moment: event loops count in milliseconds, and round."""
DEFECT: Final = "background_task_failed"
TROUBLES: Final = ("database_unreachable", "database_trouble")

Step = Callable[[], Awaitable[object]]
Errors = tuple[type[Exception], ...]


@asynccontextmanager
async def running(
    name: str, step: Step, *, every: float = 0.0, after: float = 0.0, away: Errors = ()
) -> AsyncIterator[None]:
    """Repeats a step while the block runs."""
    task = asyncio.create_task(repeat(name, step, every=every, after=after, away=away), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def repeat(name: str, step: Step, *, every: float = 0.0, after: float = 0.0, away: Errors = ()) -> None:
    """Repeats a step until it is cancelled. It survives an unreachable Postgres and defects of the step.

    `every`: seconds between two steps. `after`: before the first one. If all upkeep began at once, each would
    open a connection when a process is busiest. `away`: errors which mean that another service the step needs
    is unreachable.
    """
    await asyncio.sleep(after)
    task, trouble, pause, clock = asyncio.current_task(), "", 0.0, asyncio.get_running_loop().time
    well_until = clock()
    while True:
        began, before = clock(), trouble
        trouble = await guarded(name, step(), away=away, logged=before)
        # A driver may replace a cancellation with its own error: the loop still ends.
        if task and task.cancelling():
            return
        if not before:
            well_until = began
        # The end of a long step, as on a connection of its own, does not tell when Postgres came back.
        elif not trouble and before in TROUBLES and clock() - began < LONGEST_PAUSE:
            log.info("database_reachable", task=name, seconds=round(began - well_until, 1))
        pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE) if trouble else 0.0
        await asyncio.sleep(pause or until_tick(every))


def until_tick(seconds: float) -> float:
    """Seconds until the last common tick within `seconds`; never more than `seconds`."""
    return _until_tick(asyncio.get_running_loop().time(), seconds)


def _until_tick(now: float, seconds: float) -> float:
    # A tick that came slightly early counts as reached: otherwise it would come again at once.
    at = (now + seconds + EARLY - OWN) // TICK * TICK + OWN
    return min(at - now, seconds) if at - now > EARLY else seconds


async def guarded(name: str, work: Awaitable[object], *, away: Errors = (), logged: str = "") -> str:
    """Runs the work once; an exception is logged and not raised.

    Returns the log key of the error, empty if there was none. The key in `logged` was logged before: not again.
    """
    try:
        await work
    except Exception as error:
        key = _key(error, away)
        if key == DEFECT:
            log.exception(key, task=name)
        elif key != logged:
            log.warning(key, task=name, error=str(error) or type(error).__name__)
        return key
    return ""


def _key(error: Exception, away: Errors) -> str:
    if isinstance(error, away):
        return "service_unreachable"
    if isinstance(error, UNREACHABLE):
        return "database_unreachable"
    return "database_trouble" if isinstance(error, asyncpg.PostgresError) else DEFECT
