"""A worker's sign of life: its lock and its beat, on a connection of their own."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

import asyncpg
import structlog

from longhouse.store import leases
from longhouse.store.database import UNREACHABLE, Database

log = structlog.get_logger()

BEAT_EVERY: Final = 1.0
MIND_EVERY: Final = 0.25
"""Seconds between two looks at whether the beat is late."""

T = TypeVar("T")


class Heartbeat:
    def __init__(self, db: Database, worker: str, *, lease: float, slots: int, on_late: Callable[[], None]) -> None:
        self._db = db
        self._worker = worker
        self._lease = lease
        self._slots = slots
        self._on_late = on_late
        self._last = 0.0
        self._backend = 0
        """The process of Postgres that hears us."""
        self.begun = asyncio.Event()
        """We are on the roster."""

    def is_fresh(self) -> bool:
        """Have we beaten within half a lease? If not, others may be about to take our sessions."""
        return asyncio.get_running_loop().time() - self._last < self._lease / 2

    async def beat(self) -> None:
        """Holds our lock and beats; reconnects under the same id."""
        while True:
            try:
                async with self._db.connection() as connection:
                    await self._beat_on(connection)
            except TimeoutError:
                await self._renew_if_silent()
            except (*UNREACHABLE, asyncpg.PostgresError) as error:
                log.info("the heartbeat lost its connection", error=str(error))
            self._look()
            await asyncio.sleep(0.1)

    async def mind(self) -> None:
        """Notices a beat that is late while it is still waited for."""
        while True:
            await asyncio.sleep(MIND_EVERY)
            self._look()

    async def _beat_on(self, connection: asyncpg.Connection) -> None:
        """Until others have buried us, or the connection is lost."""
        lost, self._backend = asyncio.Event(), connection.get_server_pid()
        connection.add_termination_listener(lambda _: lost.set())
        node, pid = socket.gethostname(), os.getpid()
        await self._answered(leases.enlist(connection, self._worker, node=node, pid=pid, slots=self._slots))
        while await self._answered(leases.beat(connection, self._worker)):
            self._last = asyncio.get_running_loop().time()
            self.begun.set()
            # A lost connection is noticed at once: our lock is free, and others look for it.
            with suppress(TimeoutError):
                async with asyncio.timeout(BEAT_EVERY):
                    await lost.wait()
            self._look()

    async def _renew_if_silent(self) -> None:
        """No answer and no reset: unless Postgres is only slow, no connection will ever hear anything again."""
        try:
            async with self._db.connection() as another:
                is_slow = await self._answered(leases.is_at_work(another, self._backend))
        except (*UNREACHABLE, asyncpg.PostgresError):
            is_slow = False
        if is_slow:
            log.warning("Postgres is slow: the heartbeat has no answer yet")
        else:
            log.warning("Postgres is silent: all connections are made anew")
            await self._db.renew()

    async def _answered(self, asking: Awaitable[T]) -> T:
        """What Postgres says within half a lease."""
        async with asyncio.timeout(self._lease / 2):
            return await asking

    def _look(self) -> None:
        if not self.is_fresh():
            self._on_late()
