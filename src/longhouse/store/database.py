"""The connection pool, with retries that survive a restart of Postgres."""

import asyncio
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

import asyncpg

from longhouse.errors import ReadOnlySession, SetupError

POOL_SIZE: Final = 20
RETRY_FOR: Final = 15.0
"""Seconds for which a statement is retried while Postgres cannot be reached."""
CONNECT_WITHIN: Final = 10.0

READ_ONLY: Final = "sessions_read_only"
"""The constraint that keeps sessions from capsules as they are."""

T = TypeVar("T")

UNREACHABLE: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # Postgres closed the connection while it was idle in the pool
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby that is being promoted, or a former primary
    asyncpg.IdleInTransactionSessionTimeoutError,  # Postgres closed the connection during a transaction
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
"""Transient errors: the statement is not at fault, and may succeed later."""

# TCP keep-alive: each side notices within half a minute that the other has vanished, even while nothing is sent.
LINE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
SERVER_LINE: Final = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}

DEFAULT_SCHEMA: Final = "longhouse"
# Other programs have a table of this name too; that of Longhouse is recognised by its columns.
FIND_SCHEMA: Final = """
    SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'schema_migrations' AND c.relkind = 'r'
      AND 3 = (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
                   AND a.attname IN ('number', 'digest', 'applied_at'))
      AND (n.nspname = :wanted OR :is_default AND n.nspname = ANY(current_schemas(false)))
    ORDER BY n.nspname <> :wanted, array_position(current_schemas(false), n.nspname) LIMIT 1
"""

SESSION: Final = "SELECT pg_backend_pid()"
NO_ADDRESS: Final = (
    "LONGHOUSE_DATABASE_URL is not an address such as postgresql://user:password@127.0.0.1:5432/longhouse; "
    "in a password, / # ? @ and % are written as %2F %23 %3F %40 and %25."
)
SHARED_SESSIONS: Final = (
    "The pooler at LONGHOUSE_DATABASE_URL gives out transactions; Longhouse needs sessions: set pool_mode = session."
)
NO_PARAMETERS: Final = (
    "The pooler at LONGHOUSE_DATABASE_URL refuses parameters of Postgres: set ignore_startup_parameters = "
    f"{', '.join((*SERVER_LINE, 'idle_in_transaction_session_timeout'))} in its configuration."
)

FIXED_TYPES: Final = 10_000
"""Types with a smaller OID are built in, and have the same OID in every Postgres."""
_TYPES: dict[frozenset[int], Sequence[asyncpg.Record]] = {}
_NOTHING_SENT: Final = SimpleNamespace(name="known")
"""Stands for the introspection statement: none was sent, so none has to be prepared again."""


class PooledConnection(asyncpg.Connection):  # type: ignore[misc]  # asyncpg carries no types
    def __init__(self, protocol: Any, transport: asyncio.BaseTransport, *rest: Any) -> None:
        super().__init__(protocol, transport, *rest)
        watch(transport)

    def get_reset_query(self) -> str:
        # Pooled connections keep no session state, so a round trip to reset it is not needed.
        return ""

    async def _introspect_types(self, numbers: Iterable[int], *rest: Any) -> tuple[Sequence[asyncpg.Record], Any]:
        """Types of array elements, cached for all connections: asking costs each new connection 20 milliseconds."""
        asked = frozenset(numbers)
        if known := _TYPES.get(asked):
            return known, _NOTHING_SENT
        types, statement = await super()._introspect_types(numbers, *rest)
        if max(asked) < FIXED_TYPES:
            _TYPES[asked] = types
        return types, statement


# Text, quoted names and comments are matched whole: a colon in them names no parameter. Nor does one of a cast (`::`)
# or of an array slice (`[1:n]`, `[:n]`).
_PARAMETER: Final = re.compile(
    r"""'[^']*' | "[^"]*" | \$\$.*?\$\$ | --[^\n]* | /\*.*?\*/ | (?<![\w\[\]):]):([a-z_]+)""", re.DOTALL | re.VERBOSE
)


@lru_cache(maxsize=1024)
def _numbered(sql: str) -> tuple[str, dict[str, str]]:
    """The statement with `$1`, `$2`, … in place of `:name`, and name -> number, in this order."""
    names = dict.fromkeys(name for name in _PARAMETER.findall(sql) if name)
    numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
    return _PARAMETER.sub(lambda found: numbers.get(found[1], found[0]), sql), numbers


def bound(sql: str, values: dict[str, object]) -> tuple[Any, ...]:
    """The arguments for asyncpg: the statement with numbered parameters, and a value for each of them."""
    numbered, names = _numbered(sql)
    if values.keys() != names.keys():
        missing, unknown = sorted(names.keys() - values), sorted(values.keys() - names)
        raise TypeError(f"missing values: {missing}, unknown names: {unknown}, in the statement {sql.strip()[:200]!r}")
    return (numbered, *[values[name] for name in names])


