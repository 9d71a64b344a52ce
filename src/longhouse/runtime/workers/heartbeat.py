"""The heartbeat of a worker: its advisory lock and its heartbeat row, on a dedicated connection."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import asyncpg
import structlog

from longhouse import background
from longhouse.store import leases
from longhouse.store.database import UNREACHABLE, Database

log = structlog.get_logger()

BEAT_EVERY: Final = 1.0
RECONNECT_AFTER: Final = 0.1
CHECK_EVERY: Final = 0.25
"""Seconds between two checks for a late heartbeat."""
CATCH_UP: Final = 1.0
"""Seconds that the next heartbeat has after the process itself was stalled."""
ON_ITS_WAY: Final = 0.5
"""Seconds to wait for an answer that Postgres sent while we asked on another connection."""

T = TypeVar("T")


class _Silent(Exception):  # noqa: N818 - never leaves this module
    """Postgres answers on new connections, but not on ours."""


class Heartbeat:
    def __init__(self, db: Database, worker: str, *, lease: float, slots: int, on_late: Callable[[], None]) -> None:
        self._db = db
        self._worker = worker
        self._lease = lease
        self._slots = slots
        self._on_late = on_late
        self._last = 0.0
        self._check_not_before = 0.0
        self._is_lost = False
        self.lost_at = float("-inf")
        """When a connection of ours was last lost; it may have been one of many."""
        self._backend = 0
        """The process id of our Postgres backend."""
        self.begun = asyncio.Event()
        """Set once this worker is registered."""

    def is_fresh(self) -> bool:
        """Was the last heartbeat within half a lease? If not, others may be about to take our sessions."""
        return asyncio.get_running_loop().time() - self._last < self._lease / 2

    async def beat(self) -> None:
        """Holds the lock and sends heartbeats while the connection lasts; a reconnect uses the same worker id."""
        try:
            async with self._db.connection() as connection:
                await self._beat_on(connection)
        except _Silent:
            message = "Postgres answers on new connections only: all connections are renewed"
            log.warning("database_connections_renewed", message=message)
            await self._db.renew()
        except (*UNREACHABLE, asyncpg.PostgresError) as error:
            # Handled here: a worker that was alive must reconnect at once, before others take its sessions.
            if not self._is_lost:
                log.info(
                    "heartbeat_connection_lost",
                    message="the heartbeat lost its connection",
                    error=str(error) or type(error).__name__,
                )
            self._is_lost = True
            self.lost_at = asyncio.get_running_loop().time()
        self._report_if_late()

    async def check_late(self) -> None:
        """Detects a late heartbeat while its answer is still awaited."""
        clock = asyncio.get_running_loop().time
        asleep = clock()
        await asyncio.sleep(background.until_tick(CHECK_EVERY))
        if clock() - asleep >= self._lease / 2:
            # This process was stalled. The heartbeat is sent first: the sweep finds the sessions that others took.
            self._check_not_before = clock() + CATCH_UP
        self._report_if_late()

    async def _beat_on(self, connection: asyncpg.Connection) -> None:
        """Sends heartbeats until others have removed this worker, or the connection is lost."""
        lost, self._backend = asyncio.Event(), connection.get_server_pid()
        connection.add_termination_listener(lambda _: lost.set())
        node, pid = socket.gethostname(), os.getpid()
        await self._answered(leases.register_worker(connection, self._worker, node=node, pid=pid, slots=self._slots))
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        while await self._answered(leases.beat(connection, self._worker)):
            # Counted from the request: others count from Postgres's write, and the answer may have taken long.
            self._last, self._is_lost = asked_at, False
            self.begun.set()
            # A lost connection is noticed at once: our lock is free then, and others check it.
            with suppress(TimeoutError):
                async with asyncio.timeout(background.until_tick(asked_at + BEAT_EVERY - clock())):
                    await lost.wait()
            asked_at = clock()

    async def _answered(self, asking: Coroutine[Any, Any, T]) -> T:
        """The answer of Postgres. While Postgres does not answer on other connections either, this waits."""
        answer = asyncio.create_task(asking)
        try:
            while not answer.done():
                await asyncio.wait((answer,), timeout=self._lease / 2)
                if not answer.done():
                    await self._probe_new_connection(answer)
            return answer.result()
        finally:
            await _ended(answer)

    async def _probe_new_connection(self, answer: asyncio.Task[Any]) -> None:
        """Asks on a new connection why there is no answer; _Silent: the old connections are dead."""
        probe = asyncio.create_task(self._is_at_work())
        try:
            await asyncio.wait((answer, probe), return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return
            if probe.result():
                log.warning("database_slow", message="Postgres is slow: the heartbeat has no answer yet")
                return
            await asyncio.wait((answer,), timeout=ON_ITS_WAY)
            if not answer.done():
                raise _Silent
        except (*UNREACHABLE, asyncpg.PostgresError) as error:
            # New connections would get no answer either; on the old ones it may still come.
            log.warning(
                "database_unreachable",
                message="Postgres answers on no connection",
                error=str(error) or type(error).__name__,
            )
        finally:
            await _ended(probe)

    async def _is_at_work(self) -> bool:
        """Is our Postgres backend busy with our query?"""
        async with asyncio.timeout(self._lease / 2), self._db.connection() as another:
            return await leases.is_at_work(another, self._backend)

    def _report_if_late(self) -> None:
        if not self.is_fresh() and asyncio.get_running_loop().time() >= self._check_not_before:
            self._on_late()


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
