"""Restores a backup in one transaction: afterwards the whole house is there, and before that nothing of it.

The tables are made by the migrations that the backup names, filled, and then brought up to date: a backup of an older
release is migrated as its house would have been.
"""

from collections.abc import AsyncIterator
from typing import Final

import asyncpg

from longhouse.errors import SetupError
from longhouse.store import migrate
from longhouse.store.backups import backup
from longhouse.store.backups.archive import Archive
from longhouse.store.backups.backup import BackupManifest, Progress, TableCopy, part_of
from longhouse.store.connections import quoted
from longhouse.store.database import Database, Transaction
from longhouse.store.migrate import Migration
from longhouse.store.search import columns

# What people made. The rest, as the agents that come along, is made by every start.
PEOPLES: Final = ("sessions", "api_keys", "documents", "memories")
LOCKED_WITHIN: Final = "30s"
"""How long somebody who still reads the old tables is waited for."""
HAS_ROWS: Final = "SELECT EXISTS (SELECT FROM {table})"
ALIVE: Final = "SELECT count(*) FROM workers WHERE beat_at > now() - interval '15 seconds'"
OURS: Final = """
    SELECT relname AS name, relkind IN ('v', 'm') AS is_view FROM pg_class
    WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p', 'v', 'm') AND relname = ANY(:names::text[])
"""
FUNCTIONS: Final = """
    SELECT p.oid::regprocedure::text AS name FROM pg_proc p
    WHERE p.pronamespace = to_regnamespace(:schema) AND p.proname = ANY(:names::text[])
"""
SET_SEQUENCE: Final = "SELECT setval(pg_get_serial_sequence(:table, :column), :next, false)"
# Systems with copies see a new database and copy everything again: they may be ahead of the backup.
NEW_IDENTITY: Final = "UPDATE identity SET id = gen_random_uuid()"


async def restore(
    db: Database,
    source: Archive[BackupManifest],
    *,
    replace: bool = False,
    alone: bool = False,
    may_extend: bool = True,
    progress: Progress = lambda name, size: None,
) -> list[str]:
    """Fills this database with the house of a verified backup; returns the names of the migrations that followed.

    With `replace`, what people made here before is gone afterwards; without, it is refused. `alone`: this process has
    just started this Postgres, so that no worker can be alive.
    """
    first, rest = split(source.manifest)
    async with db.connection() as connection:
        await connection.execute("SELECT pg_advisory_lock($1)", migrate.LOCK)
        there = bool(await migrate.applied_on(connection, db.schema))
        if there:
            await _refuse_occupied(connection, db.schema, replace=replace, alone=alone)
        try:
            async with connection.transaction():
                await connection.execute(f"{backup.STEADY}; SET LOCAL lock_timeout = '{LOCKED_WITHIN}'")
                if there:
                    await _drop(connection, db.schema)
                await migrate.bring(connection, db.schema, first)
                await _fill(connection, db.schema, source, progress)
                await migrate.bring(connection, db.schema, rest)
                await columns.bind(connection, may_extend=may_extend)
                await connection.execute(NEW_IDENTITY)
        except backup.LOST as error:
            raise SetupError(f"The restore failed, and nothing of it was kept: {backup.reason(error)}.") from error
        # Right after it the planner would know nothing of the rows.
        await connection.execute(f"ANALYZE {', '.join(quoted(table.name) for table in source.manifest.tables)}")
    return [one.name for one in rest]


def split(manifest: BackupManifest) -> tuple[list[Migration], list[Migration]]:
    """The migrations that the backup's house had, and those that follow; refuses a backup of a newer release."""
    known = migrate.known()
    if manifest.schema > known[-1].number:
        raise SetupError(
            f"The backup was made by Longhouse {manifest.longhouse} with schema {manifest.schema:04d}, and this one "
            f"knows {known[-1].number:04d}: use that Longhouse, or a newer one."
        )
    migrate.refuse_foreign({one.number: one.digest for one in manifest.migrations})
    had = {one.number for one in manifest.migrations}
    return [one for one in known if one.number in had], [one for one in known if one.number not in had]


