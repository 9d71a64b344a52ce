"""Statements with named parameters, and retries that survive a restart of Postgres."""

import asyncio
import hashlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, Final, TypeVar

import asyncpg

from longhouse.errors import ReadOnlySession, SetupError
from longhouse.store import connections
from longhouse.store.connections import POOLED, SERVER_LINE, Loan, PostgresPool, connect, open_pool, set_up
from longhouse.store.gathering import Gathering

POOL_SIZE: Final = 20
RETRY_FOR: Final = 15.0
"""Seconds for which a statement is retried while Postgres cannot be reached."""
TRIES_IN_DEADLOCK: Final = 3

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
OF_HOUSE: Final = (asyncpg.InsufficientResourcesError, asyncpg.PostgresSystemError)
"""Whoever writes now would meet the same: there is no disk, or no memory."""

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


def advisory_key(named: bytes, size: int = 4) -> int:
    """The key of an advisory lock, by what it is named after."""
    return int.from_bytes(hashlib.sha256(named).digest()[:size], "big", signed=True)


class Executor(ABC):
    """Executes statements with named parameters: the database, or a transaction in it."""

    @abstractmethod
    def _execute(self, method: str, statement: tuple[Any, ...]) -> Awaitable[Any]:
        """Calls this method of a connection."""

    async def rows(self, sql: str, /, **values: object) -> Sequence[asyncpg.Record]:
        found: Sequence[asyncpg.Record] = await self._execute("fetch", bound(sql, values))
        return found

    async def column(self, sql: str, /, **values: object) -> list[Any]:
        """The first value of each row."""
        return [row[0] for row in await self.rows(sql, **values)]

    async def read(self, made: Callable[..., T], sql: str, /, **values: object) -> list[T]:
        """What is made of each row, whose values are the arguments in order."""
        return [made(*row) for row in await self.rows(sql, **values)]

    async def row(self, sql: str, /, **values: object) -> asyncpg.Record | None:
        return await self._execute("fetchrow", bound(sql, values))

    async def read_one(self, made: Callable[..., T], sql: str, /, **values: object) -> T | None:
        """The same of the only row; None if there is none."""
        row = await self.row(sql, **values)
        return made(*row) if row else None

    async def value(self, sql: str, /, **values: object) -> Any:
        return await self._execute("fetchval", bound(sql, values))

    async def run(self, sql: str, /, **values: object) -> str:
        return str(await self._execute("execute", bound(sql, values)))

    async def changed(self, sql: str, /, **values: object) -> int:
        """How many rows a statement has written or deleted."""
        return int((await self.run(sql, **values)).rpartition(" ")[2])


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

    def __init__(self, pool: PostgresPool, dsn: str, schema: str, pool_size: int) -> None:
        self.pool = pool
        self.dsn = dsn
        self.schema = schema
        self.retries = 0
        """How often a statement was tried again because Postgres could not be reached."""
        self.appends: Gathering | None = None
        """Those that wait to be written together."""
        self._pool_size = pool_size
        self._renewing = asyncio.Lock()

    def _execute(self, method: str, statement: tuple[Any, ...]) -> Awaitable[Any]:
        return self._with_retries(lambda pool: pool.run(method, *statement))

    async def once(self, sql: str, /, **values: object) -> None:
        """Runs a statement that must not be sent twice; if the connection is lost, it may have been executed or not."""
        await self.pool.run("execute", *bound(sql, values))

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
        """Runs several statements in one transaction, all once more after a lost connection or a deadlock."""

        async def attempt(pool: PostgresPool) -> T:
            async with pool.acquire() as connection, connection.transaction(isolation="read_committed"):
                return await work(Transaction(connection))

        return await self._with_retries(attempt)

    async def _with_retries(self, attempt: Callable[[PostgresPool], Awaitable[T]]) -> T:
        """Runs `attempt`, with retries and back-off while Postgres cannot be reached, and after a deadlock."""
        give_up_at = time.monotonic() + RETRY_FOR
        pause, deadlocks = 0.01, 0
        while True:
            pool = self.pool
            try:
                return await attempt(pool)
            except UNREACHABLE as error:
                if self._is_over(give_up_at - pause):
                    raise
                if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
                    # This server may never accept writes again: another one may be the primary by now.
                    pool.expire()
            except asyncpg.DeadlockDetectedError:
                # Postgres has undone all of it, so that the others go on.
                deadlocks += 1
                if deadlocks == TRIES_IN_DEADLOCK:
                    raise
                continue
            except asyncpg.CheckViolationError as error:
                if error.constraint_name == READ_ONLY:
                    raise ReadOnlySession from error
                raise
            except asyncpg.PostgresError:
                raise
            except Exception as error:
                if not pool.is_closed:
                    raise
                # The pool was terminated during the statement, so asyncpg fails with an arbitrary exception.
                if self._is_over(give_up_at - pause):
                    raise ConnectionAbortedError("the connection to Postgres was dropped") from error
            self.retries += 1
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    def _is_over(self, give_up_at: float) -> bool:
        return self.pool.is_closed or time.monotonic() > give_up_at

    async def renew(self) -> None:
        """Replaces the pool because its connections do not answer; statements under way are retried on new ones.

        Concurrent calls share one renewal: the new connections are not dropped with the old ones.
        """
        silent = self.pool
        async with self._renewing:
            if self.pool is silent and not silent.is_closed:
                self.pool = open_pool(self.dsn, self.schema, self._pool_size)
                silent.terminate()

    def acquire(self) -> Loan:
        """A connection of the pool for the length of a block."""
        return self.pool.acquire()

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
        why = str(error) or f"it did not answer within {connections.CONNECT_WITHIN:g} seconds"
        raise SetupError(f"Postgres cannot be reached: {why}; check LONGHOUSE_DATABASE_URL.") from error
    db = Database(pool, dsn, schema, pool_size)
    try:
        yield db
    finally:
        db.pool.terminate()


async def _opened(dsn: str, wanted: str, pool_size: int) -> tuple[str, PostgresPool]:
    """The schema and the pool."""
    connection = await connect(dsn, **POOLED)
    try:
        # Or that of an installation older than the setting, usually `public`.
        known = {"wanted": wanted, "is_default": wanted == DEFAULT_SCHEMA}
        schema = str(await Transaction(connection).value(FIND_SCHEMA, **known) or wanted)
        pool = open_pool(dsn, schema, pool_size)
        try:
            await _refuse_shared_sessions(connection, pool)
            await set_up(connection, schema)
        except BaseException:
            pool.terminate()
            raise
    except BaseException:
        connection.terminate()
        raise
    pool.adopt(connection)
    return schema, pool


async def _refuse_shared_sessions(connection: asyncpg.Connection, pool: PostgresPool) -> None:
    """Raises where a pooler gives out transactions: a second one gets the session of the first, or takes its place."""
    session = await connection.fetchval(SESSION)
    async with pool.acquire() as another, another.transaction():
        if session == await another.fetchval(SESSION) or session != await connection.fetchval(SESSION):
            raise SetupError(SHARED_SESSIONS)
