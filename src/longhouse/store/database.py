"""The pool of connections, and the patience to outlive a Postgres that restarts."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import asyncpg

from longhouse.errors import SetupError
from longhouse.store import schema as schemas

POOL_SIZE: Final = 20
RETRY_FOR: Final = 15.0
"""Seconds that a statement is tried again while Postgres cannot be reached."""
CONNECT_WITHIN: Final = 10.0

T = TypeVar("T")

UNREACHABLE: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that Postgres closed while it lay in the pool
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby that is about to become the primary, or a primary no more
    asyncpg.IdleInTransactionSessionTimeoutError,  # Postgres hung up on us in the middle of a transaction
    OSError,
)
PASSING: Final = (
    *UNREACHABLE,
    asyncpg.InsufficientResourcesError,  # no disk, no memory
    asyncpg.OperatorInterventionError,  # statements that were cancelled, by a timeout or a person
    asyncpg.PostgresSystemError,
    asyncpg.TransactionRollbackError,  # deadlocks
    asyncpg.LockNotAvailableError,
    asyncpg.InternalServerError,
)
"""What says nothing against the statement: the same one may well succeed later."""

# Each end notices within half a minute that the other is gone without a word, also while nothing is sent.
LINE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
SERVER_LINE: Final = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}


FIXED_TYPES: Final = 10_000
"""Below this number a type is Postgres's own, and has its number in every Postgres."""
_TYPES: dict[frozenset[int], Sequence[asyncpg.Record]] = {}
_NOTHING_SENT: Final = SimpleNamespace(name="known")
"""In place of the statement that asked: none has, so nothing is to be prepared anew."""