class Executor(ABC):
    """Executes statements with named parameters: the database, or a transaction in it."""

    @abstractmethod
    def _execute(self, method: str, statement: tuple[Any, ...]) -> Awaitable[Any]:
        """Calls this method of a connection."""

    async def rows(self, sql: str, /, **values: object) -> Sequence[asyncpg.Record]:
        found: Sequence[asyncpg.Record] = await self._execute("fetch", bound(sql, values))
        return found

    async def row(self, sql: str, /, **values: object) -> asyncpg.Record | None:
        return await self._execute("fetchrow", bound(sql, values))

    async def value(self, sql: str, /, **values: object) -> Any:
        return await self._execute("fetchval", bound(sql, values))

    async def run(self, sql: str, /, **values: object) -> str:
        return str(await self._execute("execute", bound(sql, values)))


class Transaction(Executor):
    """Runs one statement per call inside a transaction."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    def _execute(self, method: str, statement: tuple[Any, ...]) -> Awaitable[Any]:
        call: Awaitable[Any] = getattr(self._connection, method)(*statement)
        return call

    async def lock(self, family: int, key: int) -> None:
        """Takes an advisory lock, which the end of the transaction releases."""
        await self.run("SELECT pg_advisory_xact_lock(:family, :key)", family=family, key=key)


class Database(Executor):
    """Runs one statement per call. A statement may be sent twice, so it must only read, or refuse a repeat."""

    def __init__(self, pool: asyncpg.Pool, dsn: str, schema: str, pool_size: int) -> None:
        self.pool = pool
        self.dsn = dsn
        self.schema = schema
        self.retries = 0
        """How often a statement was tried again because Postgres could not be reached."""
        self._pool_size = pool_size
        self._renewing = asyncio.Lock()

    def _execute(self, method: str, statement: tuple[Any, ...]) -> Awaitable[Any]:
        return self._with_retries(lambda pool: getattr(pool, method)(*statement))

    async def once(self, sql: str, /, **values: object) -> None:
        """Runs a statement that must not be sent twice; if the connection is lost, it may have been executed or not."""
        await self.pool.execute(*bound(sql, values))

    async def alone(self, lock: tuple[int, int], sql: str, /, **values: object) -> asyncpg.Record | None:
        """Runs one statement under an advisory lock: what it reads does not change before its writes are committed."""

        async def locked(tx: Transaction) -> asyncpg.Record | None:
            # A statement sees the data as of its start, so the lock must be held before it starts.
            await tx.lock(*lock)
            return await tx.row(sql, **values)

        return await self.together(locked)

    async def tuned(self, settings: str, sql: str, /, **values: object) -> Sequence[asyncpg.Record]:
        """Runs one statement under settings that apply to it alone."""

        async def set_and_read(tx: Transaction) -> Sequence[asyncpg.Record]:
            await tx.run(settings)
            return await tx.rows(sql, **values)

        return await self.together(set_and_read)

    async def together(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Runs several statements in one transaction. If the connection is lost, the whole transaction is retried."""

        async def attempt(pool: asyncpg.Pool) -> T:
            async with pool.acquire() as connection, connection.transaction(isolation="read_committed"):
                return await work(Transaction(connection))

        return await self._with_retries(attempt)

    async def _with_retries(self, attempt: Callable[[asyncpg.Pool], Awaitable[T]]) -> T:
        """Runs `attempt`, with retries and back-off while Postgres cannot be reached."""
        give_up_at = asyncio.get_running_loop().time() + RETRY_FOR
        pause = 0.01
        while True:
            pool = self.pool
            try:
                return await attempt(pool)
            except UNREACHABLE as error:
                if self._is_over(give_up_at - pause):
                    raise
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    # This server may never accept writes again: another one may be the primary by now.
                    await pool.expire_connections()
            except asyncpg.CheckViolationError as error:
                if error.constraint_name == READ_ONLY:
                    raise ReadOnlySession from error
                raise
            except asyncpg.PostgresError:
                raise
            except Exception as error:
                if not pool.is_closing():
                    raise
                # The pool was terminated during the statement, so asyncpg fails with an arbitrary exception.
                if self._is_over(give_up_at - pause):
                    raise ConnectionAbortedError("the connection to Postgres was dropped") from error
            self.retries += 1
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    def _is_over(self, give_up_at: float) -> bool:
        return self.pool.is_closing() or asyncio.get_running_loop().time() > give_up_at

    async def renew(self) -> None:
        """Replaces the pool because its connections do not answer; statements under way are retried on new ones.

        Concurrent calls share one renewal: the new connections are not dropped with the old ones.
        """
        silent = self.pool
        async with self._renewing:
            if self.pool is silent and not silent.is_closing():
                self.pool = await _open_pool(self.dsn, self.schema, first=0, most=self._pool_size)
                silent.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[asyncpg.Connection]:
        """A dedicated connection outside the pool: for session locks and LISTEN."""
        connection = await connect(self.dsn, self.schema)
        try:
            yield connection
        finally:
            connection.terminate()

    @asynccontextmanager
    async def sole(self, lock: tuple[int, int]) -> AsyncIterator[bool]:
        """Whether this process may do what one process does at a time, by an advisory lock that ends with it."""
        async with self.connection() as connection:
            may_do = bool(await connection.fetchval("SELECT pg_try_advisory_lock($1, $2)", *lock))
            yield may_do
            if may_do:
                # Postgres notices a closed connection a moment later: until then the next one would be refused.
                await connection.execute("SELECT pg_advisory_unlock($1, $2)", *lock)


