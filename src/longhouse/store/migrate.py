"""Schema migrations: numbered SQL files, each applied once, checked by digest, under one advisory lock."""

import asyncio
import functools
import hashlib
import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Final

import asyncpg
import msgspec
import structlog

from longhouse.errors import SetupError
from longhouse.store.connections import quoted
from longhouse.store.database import Database, Transaction
from longhouse.store.search import columns

log = structlog.get_logger()

# Migrations that were rewritten, with their old digests: later migrations bring databases with the old one up to date.
FORMERLY: Final = {
    # The old file created the extension `vector` and required it.
    5: "8610cd4d8ceed6dedeabc4b0b75033b0e1c420d5a508b466c5cbe09d9a44413a",
}

LOCK: Final = 0x6C6F6E67  # "long"

# Whoever comes to a table for which a migration waits, waits behind it: it lets them through, and tries again.
LOCKED_WITHIN: Final = "3s"
PAUSE: Final = 1.0
TRIES: Final = 30

TABLE: Final = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number     integer PRIMARY KEY,
    name       text NOT NULL,
    digest     text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)"""
APPLIED: Final = "INSERT INTO schema_migrations (number, name, digest) VALUES (:number, :name, :digest)"
# Works even where the role has no right to use the schema.
THERE: Final = """
    SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                   WHERE n.nspname = $1 AND c.relname = 'schema_migrations')
"""


OLDEST: Final = 15

FACTS: Final = """
    SELECT current_setting('server_version_num')::int / 10000 AS major,
           current_setting('server_version') AS version,
           current_setting('server_encoding') AS encoding,
           current_setting('transaction_read_only')::bool AS is_read_only,
           pg_is_in_recovery() AS is_standby,
           current_database() AS database, current_user AS role,
           has_database_privilege(current_database(), 'CREATE') AS may_create_schemas,
           to_regnamespace($1) IS NOT NULL AS has_schema,
           has_schema_privilege(to_regnamespace($1), 'USAGE')
               AND has_schema_privilege(to_regnamespace($1), 'CREATE') AS may_create_tables,
           EXISTS (SELECT FROM pg_language WHERE lanname = 'plpgsql') AS has_plpgsql
"""
# Only the owner of a table may alter it.
OWNERS: Final = """
    SELECT DISTINCT pg_get_userbyid(relowner) AS owner FROM pg_class
    WHERE relnamespace = to_regnamespace(:schema) AND relname = ANY(:names::text[])
      AND NOT pg_has_role(relowner, 'USAGE') ORDER BY owner
"""
OCCUPIED: Final = """
    SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace(:schema) AND relname = ANY(:names::text[]) ORDER BY relname
