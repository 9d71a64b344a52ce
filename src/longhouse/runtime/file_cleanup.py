"""Takes away from this machine's folders what sessions have left there that were forgotten: agent logs and reports."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from longhouse import background
from longhouse.integrations.agent_log_files import file_name
from longhouse.store import erasure
from longhouse.store.database import Database
from longhouse.store.erasure import Trace

log = structlog.get_logger()

LOOK_EVERY: Final = 1.0


@dataclass(slots=True)
class FileCleanup:
    """Whoever has forgotten them, here or elsewhere: each machine looks after its own folders."""

    db: Database
    logs: tuple[Path, ...] = ()
    reports: tuple[Path, ...] = ()
    _nth: int = 0
    """How far it is; from the beginning at every start: names of files are not used again, so that does no harm."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if not self.logs and not self.reports:
            yield
            return
        async with background.running("shredder", self._look, every=LOOK_EVERY):
            yield

    async def _look(self) -> None:
        while traces := await erasure.since(self.db, self._nth):
            await asyncio.to_thread(self._shred, traces)
            self._nth = traces[-1].nth

    def _shred(self, traces: Sequence[Trace]) -> None:
        marks = {mark for trace in traces for mark in trace.reports}
        _remove(folder / file_name(trace.session_id) for folder in self.logs for trace in traces)
        if marks:
            _remove(path for folder in self.reports for path in folder.glob("*-????????.md") if path.stem[-8:] in marks)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a file of what was forgotten cannot be removed", path=str(path), error=error.strerror)
