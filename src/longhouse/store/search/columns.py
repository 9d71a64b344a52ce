"""The SQL column `embedding`: the type `vector` of pgvector where the extension works, else bytes."""

from importlib import resources
from typing import Final

import asyncpg
import structlog

from longhouse.store.database import Executor, Transaction
from longhouse.store.search.vectors import pgvector_literal

log = structlog.get_logger()

TABLE: Final = "search_documents"
VIEWS: Final = ("tools", "agent_templates")
BATCH: Final = 1000

STATE: Final = """
    SELECT c.relname AS name, a.atttypid AS type FROM pg_class c
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'embedding' AND NOT a.attisdropped
    WHERE c.oid IN (to_regclass('search_documents'), to_regclass('tools'), to_regclass('agent_templates'))
"""
COLUMN_TYPE: Final = """
    SELECT format_type(atttypid, NULL) FROM pg_attribute
    WHERE attrelid = to_regclass('search_documents') AND attname = 'embedding' AND NOT attisdropped
"""
TYPE: Final = """
    SELECT t.oid, format_type(t.oid, NULL) AS name FROM pg_type t
    JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
    JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND e.oid = d.refobjid
    WHERE e.extname = 'vector' AND t.typname = 'vector'
"""
EXTENSION: Final = "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'vector'"
# In the schema `public` if it exists: there other users find the extension's operators without naming a schema.
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
    FROM unnest(:kinds::text[], :names::text[], :embeddings::text[]) AS given (kind, name, embedding)
    WHERE d.kind = given.kind AND d.name = given.name
"""
BYTES: Final = 17
"""The OID of the type `bytea`, the same in every Postgres."""


async def column_type(db: Executor) -> str | None:
    """The name of the column `embedding`'s type on this connection; None where there is no such column."""
    return await db.read_one(str, COLUMN_TYPE)


async def bind(connection: asyncpg.Connection, *, may_extend: bool) -> None:
    """Sets the column and the views to the extension's type if that works on this Postgres; else, to bytes."""
    extension = await _extension(connection) if may_extend else None
    if await _is_shown(connection, extension):
        return
    try:
        async with connection.transaction():
            await _show(connection, extension)
    except (asyncpg.InsufficientPrivilegeError, asyncpg.DependentObjectsStillExistError) as error:
        # Other objects depend on the views, or another role owns them. They work as before, so nothing else fails.
        reason = f"{error.args[0]}: {error.detail}" if error.detail else error.args[0]
        message = "SQL shows vectors as before: resolve what the error names, then migrate again"
        log.warning("vector_columns_unchanged", message=message, error=reason)


async def is_bound(connection: asyncpg.Connection, *, may_extend: bool) -> bool:
    """Whether `bind` would change nothing."""
    available = await connection.fetchrow(EXTENSION) if may_extend else None
    if available and available["installed_version"] != available["default_version"]:
        return False
    return await _is_shown(connection, await _type(connection) if available else None)


async def _is_shown(connection: asyncpg.Connection, extension: asyncpg.Record | None) -> bool:
    present = {row["name"]: row["type"] for row in await connection.fetch(STATE)}
    return present == (dict.fromkeys((TABLE, *VIEWS), extension["oid"]) if extension else dict.fromkeys(VIEWS, BYTES))


async def _extension(connection: asyncpg.Connection) -> asyncpg.Record | None:
    """OID and name of the extension's type, after creating or updating the extension; None where it does not work."""
    available = await connection.fetchrow(EXTENSION)
    if available is None:
        return None
    if available["installed_version"] is None:
        await _tried(connection, CREATE)
    elif available["installed_version"] != available["default_version"]:
        await _tried(connection, UPDATE)
    return await _type(connection)


async def _type(connection: asyncpg.Connection) -> asyncpg.Record | None:
    found = await connection.fetchrow(TYPE)
    return found if found and await _tried(connection, f"SELECT NULL::{found['name']}") else None


async def _tried(connection: asyncpg.Connection, change: str) -> bool:
    """Runs a statement about the extension; False if Postgres refuses it for any reason: nothing else depends on it."""
    try:
        async with connection.transaction():
            await connection.execute(change)
    except asyncpg.PostgresError as error:
        message = "Postgres refused a statement about the extension vector, which stays as it is"
        log.info("vector_extension_unchanged", message=message, error=str(error).partition("\n")[0])
        return False
    return True


async def _show(connection: asyncpg.Connection, extension: asyncpg.Record | None) -> None:
    grants = await Transaction(connection).column(GRANTS)
    await connection.execute(f"DROP VIEW IF EXISTS {', '.join(VIEWS)}")
    await connection.execute("ALTER TABLE search_documents DROP COLUMN IF EXISTS embedding")
    if extension:
        await connection.execute(f"ALTER TABLE search_documents ADD embedding {extension['name']}")
        await _fill(connection, extension["name"])
    views = (resources.files("longhouse.store") / "catalog_views.sql").read_text("utf-8")
    await connection.execute(views.replace(":embedding", "embedding" if extension else "vector"))
    for grant in grants:
        await connection.execute(grant)


async def _fill(connection: asyncpg.Connection, named: str) -> None:
    """Fills the new column with the vectors that were indexed before it existed."""
    cursor = await connection.cursor(VECTORS)
    while rows := await cursor.fetch(BATCH):
        kinds, names, vectors = zip(*rows, strict=True)
        embeddings = [pgvector_literal(vector) for vector in vectors]
        await Transaction(connection).run(FILL % named, kinds=kinds, names=names, embeddings=embeddings)
