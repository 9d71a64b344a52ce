"""The pool of connections to Postgres. asyncpg's own spends as much on a loan as Postgres on a short statement."""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any, Final

import asyncpg

IDLE_FOR: Final = 60.0
"""Seconds after which a connection that nobody needs is closed."""
PATIENCE: Final = 0.01
"""Seconds to wait for a connection before another one is opened, times the number of open ones. Most statements are
faster than this, and opening is slower; and more connections slow each other down: with few, the same sessions cost
Postgres a quarter less, and the first words of an answer come in half the time."""
MOST_LOANS: Final = 50_000
"""A server process that has served so often is replaced: what it keeps in its caches only grows."""
CONNECT_WITHIN: Final = 10.0
CLOSE_WITHIN: Final = 10.0

# TCP keep-alive: each side notices within half a minute that the other has vanished, even while nothing is sent.
LINE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
SERVER_LINE: Final = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}
POOLED: Final = {"idle_in_transaction_session_timeout": "30s"}
"""Settings of the connections of a pool."""

FIXED_TYPES: Final = 10_000
"""Types with a smaller OID are built in, and have the same OID in every Postgres."""
ARRAYS: Final = frozenset({199, 1000, 1001, 1005, 1007, 1009, 1016, 1022, 1182, 1185, 2951, 3807})
"""Of json, boolean, bytea, smallint, integer, text, bigint, double precision, date, timestamptz, uuid and jsonb."""
_TYPES: dict[tuple[str, frozenset[int]], Sequence[asyncpg.Record]] = {}
"""By the database, and the types that were asked for."""
_NOTHING_SENT: Final = SimpleNamespace(name="known")
"""Stands for the introspection statement: none was sent, so none has to be prepared again."""


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg carries no types
    dsn = ""
    loans = 0
    idle_since = 0.0
    generation = 0

    def __init__(self, protocol: Any, transport: asyncio.BaseTransport, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        watch(transport)

    async def _introspect_types(self, numbers: Iterable[int], *rest: Any) -> tuple[Sequence[asyncpg.Record], Any]:
        """What asyncpg does not know, cached for all connections: asking costs each new one 20 milliseconds."""
        asked = frozenset(numbers)
        # Each statement has some of the arrays: they are asked for once, and not in each combination.
        asked = ARRAYS if asked <= ARRAYS else asked
        key = (self.dsn if max(asked) >= FIXED_TYPES else "", asked)
        if known := _TYPES.get(key):
            return known, _NOTHING_SENT
        _TYPES[key], statement = await super()._introspect_types(asked, *rest)
        return _TYPES[key], statement


Waiter = asyncio.Future[PooledConnection | None]


class PostgresPool:
    """Lends each connection to one user at a time: the one that came back last, so that the others can be closed."""

    def __init__(self, connect: Callable[[], Awaitable[PooledConnection]], most: int) -> None:
        self._connect = connect
        self._most = most
        self._idle: list[PooledConnection] = []
        self._open: set[PooledConnection] = set()
        self._opening = 0
        self._waiting: deque[tuple[Waiter, float]] = deque()
        """Who waits for a connection, and since when."""
        self._impatience: asyncio.TimerHandle | None = None
        self._generation = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._tidying: asyncio.TimerHandle | None = None
        self.is_closed = False

    @property
    def size(self) -> int:
        """Connections that are open, or about to be."""
        return len(self._open) + self._opening

    @property
    def idle(self) -> int:
        return len(self._idle)

    async def run(self, method: str, *arguments: Any) -> Any:
        """Calls a method of a connection."""
        connection = await self._take()
        try:
            result = await getattr(connection, method)(*arguments)
        except BaseException as error:
            self._give_back(connection, error)
            raise
        self._give_back(connection)
        return result

    def acquire(self) -> "Loan":
        """A connection for the length of a block."""
        return Loan(self._take, self._give_back)

    def adopt(self, connection: PooledConnection) -> None:
        """Takes a connection that was opened elsewhere, as one of its own that came back; if there is room for it."""
        if self.size >= self._most:
            connection.terminate()
            return
        connection.generation = self._generation
        self._open.add(connection)
        self._give_back(connection)

    def expire(self) -> None:
        """Every connection that is open now is closed when it comes back."""
        self._generation += 1
        while self._idle:
            self._drop(self._idle.pop())

    def terminate(self) -> None:
        """Closes all connections at once, also those on loan."""
        self.is_closed = True
        for timer in (self._tidying, self._impatience):
            if timer:
                timer.cancel()
        self._idle.clear()
        for connection in list(self._open):
            connection.terminate()
        self._open.clear()
        while self._waiting:
            self._wake_one()

    async def _take(self) -> PooledConnection:
        while not self.is_closed:
            while self._idle:
                connection = self._idle.pop()
                if not connection.is_closed():
                    return connection
                self._forget(connection)
            if self.size and (handed := await self._waited_for()):
                return handed
            if not self._idle and self.size < self._most and not self.is_closed:
                return await self._opened()
        raise asyncpg.InterfaceError("the pool of connections is closed")

    async def _opened(self) -> PooledConnection:
        self._opening += 1
        generation = self._generation
        try:
            connection = await self._connect()
        except BaseException:
            self._opening -= 1
            self._wake_one()
            raise
        self._opening -= 1
        connection.generation = generation
        if self.is_closed:
            connection.terminate()
            raise asyncpg.InterfaceError("the pool of connections is closed")
        self._open.add(connection)
        return connection

    async def _waited_for(self) -> PooledConnection | None:
        """A connection that came back; None: it has taken too long, or there may be room for a new one."""
        loop = asyncio.get_running_loop()
        waiter: Waiter = loop.create_future()
        self._waiting.append((waiter, loop.time()))
        if self._impatience is None and self.size < self._most:
            self._impatience = loop.call_later(PATIENCE * self.size, self._lose_patience)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                # It came at the same moment: the next one gets it.
                if connection := waiter.result():
                    self._give_back(connection)
                else:
                    self._wake_one()
            raise

    def _lose_patience(self) -> None:
        """Has the first in the queue open a connection, if it has waited for too long; one after the other."""
        loop, patience = asyncio.get_running_loop(), PATIENCE * self.size
        while self._waiting and self._waiting[0][0].done():
            self._waiting.popleft()
        self._impatience = None
        if not self._waiting or self.size >= self._most:
            return
        left = self._waiting[0][1] + patience - loop.time()
        if left <= 0:
            self._wake_one()
        self._impatience = loop.call_later(left if left > 0 else patience, self._lose_patience)

    def _give_back(self, connection: PooledConnection, error: BaseException | None = None) -> None:
        connection.loans += 1
        # A statement that was broken off may still run.
        is_broken_off = error is not None and (isinstance(error, TimeoutError) or not isinstance(error, Exception))
        if is_broken_off or connection.is_closed() or connection.is_in_transaction() or self._is_spent(connection):
            self._drop(connection)
            return
        while self._waiting:
            waiter, _ = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._tidying is None:
            self._tidying = loop.call_later(IDLE_FOR, self._tidy)

    def _is_spent(self, connection: PooledConnection) -> bool:
        return self.is_closed or connection.generation != self._generation or connection.loans >= MOST_LOANS

    def _drop(self, connection: PooledConnection) -> None:
        """Closes a connection; its place is free once it is closed."""
        if connection.is_closed() or self.is_closed:
            connection.terminate()
            self._forget(connection)
            return
        task = asyncio.get_running_loop().create_task(self._close(connection))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _close(self, connection: PooledConnection) -> None:
        try:
            # It asks Postgres first to break off what still runs.
            await connection.close(timeout=CLOSE_WITHIN)
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - it is given up, whatever became of it
            connection.terminate()
        finally:
            self._forget(connection)

    def _forget(self, connection: PooledConnection) -> None:
        self._open.discard(connection)
        self._wake_one()

    def _wake_one(self) -> None:
        while self._waiting:
            waiter, _ = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _tidy(self) -> None:
        """Closes what nobody has needed for a while."""
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].idle_since <= loop.time() - IDLE_FOR:
            self._drop(self._idle.pop(0))
        self._tidying = None
        if self._idle:
            self._tidying = loop.call_at(self._idle[0].idle_since + IDLE_FOR, self._tidy)


