"""Deletes the files of deleted sessions from this machine's folders: agent logs and reports."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import structlog

from longhouse import background
from longhouse.integrations.agent_log import file_name
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
        _remove(folder / file_name(trace.session_id) for folder in self.logs for trace in traces)
        if marks:
            _remove(path for folder in self.reports for path in folder.glob("*-????????.md") if path.stem[-8:] in marks)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            message = "a file of a deleted session cannot be removed"
            log.warning("erased_file_not_removed", message=message, path=str(path), error=error.strerror)