"""
MADE: Final = re.compile(r"^CREATE (?:TABLE|VIEW) (\w+)", re.MULTILINE)
FUNCTIONS: Final = re.compile(r"^CREATE (?:OR REPLACE )?FUNCTION (\w+)", re.MULTILINE)
TYPES: Final = re.compile(r"^CREATE TYPE (\w+)", re.MULTILINE)


class Migration(msgspec.Struct, frozen=True):
    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def about(self) -> str:
        """What the file says of itself: the comment that it begins with, on one line."""
        lines = itertools.takewhile(lambda line: line.startswith("--"), self.sql.splitlines())
        return " ".join(line.removeprefix("--").strip() for line in lines)


@functools.cache
def known() -> Sequence[Migration]:
    """The migrations of this version, in order: read once, as are the modules of this version."""
    folder = resources.files("longhouse.store") / "migrations"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(Migration(int(file.name[:4]), file.name, file.read_text("utf-8")) for file in files)


def statements() -> str:
    """The SQL of all migrations."""
    return "\n".join(migration.sql for migration in known())


async def migrate(db: Database, *, may_extend: bool | None = True) -> list[str]:
    """Brings the schema up to date; returns the names of the applied migrations.

    With `may_extend`, SQL shows vectors in the type of the extension `vector` where it is available; without, as bytes.
    None leaves that to another process, which knows whether the extension works.
    """
    async with db.connection() as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", LOCK)
        pending = await pending_on(connection, db.schema)
        if pending:
            await bring(connection, db.schema, pending)
        if may_extend is not None:
            await columns.bind(connection, may_extend=may_extend)
        return [migration.name for migration in pending]


async def is_current(db: Database, *, may_extend: bool | None) -> bool:
    """Whether `migrate` would change nothing. It only reads, and waits for nobody."""
    async with db.acquire() as connection:
        if await pending_on(connection, db.schema):
            return False
        return may_extend is None or await columns.is_bound(connection, may_extend=may_extend)


async def pending_on(connection: asyncpg.Connection, schema: str) -> list[Migration]:
    """The migrations that this database lacks; refuses one that this version does not know."""
    done = await applied_on(connection, schema)
    refuse_foreign(done)
    return [migration for migration in known() if migration.number not in done]


async def plan(db: Database) -> list[Migration]:
    """The migrations that would run, in order; refuses a Postgres on which they cannot."""
    async with db.connection() as connection:
        pending = await pending_on(connection, db.schema)
        if pending:
            await _check_server(connection, db.schema)
        return pending


async def bring(connection: asyncpg.Connection, schema: str, pending: Sequence[Migration]) -> None:
    """Applies these migrations, each in a transaction of its own; a transaction around them all makes them one."""
    await _check_server(connection, schema)
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", quoted(schema)):
        await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
    await connection.execute(TABLE)
    began = time.perf_counter()
    for migration in pending:
        await _apply(connection, migration)
    if pending:
        log.info("migrations_applied", count=len(pending), last=pending[-1].name, ms=_ms_since(began))


async def check(db: Database) -> None:
    """Refuses a schema that does not match this version, in one sentence."""
    async with db.pool.acquire() as connection:  # it has one: another would only be for this
        missing = await pending_on(connection, db.schema)
    if missing:
        names = ", ".join(migration.name for migration in missing)
        raise SetupError(f"The database lacks {names}: run `longhouse migrate` once, then start again.")


async def applied_on(connection: asyncpg.Connection, schema: str) -> dict[int, str]:
    if not await connection.fetchval(THERE, schema):
        return {}
    try:
        return dict(await connection.fetch(f"SELECT number, digest FROM {quoted(schema)}.schema_migrations"))
    except asyncpg.InsufficientPrivilegeError as error:
        raise SetupError(f"The database's tables cannot be read: {error}; connect as their owner.") from error


def refuse_foreign(done: dict[int, str]) -> None:
    ours = {migration.number: migration for migration in known()}
    for number, digest in sorted(done.items()):
        if number not in ours:
            raise SetupError(
                f"The database has migration {number:04d}, which this version does not know: use a newer Longhouse."
            )
        if digest not in (ours[number].digest, FORMERLY.get(number)):
            raise SetupError(
                f"Migration {ours[number].name} was changed after it had been applied: restore the file as it was."
            )


async def _apply(connection: asyncpg.Connection, migration: Migration) -> None:
    began = time.perf_counter()
    for left in reversed(range(TRIES)):
        try:
            await _run(connection, migration)
            break
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            if not left:
                raise SetupError(
                    f"Migration {migration.name} waits for another transaction, and nothing of it was kept: find the "
                    "transaction in pg_stat_activity, end it, and migrate again."
                ) from error
            log.warning("migration_waits", name=migration.name, tries_left=left, error=str(error))
            await asyncio.sleep(PAUSE)
        except asyncpg.PostgresError as error:
            raise SetupError(f"Migration {migration.name} failed, and nothing of it was kept: {error}.") from error
    log.debug("migration_applied", name=migration.name, ms=_ms_since(began))


def _ms_since(began: float) -> float:
    return round((time.perf_counter() - began) * 1000, 1)


async def _run(connection: asyncpg.Connection, migration: Migration) -> None:
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCKED_WITHIN}'")
        await connection.execute(migration.sql)
        applied = {"number": migration.number, "name": migration.name, "digest": migration.digest}
        await Transaction(connection).run(APPLIED, **applied)


async def _check_server(connection: asyncpg.Connection, schema: str) -> None:
    """Refuses a Postgres on which the migrations cannot run; once some have, the tables are Longhouse's."""
    facts = await connection.fetchrow(FACTS, quoted(schema))
    problems = [*lacking(facts, schema)]
    tables = {"schema": quoted(schema), "names": MADE.findall(statements())}
    tx = Transaction(connection)
    if await applied_on(connection, schema):
        owners = await tx.column(OWNERS, **tables)
        problems += [f"The tables in {schema} belong to {owner}: migrate as that role." for owner in owners]
    elif strange := await tx.column(OCCUPIED, **tables):
        problems.append(
            f"The schema {schema} already has {', '.join(strange)}, not created by Longhouse: name another schema with "
            "LONGHOUSE_DATABASE_SCHEMA."
        )
    if problems:
        raise SetupError(f"This Postgres cannot hold Longhouse yet; nothing was changed. {' '.join(problems)}")


def lacking(facts: Mapping[str, Any], schema: str) -> Iterator[str]:
    """One sentence for each missing thing, with what to do about it."""
    database, role = facts["database"], facts["role"]
    if facts["major"] < OLDEST:
        yield f"It is version {facts['version']}: {OLDEST} or newer is needed."
    if facts["is_standby"]:
        yield "It is a standby, which cannot be written: name the primary in LONGHOUSE_DATABASE_URL."
    elif facts["is_read_only"]:
        yield f"Its transactions are read-only: switch default_transaction_read_only off for the role {role}."
    if facts["encoding"] != "UTF8":
        yield (
            f"The database {database} is encoded in {facts['encoding']}: "
            "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, and name that database in LONGHOUSE_DATABASE_URL."
        )
    if not facts["has_schema"] and not facts["may_create_schemas"]:
        yield (
            f"The role {role} may not create the schema {schema}: as a superuser, "
            f"CREATE SCHEMA {quoted(schema)} AUTHORIZATION {quoted(role)}."
        )
    if facts["has_schema"] and not facts["may_create_tables"]:
        yield (
            f"The role {role} may not create tables in the schema {schema}: as its owner, "
            f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {quoted(role)}."
        )
    if not facts["has_plpgsql"]:
        yield "It has no plpgsql: CREATE EXTENSION plpgsql."
