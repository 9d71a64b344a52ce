"""The connections of the HTTP client: at most so many at once, and idle ones kept for a while."""

import asyncio
import math
from functools import partial

from yarl import URL

from longhouse.models.http.connection import Connection, Timeouts
from longhouse.models.http.dialing import Dialer
from longhouse.models.http.failure import HttpFailure, late


class HttpPool:
    """Without `keep`, each connection is new, so that each is checked. `limit`: connections at once, 0 for no limit."""

    def __init__(self, dialer: Dialer, timeouts: Timeouts, *, keep: bool, limit: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._dialer = dialer
        self._timeouts = timeouts
        self.keep = keep
        self._places = asyncio.Semaphore(limit) if limit else None
        self._open: set[Connection] = set()
        self._none_open = asyncio.Event()
        self._idle: dict[URL, list[Connection]] = {}
        self._is_closed = False

    @property
    def proxy(self) -> URL | None:
        """The HTTP proxy of all connections."""
        return self._dialer.proxy

    async def take(self, origin: URL) -> Connection:
        """A connection for one exchange. A kept one may turn out to be closed: a POST is not repeated by itself."""
        if self._is_closed:
            raise _closed()
        within = self._timeouts.within
        deadline = None if within == math.inf else self._loop.time() + within
        connection = self._kept(origin) if self._places is None else None
        if connection is None:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._with_place(origin)
            except TimeoutError:
                raise late(within) from None
        connection.deadline = deadline or math.inf
        return connection

    def give_back(self, connection: Connection) -> None:
        """Ends the exchange of a connection, which is closed unless the whole response was read."""
        if self._places:
            self._places.release()
        if connection.rest() and self.keep and not self._is_closed:
            self._idle.setdefault(connection.origin, []).append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        self._is_closed = True
        self._none_open.clear()
        for connection in list(self._open):
            connection.close()
        if self._open:
            await self._none_open.wait()

    async def _with_place(self, origin: URL) -> Connection:
        if self._places is None:
            return await self._dialled(origin)
        await self._places.acquire()
        try:
            return self._kept(origin) or await self._dialled(origin)
        except BaseException:
            self._places.release()
            raise

    def _kept(self, origin: URL) -> Connection | None:
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    async def _dialled(self, origin: URL) -> Connection:
        connection = await self._dialer.dial(origin, partial(Connection, origin, self._timeouts, self._lost))
        if self._is_closed:
            connection.close()
            raise _closed()
        if connection.is_open:  # else it is closed already, and sending fails
            self._open.add(connection)
        return connection

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._none_open.set()
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)


def _closed() -> HttpFailure:
    return HttpFailure("cannot be called: the connections to it are closed")
