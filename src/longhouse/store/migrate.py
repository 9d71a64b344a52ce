"""Schema migrations: numbered SQL files, each applied once, checked by digest, under one advisory lock."""

import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Final

import asyncpg

from longhouse.errors import SetupError
from longhouse.store import preflight
from longhouse.store.database import Database, bound, quoted
from longhouse.store.search import columns

# Migrations that were rewritten, with their old digests: later migrations bring databases with the old one up to date.
FORMERLY: Final = {
    # The old file created the extension `vector` and required it.
    5: "8610cd4d8ceed6dedeabc4b0b75033b0e1c420d5a508b466c5cbe09d9a44413a",
}

LOCK: Final = 0x6C6F6E67  # "long"

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


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def known() -> list[Migration]:
    folder = resources.files("longhouse.store") / "migrations"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return [Migration(int(file.name[:4]), file.name, file.read_text("utf-8")) for file in files]


async def migrate(db: Database, *, may_extend: bool | None = True) -> list[str]:
    """Brings the schema up to date; returns the names of the applied migrations.

    With `may_extend`, SQL shows vectors in the type of the extension `vector` where it is available; without, as bytes.
    None leaves that to another process, which knows whether the extension works.
    """
    async with db.connection() as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", LOCK)
        done = await _applied(connection, db.schema)
        _refuse_foreign(done)
        pending = [migration for migration in known() if migration.number not in done]
        if pending:
            statements = [migration.sql for migration in known()]
            await preflight.check(connection, db.schema, statements, begun=bool(done))
            await _begin(connection, db.schema)
        for migration in pending:
            await _apply(connection, migration)
        if may_extend is not None:
            await columns.bind(connection, may_extend=may_extend)
        return [migration.name for migration in pending]


async def check(db: Database) -> None:
    """Refuses a schema that does not match this version, in one sentence."""
    async with db.connection() as connection:
        done = await _applied(connection, db.schema)
    _refuse_foreign(done)
    missing = [migration.name for migration in known() if migration.number not in done]
    if missing:
        raise SetupError(f"The database lacks {', '.join(missing)}: run `longhouse migrate` once, then start again.")


async def _begin(connection: asyncpg.Connection, schema: str) -> None:
    if not await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", quoted(schema)):
        await connection.execute(f"CREATE SCHEMA {quoted(schema)}")
    await connection.execute(TABLE)


async def _applied(connection: asyncpg.Connection, schema: str) -> dict[int, str]:
    if not await connection.fetchval(THERE, schema):
        return {}
    try:
        rows = await connection.fetch(f"SELECT number, digest FROM {quoted(schema)}.schema_migrations")
    except asyncpg.InsufficientPrivilegeError as error:
        raise SetupError(f"The database's tables cannot be read: {error}; connect as their owner.") from error
    return {row["number"]: row["digest"] for row in rows}


def _refuse_foreign(done: dict[int, str]) -> None:
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
    try:
        async with connection.transaction():
            await connection.execute(migration.sql)
            applied = {"number": migration.number, "name": migration.name, "digest": migration.digest}
            await connection.execute(*bound(APPLIED, **applied))
    except asyncpg.PostgresError as error:
        raise SetupError(f"Migration {migration.name} failed, and nothing of it was kept: {error}.") from error