async def within(seconds: float, asked: Coroutine[Any, Any, T]) -> T:
    """The result, or a TimeoutError: a statement that is cancelled ends only when Postgres has said something."""
    task = asyncio.create_task(asked)
    try:
        await asyncio.wait([task], timeout=seconds)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())


async def connect(dsn: str, schema: str | None = None) -> asyncpg.Connection:
    """A connection with the search path set to one schema; without a schema, with the role's own search path."""
    connection = await asyncpg.connect(
        dsn,
        connection_class=PooledConnection,
        timeout=CONNECT_WITHIN,
        server_settings={"application_name": "longhouse", **SERVER_LINE},
    )
    try:
        await _set_up(connection, schema)
    except BaseException:
        connection.terminate()
        raise
    return connection


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


async def _set_up(connection: asyncpg.Connection, schema: str | None) -> None:
    # Set after connecting: a connection pooler may refuse start-up parameters that it does not know. Compiling costs
    # more than it saves: the statements are short, and Postgres takes the large ones for longer than they are.
    settings = ["SET jit = off", *([f"SET search_path = {quoted(schema)}"] if schema else [])]
    await connection.execute("; ".join(settings), timeout=CONNECT_WITHIN)


async def _open_pool(dsn: str, schema: str, *, first: int, most: int) -> asyncpg.Pool:
    return await asyncpg.create_pool(
        dsn,
        init_size=first,
        min_size=0,  # asyncpg keeps a minimum with a task of its own, which logs a traceback for each failed try
        max_size=most,
        connection_class=PooledConnection,
        init=partial(_set_up, schema=schema),
        max_inactive_connection_lifetime=60,
        timeout=CONNECT_WITHIN,
        server_settings={
            "application_name": "longhouse",
            "idle_in_transaction_session_timeout": "30s",
            **SERVER_LINE,
        },
    )


def watch(transport: asyncio.BaseTransport) -> None:
    """Switches TCP keep-alive on, with the options that the operating system has."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in LINE.items():
        if option := getattr(socket, name, None):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


@asynccontextmanager
async def open_database(
    dsn: str, *, schema: str = DEFAULT_SCHEMA, pool_size: int = POOL_SIZE
) -> AsyncIterator[Database]:
    try:
        schema, pool = await _opened(dsn, schema, pool_size)
    except ValueError:
        # The parts of an address that cannot be read may be those of its password.
        raise SetupError(NO_ADDRESS) from None
    except (asyncpg.InvalidSQLStatementNameError, asyncpg.DuplicatePreparedStatementError):
        raise SetupError(SHARED_SESSIONS) from None
    except (*UNREACHABLE, asyncpg.PostgresError) as error:
        if "unsupported startup parameter" in str(error):
            raise SetupError(NO_PARAMETERS) from error
        why = str(error) or f"it did not answer within {CONNECT_WITHIN:g} seconds"
        raise SetupError(f"Postgres cannot be reached: {why}; check LONGHOUSE_DATABASE_URL.") from error
    db = Database(pool, dsn, schema, pool_size)
    try:
        yield db
    finally:
        db.pool.terminate()


async def _opened(dsn: str, wanted: str, pool_size: int) -> tuple[str, asyncpg.Pool]:
    """The schema and the pool."""
    connection = await connect(dsn)
    try:
        schema = await _schema(connection, wanted)
        pool = await _open_pool(dsn, schema, first=1, most=pool_size)
        try:
            await _refuse_shared_sessions(connection, pool)
        except BaseException:
            pool.terminate()
            raise
    finally:
        connection.terminate()
    return schema, pool


async def _schema(connection: asyncpg.Connection, wanted: str) -> str:
    """The wanted schema; or that of an installation older than the setting, usually `public`."""
    found = await connection.fetchval(*bound(FIND_SCHEMA, {"wanted": wanted, "is_default": wanted == DEFAULT_SCHEMA}))
    return str(found or wanted)


async def _refuse_shared_sessions(connection: asyncpg.Connection, pool: asyncpg.Pool) -> None:
    """Raises where a pooler gives out transactions: a second one gets the session of the first, or takes its place."""
    session = await connection.fetchval(SESSION)
    async with pool.acquire() as another, another.transaction():
        if session == await another.fetchval(SESSION) or session != await connection.fetchval(SESSION):
            raise SetupError(SHARED_SESSIONS)
