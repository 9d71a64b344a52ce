"""Copies of sessions outside Postgres, in Redis, in logs and in folders: how they are made, and removed."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from longhouse.config.effective import Configured
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.cleanup.file_cleanup import FileCleanup
from longhouse.runtime.steps.delegation import PriorOf
from longhouse.settings import Settings
from longhouse.store.database import Database


@asynccontextmanager
async def open_mirror(settings: Settings, db: Database, bus: Bus) -> AsyncIterator[PriorOf | None]:
    """Opens the projections to Redis and session logs; yields the loader of earlier history for new conversations."""
    if not _is_mirrored(settings):
        yield None
        return
    projections = await _projections()
    where = {"redis_url": _redis_url(settings), "log_dir": settings.session_log_dir, "language": settings.log_language}
    async with projections.running(db, bus.on_append.append, **where) as mirror:
        yield mirror.prior if mirror else None


async def remove_copies(setup: Configured, db: Database) -> str:
    """Removes what this machine's folders and Redis have of erased sessions, for a command; why it could not."""
    settings = setup.settings
    await cleanup_of(setup, db).remove_erased()
    if not _is_mirrored(settings):
        return ""
    projections, log_dir = await _projections(), settings.session_log_dir
    trouble: str = await projections.remove_erased(db, redis_url=_redis_url(settings), log_dir=log_dir)
    return trouble


def cleanup_of(setup: Configured, db: Database) -> FileCleanup:
    """What removes the files of erased sessions from the folders of this machine."""
    settings, logs, reports = setup.settings, setup.folders("logs_dir"), setup.folders("reports_dir")
    return FileCleanup(db, _paths(settings.agent_log_dir, logs), _paths(settings.reports_dir, reports))


def _paths(default: Path | None, others: Mapping[str, Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(path for path in (default, *others.values()) if path))


def _is_mirrored(settings: Settings) -> bool:
    return bool(settings.redis_url or settings.session_log_dir)


async def _projections() -> Any:
    """The module of the projections. Its Redis client takes half a second to import: only who uses it pays for that."""
    return await asyncio.to_thread(importlib.import_module, "longhouse.integrations.running")


def _redis_url(settings: Settings) -> str | None:
    return settings.redis_url.get_secret_value() if settings.redis_url else None
