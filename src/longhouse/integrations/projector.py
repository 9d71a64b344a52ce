"""Projects journals to another system in the background: hints say where to look first, cursors are the truth."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import ClassVar, Final, Self, TypeVar

import asyncpg
import structlog

from longhouse import background
from longhouse.clock import now
from longhouse.errors import UnknownShape
from longhouse.journal.events import Side
from longhouse.store import projections
from longhouse.store.database import UNREACHABLE, Database
from longhouse.store.erasing import erasure
from longhouse.store.erasing.erasure import ErasedSession
from longhouse.store.projections import ProjectionRow

log = structlog.get_logger()
T = TypeVar("T")

BATCH: Final = 64
PAGE: Final = 256
MOST_HINTS: Final = 10_000
"""Beyond this number hints are dropped: the sweep finds those sessions."""
SWEEP_EVERY: Final = 1.0
SHARE: Final = 100
"""A slow sweep runs less often: it looks at every session there is, and takes at most one part in this many of the
time."""
LONGEST_PAUSE: Final = 300.0


class Projector(ABC):
    """The base of all targets: finds the sessions that are behind, and has the target bring them up to date."""

    name: ClassVar[str]
    place: str
    """Key of the erasure cursor: a folder differs from machine to machine."""
    away: ClassVar[background.Errors] = ()
    """Errors which mean that the target is unreachable."""
    sides: ClassVar[Sequence[Side]] = ("root", "sub")
    """The sessions that are projected, by their side."""
    recent: ClassVar[timedelta | None] = None
    """Sessions without events in this time are left alone, projected or not; None: all are projected."""
    batch: ClassVar[int] = BATCH
    """Sessions that are projected together."""
    linger: ClassVar[float] = 0.0
    """Seconds between a hint and its projection: what is appended meanwhile is projected in the same batch."""

    def __init__(self, db: Database, *, sweep_every: float) -> None:
        self._db = db
        self._sweep_every = sweep_every
        self._hints: dict[str, None] = {}
        self._hinted = asyncio.Event()
        self._epoch = ""
        self._erased_up_to: int | None = None
        self._after = ""
        self._look_at = self._sweep_at = 0.0
        self._swept_for = 0.0
        self._unreadable: dict[str, int] = {}
        self.behind = 0
        """Sessions that the last look found behind, up to a page of them."""
        self.is_troubled = False
        """Whether the last attempt failed: callers then do not wait for the next one."""

    async def epoch(self) -> str:
        """Identifies the target's data; another value means that the target has lost it."""
        return ""

    @abstractmethod
    async def project(self, rows: Sequence[ProjectionRow]) -> None:
        """Brings these sessions up to date in the target, and saves the cursors."""

    @abstractmethod
    async def remove(self, rows: Sequence[ProjectionRow]) -> None:
        """Removes what was just written of these sessions from the target."""

    @abstractmethod
    async def forget(self, traces: Sequence[ErasedSession]) -> None:
        """Removes the data of erased sessions from the target."""

    def nudge(self, session_id: str) -> None:
        """Adds a hint that this session may have new events."""
        if len(self._hints) >= MOST_HINTS:
            self._hints.clear()
            self._sweep_at = 0.0
        self._hints[session_id] = None
        self._hinted.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Projects while the block runs."""
        async with background.running(f"projection_{self.name}", self._run, away=self.away):
            yield self

    async def readable(self, rows: Sequence[ProjectionRow], read: Callable[[], Awaitable[T]]) -> T | None:
        """None where a newer process wrote an unknown event: that process projects them, and the cursor stays put."""
        if any(self._unreadable.get(row.id) == row.head for row in rows):
            return None
        try:
            return await read()
        except UnknownShape as error:
            message = "A journal cannot be projected by this process."
            log.warning(
                "journal_unreadable", message=message, projection=self.name, session=rows[0].id, error=str(error)
            )
            self._unreadable |= {row.id: row.head for row in rows}
            return None

    async def _run(self) -> None:
        """Waits for a hint or for the time to look, and does what is there to do."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(min(self._look_at, self._sweep_at)):
                await self._hinted.wait()
                await asyncio.sleep(self.linger)
        try:
            await self._step()
        except Exception as error:
            self.is_troubled = self.is_troubled or isinstance(error, (*self.away, *UNREACHABLE, asyncpg.PostgresError))
            self._after, self._sweep_at = "", 0.0  # what was not projected is found again
            raise

    async def _step(self) -> None:
        await self.remove_erased()
        for _ in range(0, len(self._hints), self.batch):
            await self._project(await projections.rows(self._db, self._next_hints(), sides=self.sides))
            self.is_troubled = False
        clock = asyncio.get_running_loop().time
        if self._look_at <= clock() < self._sweep_at:
            # However seldom it sweeps: a target that has lost its data is filled again at once.
            self._look_at = clock() + self._sweep_every
            if self._epoch != await self.epoch():
                self._sweep_at = 0.0
            self.is_troubled = False
        if clock() >= self._sweep_at:
            await self._sweep()
            self.is_troubled = False

    async def _project(self, rows: Sequence[ProjectionRow]) -> None:
        await self.project(rows)
        if gone := await erasure.gone(self._db, [row.id for row in rows]):
            # Erased while it was written: the eraser may have removed the data before this write.
            await self.remove([row for row in rows if row.id in gone])

    async def remove_erased(self) -> None:
        """Removes what was erased since the last step, here or by another process."""
        if self._erased_up_to is None:
            self._erased_up_to = await projections.cursor(self._db, self.name, self.place)
        while traces := await erasure.since(self._db, self._erased_up_to):
            await self.forget(traces)
            self._erased_up_to = traces[-1].nth
            await projections.save_place(self._db, self.name, self.place, self._erased_up_to)

    def _next_hints(self) -> list[str]:
        taken = list(islice(self._hints, self.batch))
        for session_id in taken:
            del self._hints[session_id]
        if not self._hints:
            self._hinted.clear()
        return taken

    async def _sweep(self) -> None:
        """One page of what is behind; the next one is due at once, unless this was the last."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if not self._after:
            self._epoch, self._swept_for = await self.epoch(), 0.0
        page = await projections.behind(
            self._db,
            self.name,
            sides=self.sides,
            epoch=self._epoch,
            after=self._after,
            limit=PAGE,
            since=now() - self.recent if self.recent else None,
        )
        self._swept_for += clock() - began
        self.behind = len(page)
        for start in range(0, len(page), self.batch):
            await self._project(page[start : start + self.batch])
        self._after = page[-1].id if len(page) == PAGE else ""
        if not self._after:
            self._look_at = clock() + self._sweep_every
            self._sweep_at = max(self._look_at, clock() + min(SHARE * self._swept_for, LONGEST_PAUSE))
