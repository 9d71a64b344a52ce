"""Erases sessions that are older than the retention allows: in the background, one by one, in one process at a time."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog

from longhouse import background
from longhouse.runtime.inbox import Inbox
from longhouse.store.erasing import retention
from longhouse.store.erasing.retention import OldSession
from longhouse.store.openai import responses

log = structlog.get_logger()

EVERY: Final = 600.0
"""Seconds between two looks through the sessions that are old enough."""
SHARE: Final = 5
"""An erasure is followed by a pause, so that they take at most one part in this many of the time."""
UNSTORED_EVERY: Final = 60.0
UNSTORED_FOR: Final = timedelta(minutes=10)
"""How long a response that is not stored stays after its end: until then a client that was cut off gets the rest."""
BEGINNING: Final = (datetime(1970, 1, 1, tzinfo=UTC), "")


class Retention(msgspec.Struct, frozen=True):
    inbox: Inbox
    days: int | None = None
    """For all owners and states that have no policy of their own; None: for ever."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with (
            background.running("retention", self.sweep, every=EVERY, after=0.3),
            background.running("unstored_responses", self.erase_unstored, every=UNSTORED_EVERY, after=0.35),
        ):
            yield

    async def erase_unstored(self) -> None:
        """Erases the sessions of responses that were not to be stored, some time after their end."""
        for session_id, owner, since in await responses.unstored(self.inbox.db, UNSTORED_FOR):
            await self.inbox.forget(session_id, owner, at_rest_since=since)

    async def sweep(self) -> None:
        """Looks through all sessions once, page by page, unless another process does so."""
        least = await retention.least(self.inbox.db, self.days)
        if least is None:
            return
        async with self.inbox.db.sole(retention.SOLE_ERASER) as may_erase:
            erased, after = 0, BEGINNING
            while may_erase and (
                page := await retention.page(self.inbox.db, default=self.days, least=least, after=after)
            ):
                for one in page:
                    erased += await self._erase(one) if one.is_over else 0
                after = (page[-1].created_at, page[-1].id)
                await asyncio.sleep(0)
            if erased:
                log.info("sessions_expired", message="Sessions that were too old were erased.", sessions=erased)

    async def _erase(self, one: OldSession) -> int:
        """The session and those that it called go together; none, if one of them did something meanwhile."""
        began = time.monotonic()
        forgotten = await self.inbox.forget(one.id, one.owner, at_rest_since=one.since)
        await asyncio.sleep((SHARE - 1) * (time.monotonic() - began))
        return len(forgotten.ids) if forgotten else 0