class Connection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg carries no types
    def __init__(self, protocol: Any, transport: asyncio.BaseTransport, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        watch(transport)

    def get_reset_query(self) -> str:
        # We leave no session state behind on pooled connections, so a round trip to clean it up is not needed.
        return ""

    async def _introspect_types(self, numbers: Iterable[int], *rest: Any) -> tuple[Sequence[asyncpg.Record], Any]:
        """What arrays are made of. Each connection would ask for itself, which takes a new one twenty milliseconds."""
        asked = frozenset(numbers)
        if known := _TYPES.get(asked):
            return known, _NOTHING_SENT
        types, statement = await super()._introspect_types(numbers, *rest)
        if max(asked) < FIXED_TYPES:
            _TYPES[asked] = types
        return types, statement


class Database:
    """One statement a call. Every statement sent through here may be sent twice: it reads, or it refuses a repeat."""

    def __init__(self, pool: asyncpg.Pool, dsn: str, schema: str, pool_size: int) -> None:
        self.pool = pool
        self.dsn = dsn
        self.schema = schema
        self._pool_size = pool_size
        self._renewing = asyncio.Lock()

    async def rows(self, sql: str, *args: object) -> Sequence[asyncpg.Record]:
        return await self._patiently(lambda pool: pool.fetch(sql, *args))

    async def row(self, sql: str, *args: object) -> asyncpg.Record | None:
        return await self._patiently(lambda pool: pool.fetchrow(sql, *args))

    async def value(self, sql: str, *args: object) -> Any:
        return await self._patiently(lambda pool: pool.fetchval(sql, *args))

    async def run(self, sql: str, *args: object) -> str:
        return str(await self._patiently(lambda pool: pool.execute(sql, *args)))

    async def alone(self, lock: tuple[int, int], sql: str, *args: object) -> asyncpg.Record | None:
        """One statement under an advisory lock: what it reads stays true until what it writes is there."""

        async def ask(pool: asyncpg.Pool) -> asyncpg.Record | None:
            async with pool.acquire() as connection, connection.transaction(isolation="read_committed"):
                # A statement sees what was there when it began, so the lock must be held before.
                await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", *lock)
                return await connection.fetchrow(sql, *args)

        return await self._patiently(ask)

    async def tuned(self, settings: str, sql: str, *args: object) -> Sequence[asyncpg.Record]:
        """Reads by one statement, under settings that end with it."""

        async def ask(pool: asyncpg.Pool) -> Sequence[asyncpg.Record]:
            async with pool.acquire() as connection, connection.transaction(readonly=True):
                await connection.execute(settings)
                return list(await connection.fetch(sql, *args))

        return await self._patiently(ask)

    async def together(self, work: "Callable[[Within], Awaitable[T]]") -> T:
        """Several statements in one transaction. Over a lost connection it is tried again as a whole."""

        async def ask(pool: asyncpg.Pool) -> T:
            async with pool.acquire() as connection, connection.transaction(isolation="read_committed"):
                return await work(Within(connection))

        return await self._patiently(ask)

    async def _patiently(self, ask: Callable[[asyncpg.Pool], Awaitable[T]]) -> T:
        """Asks, and asks again while Postgres is away."""
        give_up_at = asyncio.get_running_loop().time() + RETRY_FOR
        pause = 0.01
        while True:
            pool = self.pool
            try:
                return await ask(pool)
            except UNREACHABLE as error:
                if self._is_over(give_up_at - pause):
                    raise
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    # Whom we are connected to may never write again: the primary may be another one by now.
                    await pool.expire_connections()
            except asyncpg.PostgresError:
                raise
            except Exception as error:
                if not pool.is_closing():
                    raise
                # The pool was given up under the statement, and asyncpg stumbles over its own missing parts.
                if self._is_over(give_up_at - pause):
                    raise ConnectionAbortedError("the connection to Postgres was given up") from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    def _is_over(self, give_up_at: float) -> bool:
        return self.pool.is_closing() or asyncio.get_running_loop().time() > give_up_at

    async def renew(self) -> None:
        """Gives up all connections, for they have gone silent; what is under way on them is sent again on new ones.

        Whoever asks for the same while it is done has it done: new connections are not given up with the old ones.
        """
        silent = self.pool
        async with self._renewing:
            if self.pool is silent and not silent.is_closing():
                self.pool = await _open_pool(self.dsn, self.schema, first=0, most=self._pool_size)
                silent.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection of its own, outside the pool: for locks and for listening."""
        connection = await connect(self.dsn, self.schema)
        try:
            yield connection
        finally:
            connection.terminate()


class Within:
    """One statement a call, inside a transaction."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def rows(self, sql: str, *args: object) -> Sequence[asyncpg.Record]:
        return list(await self._connection.fetch(sql, *args))

    async def row(self, sql: str, *args: object) -> asyncpg.Record | None:
        return await self._connection.fetchrow(sql, *args)

    async def value(self, sql: str, *args: object) -> Any:
        return await self._connection.fetchval(sql, *args)

    async def run(self, sql: str, *args: object) -> str:
        return str(await self._connection.execute(sql, *args))


Asked = Database | Within
"""What a statement is sent to."""


async def connect(dsn: str, schema: str | None = None) -> asyncpg.Connection:
    """A connection that sees the tables of one schema; without one, what its role sees."""
    connection = await asyncpg.connect(
        dsn,
        connection_class=Connection,
        timeout=CONNECT_WITHIN,
        server_settings={"application_name": "longhouse", **SERVER_LINE},
    )
    try:
        if schema:
            await _look_into(connection, schema)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _look_into(connection: asyncpg.Connection, schema: str) -> None:
    # After connecting and not with it: a pooler that hands sessions out refuses what it does not know at the start.
    await connection.execute(f"SET search_path = {schemas.quoted(schema)}", timeout=CONNECT_WITHIN)


async def _open_pool(dsn: str, schema: str, *, first: int, most: int) -> asyncpg.Pool:
    return await asyncpg.create_pool(
        dsn,
        init_size=first,
        min_size=0,  # a floor would be kept by a task of asyncpg's own, which logs a traceback for each try in vain
        max_size=most,
        connection_class=Connection,
        init=partial(_look_into, schema=schema),
        max_inactive_connection_lifetime=60,
        timeout=CONNECT_WITHIN,
        server_settings={
            "application_name": "longhouse",
            "idle_in_transaction_session_timeout": "30s",
            **SERVER_LINE,
        },
    )


def watch(transport: asyncio.BaseTransport) -> None:
    """Has the system look whether the other end is still there, as far as it can."""
    line = transport.get_extra_info("socket")
    if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
        return
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in LINE.items():
        if option := getattr(socket, name, None):
            line.setsockopt(socket.IPPROTO_TCP, option, value)


@asynccontextmanager
async def open_database(
    dsn: str, *, schema: str = schemas.DEFAULT, pool_size: int = POOL_SIZE
) -> AsyncIterator[Database]:
    try:
        schema = await _schema(dsn, schema)
        pool = await _open_pool(dsn, schema, first=1, most=pool_size)
    except (*UNREACHABLE, asyncpg.PostgresError) as error:
        raise SetupError(f"Postgres cannot be reached: {error}; check LONGHOUSE_DATABASE_URL.") from error
    db = Database(pool, dsn, schema, pool_size)
    try:
        yield db
    finally:
        db.pool.terminate()


async def _schema(dsn: str, wanted: str) -> str:
    connection = await connect(dsn)
    try:
        return await schemas.find(connection, wanted)
    finally:
        connection.terminate()
