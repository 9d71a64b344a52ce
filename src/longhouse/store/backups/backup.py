"""A backup: all tables at one moment, in one file, taken while the house serves; from any Postgres.

Tables are copied as text, which every later Postgres reads, in one snapshot. Their definitions are not in the file: the
numbered migrations are, by their digests, so that the restore makes the same tables with the code of every day.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Final

import asyncpg
import msgspec

import longhouse
from longhouse import clock
from longhouse.errors import SetupError
from longhouse.store import migrate
from longhouse.store.backups import archive
from longhouse.store.backups.archive import Archive, ArchivePart, ArchiveWriter, Kind, PartWriter
from longhouse.store.connections import quoted
from longhouse.store.database import Database, Transaction

FORMAT: Final = "longhouse-backup"
VERSION: Final = 1

OF_THE_MOMENT: Final = ("workers", "agent_instances", "open_requests", "browser_sessions")
"""Tables whose rows speak of processes and browsers of the moment: in a restored house none of them is there."""
BUILT_IN_TYPES: Final = 16_384
"""Types with a smaller OID are in every Postgres. Columns in the type of an extension show others, and are made
again where the next Postgres has it."""

# In the order in which they can be filled: a table comes after those that it refers to.
TABLES: Final = """
WITH RECURSIVE ours AS (
    SELECT oid, relname FROM pg_class WHERE relnamespace = to_regnamespace(:schema) AND relkind IN ('r', 'p')
      AND relname = ANY(:names::text[])
), depth AS (
    SELECT oid, relname, 0 AS deep FROM ours
    UNION
    SELECT o.oid, o.relname, d.deep + 1 FROM depth d
    JOIN pg_constraint c ON c.confrelid = d.oid AND c.contype = 'f' AND c.conrelid <> c.confrelid
    JOIN ours o ON o.oid = c.conrelid WHERE d.deep < 20
)
SELECT relname AS name, max(deep) AS deep FROM depth GROUP BY oid, relname ORDER BY deep, name
"""
# Generated columns are computed again.
COLUMNS: Final = f"""
    SELECT c.relname AS table, array_agg(a.attname::text ORDER BY a.attnum) AS columns
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p') AND a.attgenerated = ''
      AND a.atttypid < {BUILT_IN_TYPES} GROUP BY c.relname
"""
SEQUENCES: Final = """
    SELECT t.relname AS table, a.attname AS column, s.relname AS sequence
    FROM pg_depend d
    JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    JOIN pg_class t ON t.oid = d.refobjid AND t.relnamespace = to_regnamespace($1)
    JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = d.refobjsubid
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
    ORDER BY 1, 2
"""
APPLIED: Final = "SELECT number, name, digest FROM schema_migrations ORDER BY number"
# Text must come out the same whatever the role or the server prefers, and nothing may cut a long copy short.
STEADY: Final = """
    SET LOCAL datestyle = 'ISO, MDY'; SET LOCAL timezone = 'UTC'; SET LOCAL extra_float_digits = 1;
    SET LOCAL bytea_output = 'hex'; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0
"""

Progress = Callable[[str, int], None]
"""Is called with what is being copied, and its bytes so far."""


class AppliedMigration(msgspec.Struct, frozen=True):
    number: int
    name: str
    digest: str


class TableCopy(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[str, ...]
    rows: int
    part: ArchivePart


class SequenceValue(msgspec.Struct, frozen=True):
    table: str
    column: str
    next: int


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup holds; the first thing that a restore reads."""

    format: str = FORMAT
    format_version: int = VERSION
    longhouse: str = longhouse.__version__
    made_at: datetime
    postgres: str
    migrations: tuple[AppliedMigration, ...]
    tables: tuple[TableCopy, ...]
    sequences: tuple[SequenceValue, ...]

    @property
    def schema(self) -> int:
        """The number of the last migration."""
        return max((one.number for one in self.migrations), default=0)

    def rows_of(self, table: str) -> int:
        return next((one.rows for one in self.tables if one.name == table), 0)

    @property
    def parts(self) -> Mapping[str, ArchivePart]:
        return {part_of(one.name): one.part for one in self.tables}


def part_of(table: str) -> str:
    return f"tables/{table}.copy"


KIND: Final = Kind(FORMAT, VERSION, "backup of Longhouse", BackupManifest, lambda manifest: manifest.parts)


