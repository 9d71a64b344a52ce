"""Work in the background that goes on, whatever happens in it: no exception of a loop ends the process."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import asyncpg
import structlog

from longhouse.store.database import UNREACHABLE

log = structlog.get_logger()

PAUSE: Final = 1.0
"""Seconds before a loop that was ended by an error begins again."""


async def forever(name: str, loop: Callable[[], Awaitable[None]], *, pause: float = PAUSE) -> NoReturn:
    """Runs a loop again and again, over any absence of Postgres, any trouble that it has, and any defect of ours."""
    while True:
        await guarded(name, loop())
        await asyncio.sleep(pause)


async def guarded(name: str, work: Awaitable[None]) -> None:
    """Does it once; what goes wrong is logged, and ends nothing else."""
    try:
        await work
    except UNREACHABLE as error:
        log.warning("database_unreachable", task=name, error=str(error) or type(error).__name__)
    except asyncpg.PostgresError as error:
        log.warning("database_trouble", task=name, error=str(error))
    except Exception:
        log.exception("background_task_failed", task=name)