class Loan:
    def __init__(
        self,
        take: Callable[[], Awaitable[PooledConnection]],
        give_back: Callable[[PooledConnection, BaseException | None], None],
    ) -> None:
        self._take = take
        self._give_back = give_back

    async def __aenter__(self) -> PooledConnection:
        self._connection = await self._take()
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._give_back(self._connection, error)


async def connect(dsn: str, schema: str | None = None, **settings: str) -> PooledConnection:
    """A connection with the search path set to one schema; without a schema, with the role's own search path."""
    connection: PooledConnection = await asyncpg.connect(
        dsn,
        connection_class=PooledConnection,
        timeout=CONNECT_WITHIN,
        server_settings={"application_name": "longhouse", **SERVER_LINE, **settings},
    )
    connection.dsn = dsn
    try:
        await set_up(connection, schema)
    except BaseException:
        connection.terminate()
        raise
    return connection


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def set_up(connection: asyncpg.Connection, schema: str | None) -> None:
    # Set after connecting: a connection pooler may refuse start-up parameters that it does not know. Compiling costs
    # more than it saves: the statements are short, and Postgres takes the large ones for longer than they are.
    settings = ["SET jit = off", *([f"SET search_path = {quoted(schema)}"] if schema else [])]
    await connection.execute("; ".join(settings), timeout=CONNECT_WITHIN)


def open_pool(dsn: str, schema: str, most: int) -> PostgresPool:
    """A pool whose connections have their search path set to this schema; none is open yet."""
    return PostgresPool(partial(connect, dsn, schema, **POOLED), most)


def watch(transport: asyncio.BaseTransport) -> None:
    """Switches TCP keep-alive on, with the options that the operating system has."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in LINE.items():
        if option := getattr(socket, name, None):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