def opened(path: Path) -> AbstractContextManager[Archive[BackupManifest]]:
    """The backup in this file; what is no backup, or of a newer release, is refused."""
    return archive.reading(path, KIND)


def verify(path: Path, progress: Progress = lambda name, size: None) -> BackupManifest:
    """Reads the whole file and counts its rows; refuses one that is not whole."""
    lines, sizes = Counter[str](), Counter[str]()

    def look(name: str, piece: bytes) -> None:
        # In this format a row is a line: line ends within values are escaped.
        lines[name] += piece.count(b"\n")
        sizes[name] += len(piece)
        progress(name, sizes[name])

    with opened(path) as backup:
        backup.verify(look)
        if wrong := [one.name for one in backup.manifest.tables if lines[part_of(one.name)] != one.rows]:
            raise archive.damaged(path, wrong[0])
        return backup.manifest


LOST: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)
"""What a statement raises that Postgres refuses, or whose answer never comes."""


async def back_up(db: Database, target: Path, progress: Progress = lambda name, size: None) -> BackupManifest:
    """Writes all of the house to a file that gets its name when it is complete. Nobody has to stop for it."""
    with archive.writing(target, verify) as writer:
        try:
            async with db.connection() as connection:
                manifest = await _written(connection, db.schema, writer, progress)
        except LOST as error:
            raise SetupError(f"The backup failed, and no file was written: {reason(error)}.") from error
        writer.finish(manifest)
    return manifest


def reason(error: Exception) -> str:
    """What Postgres says, on one line."""
    detail = getattr(error, "detail", None)
    said = str(error.args[0]) if error.args else type(error).__name__
    return f"{said}: {detail}" if detail else said


async def _written(
    connection: asyncpg.Connection, schema: str, writer: ArchiveWriter, progress: Progress
) -> BackupManifest:
    done = await migrate.applied_on(connection, schema)
    if not done:
        raise SetupError("There is no Longhouse in this database: there is nothing to back up.")
    migrate.refuse_foreign(done)  # it may have tables that are not known here
    tables = await tables_of(connection, schema)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        # Like any reader's lock: it holds up nothing but changes of the schema. Before the first look, so that the
        # tables are those of the snapshot.
        await connection.execute(STEADY)
        names = ", ".join(f"{quoted(schema)}.{quoted(name)}" for name in tables)
        await connection.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE")
        return await _copied(connection, schema, tables, writer, progress)


async def tables_of(connection: asyncpg.Connection, schema: str) -> list[str]:
    """The tables of Longhouse in this schema: another program may have others in it."""
    named = migrate.MADE.findall(migrate.statements())
    return await Transaction(connection).column(TABLES, schema=quoted(schema), names=named)


async def _copied(
    connection: asyncpg.Connection, schema: str, tables: list[str], writer: ArchiveWriter, progress: Progress
) -> BackupManifest:
    migrations = tuple(await Transaction(connection).read(AppliedMigration, APPLIED))
    columns = dict(await connection.fetch(COLUMNS, quoted(schema)))
    if set(await tables_of(connection, schema)) != set(tables):
        raise SetupError("The schema was migrated at the same moment: back up again.")
    copies = []
    for table in tables:
        if table in OF_THE_MOMENT:
            continue
        kept = columns[table]
        with writer.part(part_of(table)) as part:

            async def write(piece: bytes, table: str = table, part: PartWriter = part) -> None:
                part.write(piece)
                progress(table, part.bytes)

            await connection.copy_from_table(table, schema_name=schema, columns=kept, output=write, format="text")
        copies.append(TableCopy(table, tuple(kept), part.lines, part.part))
    sequences = [await _sequence(connection, schema, row) for row in await connection.fetch(SEQUENCES, quoted(schema))]
    return BackupManifest(
        made_at=clock.now(),
        postgres=str(await connection.fetchval("SELECT current_setting('server_version')")),
        migrations=migrations,
        tables=tuple(copies),
        sequences=tuple(one for one in sequences if one.table in tables),
    )


async def _sequence(connection: asyncpg.Connection, schema: str, row: asyncpg.Record) -> SequenceValue:
    # Numbers that were given out since the snapshot are left out: they may have been used by nobody.
    source = f"{quoted(schema)}.{quoted(row['sequence'])}"
    value = await connection.fetchval(f"SELECT last_value + is_called::int FROM {source}")
    return SequenceValue(row["table"], row["column"], value)
