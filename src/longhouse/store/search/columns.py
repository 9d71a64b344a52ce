"""Vectors as SQL shows them: numbers that can be compared where the extension `vector` works, bytes elsewhere."""

from dataclasses import dataclass
from importlib import resources
from typing import Final

import asyncpg
import structlog

from longhouse.store.search.vectors import spelled

log = structlog.get_logger()

VIEWS: Final = ("tools", "agent_templates")
BATCH: Final = 1000

STATE: Final = """
    SELECT c.relkind = 'r' AS is_table, a.atttypid AS type FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'embedding' AND NOT a.attisdropped
    WHERE c.oid IN (to_regclass('search_documents'), to_regclass('tools'), to_regclass('agent_templates'))
"""
TYPE: Final = """
    SELECT t.oid FROM pg_type t
    JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
    JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid
    WHERE e.extname = 'vector' AND t.typname = 'vector'
"""
EXTENSION: Final = "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'vector'"
# Where others find its operators without asking for a schema, if there is such a place.
CREATE: Final = """
    DO $$ BEGIN
        EXECUTE format('CREATE EXTENSION IF NOT EXISTS vector SCHEMA %I',
                       CASE WHEN to_regnamespace('public') IS NULL THEN current_schema() ELSE 'public' END);
    END $$
"""
UPDATE: Final = "ALTER EXTENSION vector UPDATE"
GRANTS: Final = """
    SELECT format('GRANT %s ON %I TO %s%s', a.privilege_type, c.relname,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
                  CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) AS grant
    FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
    WHERE c.oid IN (to_regclass('tools'), to_regclass('agent_templates')) AND a.grantee <> c.relowner
"""
VECTORS: Final = "SELECT kind, name, vector FROM search_documents WHERE vector IS NOT NULL"
FILL: Final = """
    UPDATE search_documents d SET embedding = given.embedding::%s
    FROM unnest($1::text[], $2::text[], $3::text[]) AS given (kind, name, embedding)
    WHERE d.kind = given.kind AND d.name = given.name
"""
BYTES: Final = 17
"""The type `bytea`: its number is the same in every Postgres."""


@dataclass(frozen=True, slots=True)
class Shown:
    """How vectors are shown: the type of the column beside the bytes, None where there is no such column."""

    kept: int | None
    views: tuple[int, ...]


def as_shown(extension: int | None) -> Shown:
    return Shown(kept=extension, views=(extension or BYTES,) * len(VIEWS))


async def column_type(connection: asyncpg.Connection) -> str | None:
    """The type of the column `embedding`, as a statement here may name it; None where there is no such column."""
    kept = (await _shown(connection)).kept
    return await _name(connection, kept) if kept else None


async def bind(connection: asyncpg.Connection, *, may_extend: bool) -> None:
    """Shows vectors in the best way that this Postgres has now; without `may_extend`, as bytes."""
    extension = await _extension(connection) if may_extend else None
    wanted = as_shown(extension)
    if await _shown(connection) == wanted:
        return
    try:
        async with connection.transaction():
            await _show(connection, wanted)
    except (asyncpg.InsufficientPrivilegeError, asyncpg.DependentObjectsStillExistError) as error:
        # Somebody built on the views, or owns them. They answer as before, so nothing else waits for this.
        why = f"{error.args[0]}: {error.detail}" if error.detail else error.args[0]
        log.warning("vectors are shown in SQL as before: remove what stands in the way and migrate again", error=why)


async def _shown(connection: asyncpg.Connection) -> Shown:
    rows = await connection.fetch(STATE)
    kept = next((row["type"] for row in rows if row["is_table"]), None)
    return Shown(kept, tuple(row["type"] for row in rows if not row["is_table"]))


async def _extension(connection: asyncpg.Connection) -> int | None:
    """The extension's type, once it is there as new as it can be; None where it cannot be had."""
    there = await connection.fetchrow(EXTENSION)
    if there is None:
        return None
    for change, is_due in (
        (CREATE, there["installed_version"] is None),
        (UPDATE, there["installed_version"] not in (None, there["default_version"])),
    ):
        if is_due:
            await _tried(connection, change)
    found: int | None = await connection.fetchval(TYPE)
    if found is None or not await _tried(connection, f"SELECT NULL::{await _name(connection, found)}"):
        return None
    return found


async def _tried(connection: asyncpg.Connection, change: str) -> bool:
    """Whether Postgres let us. Whatever it has against it, all but this goes on without the extension."""
    try:
        async with connection.transaction():
            await connection.execute(change)
    except asyncpg.PostgresError as error:
        log.info("the extension vector is left as it is", error=str(error).partition("\n")[0])
        return False
    return True


async def _name(connection: asyncpg.Connection, number: int) -> str:
    return str(await connection.fetchval("SELECT format_type($1, NULL)", number))


async def _show(connection: asyncpg.Connection, wanted: Shown) -> None:
    grants = [row["grant"] for row in await connection.fetch(GRANTS)]
    await connection.execute(f"DROP VIEW IF EXISTS {', '.join(VIEWS)}")
    await connection.execute("ALTER TABLE search_documents DROP COLUMN IF EXISTS embedding")
    if wanted.kept:
        named = await _name(connection, wanted.kept)
        await connection.execute(f"ALTER TABLE search_documents ADD embedding {named}")
        await _fill(connection, named)
    views = (resources.files("longhouse.store") / "catalog_views.sql").read_text("utf-8")
    await connection.execute(views.replace(":embedding", "embedding" if wanted.kept else "vector"))
    for grant in grants:
        await connection.execute(grant)


async def _fill(connection: asyncpg.Connection, named: str) -> None:
    """Vectors that were indexed before there was such a column."""
    cursor = await connection.cursor(VECTORS)
    while rows := await cursor.fetch(BATCH):
        kinds, names, vectors = zip(*rows, strict=True)
        await connection.execute(FILL % named, kinds, names, [spelled(vector) for vector in vectors])
