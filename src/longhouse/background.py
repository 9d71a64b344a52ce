"""Work in the background that goes on, whatever happens in it: no exception of a task ends the process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import structlog

from longhouse.store.database import UNREACHABLE

log = structlog.get_logger()

FIRST_PAUSE: Final = 0.05
"""Seconds after a step that failed; twice as many after each further one."""
LONGEST_PAUSE: Final = 2.0
DEFECT: Final = "background_task_failed"

Step = Callable[[], Awaitable[None]]
Errors = tuple[type[Exception], ...]


@asynccontextmanager
async def running(name: str, step: Step, *, every: float = 0.0, away: Errors = ()) -> AsyncIterator[None]:
    """Repeats a step while the block lasts."""
    task = asyncio.create_task(repeat(name, step, every=every, away=away), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def repeat(name: str, step: Step, *, every: float = 0.0, away: Errors = ()) -> None:
    """Does a step again and again until it is cancelled, over any absence of Postgres and any defect of ours.

    `every`: seconds between two steps. `away`: errors by which another service, which the step needs too, is away.
    """
    task, trouble, pause = asyncio.current_task(), "", 0.0
    while True:
        trouble = await _attempt(name, step(), away=away, told=trouble)
        # A cancellation is lost where a driver answers it with an error of its own: the loop ends even so.
        if task and task.cancelling():
            return
        pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE) if trouble else 0.0
        await asyncio.sleep(pause or every)


async def guarded(name: str, work: Awaitable[None]) -> None:
    """Does it once; what goes wrong is logged, and ends nothing else."""
    await _attempt(name, work)


async def _attempt(name: str, work: Awaitable[None], *, away: Errors = (), told: str = "") -> str:
    """The key of what went wrong, empty where nothing did; trouble that was `told` before is not logged again."""
    try:
        await work
    except Exception as error:
        key = _key(error, away)
        if key == DEFECT:
            log.exception(key, task=name)
        elif key != told:
            log.warning(key, task=name, error=str(error) or type(error).__name__)
        return key
    return ""


def _key(error: Exception, away: Errors) -> str:
    if isinstance(error, away):
        return "service_unreachable"
    if isinstance(error, UNREACHABLE):
        return "database_unreachable"
    return "database_trouble" if isinstance(error, asyncpg.PostgresError) else DEFECT
