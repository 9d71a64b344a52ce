"""Erases a conversation, a user or an owner: session by session, each in a transaction of its own.

What is asked for is written down first. Whoever is killed in the middle leaves it to be finished, by the next who asks
for the same or by the sweep of any worker process; each step may be made twice.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
import structlog

from longhouse import background
from longhouse.runtime.inbox import Inbox
from longhouse.store.erasing import erasure_plan, erasures
from longhouse.store.erasing.erasure_plan import ErasurePlan
from longhouse.store.erasing.erasures import Target

log = structlog.get_logger()

LOOK_EVERY: Final = 5.0
LEFT_AFTER: Final = 15.0
"""Seconds without a sign of whoever works on an erasure, after which another process goes on with it."""
TOUCH_EVERY: Final = 3.0

Progress = Callable[[Counter[str]], None]


@dataclass(frozen=True, slots=True)
class ErasureResult:
    counts: Counter[str]
    """How much of each kind this call has erased."""
    is_finished: bool = True
    """False: the time was over; a worker process goes on."""


class _TimeIsOver(Exception):  # noqa: N818 - it is no error
    pass


class Eraser(msgspec.Struct, frozen=True):
    inbox: Inbox

    async def plan(self, target: Target) -> ErasurePlan:
        """What would go, counted; nothing is changed."""
        return await erasure_plan.plan(self.inbox.db, target)

    async def is_there(self, target: Target, plan: ErasurePlan) -> bool:
        """Is there anything to erase, or to finish?"""
        return not plan.is_empty or await erasures.is_asked(self.inbox.db, target)

    async def erase(
        self, target: Target, *, within: float | None = None, progress: Progress = lambda counts: None
    ) -> ErasureResult:
        """Erases what is there now; after `within` seconds the rest is left to the sweep."""
        if target.kind == "session":
            forgotten = await self.inbox.forget(target.name, target.owner)
            return ErasureResult(forgotten.counts if forgotten else Counter())
        at = await erasures.ask(self.inbox.db, target)
        return await self._go_on(target, at, within=within, progress=progress)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Finishes what others left while the block runs."""
        async with background.running("erasures", self.resume, every=LOOK_EVERY, after=0.2):
            yield

    async def resume(self, untouched_for: float = LEFT_AFTER) -> None:
        """Finishes erasures that nobody works on."""
        for target, at in await erasures.left(self.inbox.db, untouched_for=untouched_for):
            log.info("erasure_resumed", kind=target.kind)
            await self._go_on(target, at)

    async def _go_on(
        self,
        target: Target,
        at: datetime,
        *,
        within: float | None = None,
        progress: Progress = lambda counts: None,
    ) -> ErasureResult:
        counts: Counter[str] = Counter()
        touched_at, give_up_at = time.monotonic(), None if within is None else time.monotonic() + within
        try:
            async for more in self._steps(target, at):
                counts += more
                progress(counts)
                if time.monotonic() > touched_at + TOUCH_EVERY:
                    await erasures.touch(self.inbox.db, target)
                    touched_at = time.monotonic()
                if give_up_at is not None and time.monotonic() > give_up_at:
                    raise _TimeIsOver
                await asyncio.sleep(0)
        except _TimeIsOver:
            return ErasureResult(counts, is_finished=False)
        await erasures.finish(self.inbox.db, target, at)
        # No name: what was erased is in no log.
        log.info("erased", kind=target.kind, **counts)
        return ErasureResult(counts)

    async def _steps(self, target: Target, at: datetime) -> AsyncIterator[Counter[str]]:
        """The steps, each one short: what it erased."""
        db = self.inbox.db
        if target.kind == "owner":
            # First: then nobody who acts for this owner begins anything more.
            yield Counter(keys=await erasures.drop_keys(db, target.owner))
        # Before the sessions: nothing opens another one then.
        if found := await erasures.forget_schedules(db, target, at):
            yield Counter(schedules=found)
        while ids := await erasures.next_sessions(db, target, at):
            for one in ids:
                forgotten = await self.inbox.forget(one, target.owner, lasting=target.is_lasting)
                yield forgotten.counts if forgotten else Counter()
        yield await erasures.forget_scopes(db, target)
        yield Counter(conversations=await erasures.forget_conversation(db, target, at))
        if target.kind == "owner":
            while gone := await erasures.forget_documents(db, target.owner):
                yield gone
            yield await erasures.forget_owner(db, target.owner)
