"""Copies of sessions outside Postgres, in Redis, in logs and in folders: how they are made, and removed."""

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from longhouse import background
from longhouse.config.effective import Configured
from longhouse.integrations.agent_log import file_name
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.steps.delegation import PriorOf
from longhouse.settings import Settings
from longhouse.store.database import Database
from longhouse.store.erasing import erasure
from longhouse.store.erasing.erasure import ErasedSession

log = structlog.get_logger()

POLL_EVERY: Final = 1.0


class FileCleanup(msgspec.Struct):
    """Sessions may be deleted by any process; each machine cleans up its own folders."""

    db: Database
    logs: tuple[Path, ...] = ()
    reports: tuple[Path, ...] = ()
    _nth: int = 0
    """Cursor. It starts from the beginning with every process, which is harmless: file names are never reused."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if not self.logs and not self.reports:
            yield
            return
        async with background.running("shredder", self.remove_erased, every=POLL_EVERY):
            yield

    async def remove_erased(self) -> None:
        """Removes what was erased since the last call, here or by another process."""
        while traces := await erasure.since(self.db, self._nth):
            await asyncio.to_thread(self._remove_files, traces)
            self._nth = traces[-1].nth

    def _remove_files(self, traces: Sequence[ErasedSession]) -> None:
        marks = {mark for trace in traces for mark in trace.reports}
        _unlink(folder / file_name(trace.session_id) for folder in self.logs for trace in traces)
        if marks:
            _unlink(path for folder in self.reports for path in folder.glob("*-????????.md") if path.stem[-8:] in marks)


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


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            message = "a file of a deleted session cannot be removed"
            log.warning("erased_file_not_removed", message=message, path=str(path), error=error.strerror)
