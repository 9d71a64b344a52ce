"""Finds the Postgres schema that holds Longhouse's tables."""

from typing import Final

import asyncpg

DEFAULT: Final = "longhouse"

# Other programs have a table of this name too; that of Longhouse is recognised by its columns.
FIND: Final = """
    SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'schema_migrations' AND c.relkind = 'r'
      AND 3 = (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
                   AND a.attname IN ('number', 'digest', 'applied_at'))
      AND (n.nspname = $1 OR $2 AND n.nspname = ANY(current_schemas(false)))
    ORDER BY n.nspname <> $1, array_position(current_schemas(false), n.nspname) LIMIT 1
"""


async def find(connection: asyncpg.Connection, wanted: str) -> str:
    """The wanted schema; or that of an installation older than the setting, usually `public`."""
    return str(await connection.fetchval(FIND, wanted, wanted == DEFAULT) or wanted)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