async def _refuse_occupied(connection: asyncpg.Connection, schema: str, *, replace: bool, alone: bool) -> None:
    wanted = [*PEOPLES, "workers"]
    there = set(await Transaction(connection).column(OURS, schema=quoted(schema), names=wanted))
    if "workers" in there and not alone and (alive := await connection.fetchval(ALIVE)):
        raise SetupError(
            f"{alive} worker{'s' if alive > 1 else ''} wrote a heartbeat just now: stop all Longhouse "
            "processes, wait 15 seconds, and restore again."
        )
    occupied = [
        name for name in PEOPLES if name in there and await connection.fetchval(HAS_ROWS.format(table=quoted(name)))
    ]
    if occupied and not replace:
        raise SetupError(
            f"There are {', '.join(occupied)} here already: restore to another LONGHOUSE_DATA_DIR or "
            "LONGHOUSE_DATABASE_URL, or say --replace, and what is here is gone."
        )


async def _drop(connection: asyncpg.Connection, schema: str) -> None:
    """Drops what migrations make, and nothing that others have in the schema; refused if others depend on it."""
    statements = migrate.statements()
    made = [*migrate.MADE.findall(statements), "schema_migrations"]
    tx, within = Transaction(connection), quoted(schema)
    rows = await tx.rows(OURS, schema=within, names=made)
    for kind, is_view in (("VIEW", True), ("TABLE", False)):
        if names := [quoted(row["name"]) for row in rows if row["is_view"] == is_view]:
            await connection.execute(f"DROP {kind} {', '.join(names)}")
    for function in await tx.column(FUNCTIONS, schema=within, names=migrate.FUNCTIONS.findall(statements)):
        await connection.execute(f"DROP FUNCTION {function}")
    for name in migrate.TYPES.findall(statements):
        await connection.execute(f"DROP TYPE IF EXISTS {name}")


async def _fill(
    connection: asyncpg.Connection, schema: str, source: Archive[BackupManifest], progress: Progress
) -> None:
    columns_of = {row["table"]: set(row["columns"]) for row in await connection.fetch(backup.COLUMNS, quoted(schema))}
    names = [quoted(table.name) for table in source.manifest.tables]
    # Whoever made the file: another program may have tables in this schema too.
    ours = set(await backup.tables_of(connection, schema))
    for named in (*(table.name for table in source.manifest.tables), *(one.table for one in source.manifest.sequences)):
        if named not in ours:
            raise SetupError(f"The backup has {named[:80]!r}, which is no table of Longhouse: nothing was restored.")
    for table in source.manifest.tables:
        if not columns_of.get(table.name, set()) >= set(table.columns):
            raise SetupError(f"The backup has columns of {table.name} that its own migrations do not make.")
    for name in names:
        # Triggers have done their work where the backup was made; without them a row is kept as it was.
        await connection.execute(f"ALTER TABLE {name} DISABLE TRIGGER USER")
    await connection.execute(f"TRUNCATE {', '.join(names)}")
    for table in source.manifest.tables:
        await _load(connection, schema, source, table, progress)
    for name in names:
        await connection.execute(f"ALTER TABLE {name} ENABLE TRIGGER USER")
    for one in source.manifest.sequences:
        await Transaction(connection).run(SET_SEQUENCE, table=quoted(one.table), column=one.column, next=one.next)


async def _load(
    connection: asyncpg.Connection, schema: str, source: Archive[BackupManifest], table: TableCopy, progress: Progress
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        done = 0
        for piece in source.pieces(part_of(table.name)):
            done += len(piece)
            progress(table.name, done)
            yield piece

    done = await connection.copy_to_table(
        table.name, schema_name=schema, columns=list(table.columns), source=pieces(), format="text"
    )
    if done != f"COPY {table.rows}":
        raise SetupError(f"{table.name} has {table.rows} rows in the backup, but Postgres took {done.split()[-1]}.")
