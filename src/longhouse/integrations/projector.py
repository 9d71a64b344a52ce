"""Projects journals to another system in the background: hints say where to look first, cursors are the truth."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol

import asyncpg

from longhouse import background
from longhouse.integrations.redis.client import TROUBLE as REDIS_TROUBLE
from longhouse.store import erasure, projections
from longhouse.store.database import UNREACHABLE, Database
from longhouse.store.erasure import ErasedSession
from longhouse.store.projections import ProjectionRow

TROUBLE: Final = (*REDIS_TROUBLE, *UNREACHABLE, asyncpg.PostgresError)
BATCH: Final = 64
PAGE: Final = 256
MOST_HINTS: Final = 10_000
"""Beyond this number hints are dropped: the sweep finds those sessions."""
SWEEP_EVERY: Final = 1.0
SHARE: Final = 10
"""A slow sweep runs less often: it takes at most one part in this many of the time."""
RAREST: Final = 30.0


class Target(Protocol):
    """The system that journals are projected to."""

    name: str
    place: str
    """Key of the erasure cursor: a folder differs from machine to machine."""

    async def epoch(self) -> str:
        """Identifies the target's data; another value means that the target has lost it."""
        ...

    async def carry(self, rows: Sequence[ProjectionRow]) -> None:
        """Brings these sessions up to date in the target, and saves the cursors."""
        ...

    async def forget(self, traces: Sequence[ErasedSession]) -> None:
        """Removes the data of erased sessions from the target."""
        ...


class Projector:
    def __init__(self, db: Database, target: Target, *, sweep_every: float = SWEEP_EVERY) -> None:
        self._db = db
        self._target = target
        self._sweep_every = sweep_every
        self._hints: dict[str, None] = {}
        self._hinted = asyncio.Event()
        self._epoch = ""
        self._forgotten: int | None = None
        self._after = ""
        self._sweep_at = 0.0
        self._swept_for = 0.0
        self.is_troubled = False
        """Whether the last attempt failed: callers then do not wait for the next one."""

    def nudge(self, session_id: str) -> None:
        """Adds a hint that this session may have new events."""
        if len(self._hints) >= MOST_HINTS:
            self._hints.clear()
        self._hints[session_id] = None
        self._hinted.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Carries while the block runs."""
        async with background.running(f"projection_{self._target.name}", self._run, away=REDIS_TROUBLE):
            yield

    async def _run(self) -> None:
        """Waits for a hint or for the time to sweep, and does what is there to do."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._sweep_at):
                await self._hinted.wait()
        try:
            await self._step()
        except Exception as error:
            self.is_troubled = self.is_troubled or isinstance(error, TROUBLE)
            self._after, self._sweep_at = "", 0.0  # what was not carried is found again
            raise

    async def _step(self) -> None:
        await self._forget()
        if self._hints:
            await self._target.carry(await projections.rows(self._db, self._taken()))
            self.is_troubled = False
        if asyncio.get_running_loop().time() >= self._sweep_at:
            await self._sweep()
            self.is_troubled = False

    async def _forget(self) -> None:
        """What was forgotten since the last look, here or by another process."""
        place = self._target.place
        if self._forgotten is None:
            self._forgotten = await projections.cursor(self._db, self._target.name, place)
        while traces := await erasure.since(self._db, self._forgotten):
            await self._target.forget(traces)
            self._forgotten = traces[-1].nth
            await projections.save(self._db, self._target.name, epoch="", heads={place: self._forgotten})

    def _taken(self) -> list[str]:
        taken = list(self._hints)[:BATCH]
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
            self._epoch, self._swept_for = await self._target.epoch(), 0.0
        page = await projections.behind(self._db, self._target.name, epoch=self._epoch, after=self._after, limit=PAGE)
        self._swept_for += clock() - began
        for start in range(0, len(page), BATCH):
            await self._target.carry(page[start : start + BATCH])
        self._after = page[-1].id if len(page) == PAGE else ""
        if not self._after:
            self._sweep_at = clock() + max(self._sweep_every, min(SHARE * self._swept_for, RAREST))
