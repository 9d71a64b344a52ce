"""Who reads a file next: owners take turns, so that one who adds many files keeps nobody from adding one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from longhouse.errors import CallerError

PLACES: Final = 8
"""Uploads of one owner that one server takes at the same time: one is read, the others wait."""
RETRY_AFTER: Final = 5


class ReadingQueue:
    """Lets files of different owners be read at the same time, of one owner one by one; who waits longest is next."""

    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._turns: dict[Hashable, asyncio.Lock] = {}
        self._waiting: Counter[Hashable] = Counter()
        self._uploads: Counter[str | None] = Counter()

    @contextmanager
    def place(self, owner: str | None) -> Iterator[None]:
        """A place for one upload, from its first byte on; raises if the owner has all that one may have."""
        if self._uploads[owner] >= PLACES:
            raise CallerError(
                f"{PLACES} files are being added for you already, which is the limit: send this one when one is done.",
                status=429,
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=RETRY_AFTER,
            )
        self._uploads[owner] += 1
        try:
            yield
        finally:
            self._uploads[owner] -= 1
            if not self._uploads[owner]:
                del self._uploads[owner]

    @asynccontextmanager
    async def turn(self, owner: Hashable) -> AsyncIterator[None]:
        """A time in which nothing else of this owner is read."""
        turn = self._turns.setdefault(owner, asyncio.Lock())
        self._waiting[owner] += 1
        try:
            async with turn, self._slots:
                yield
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner], self._turns[owner]
