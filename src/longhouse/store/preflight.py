"""Checks before migration that a Postgres can hold Longhouse, and lists all that is missing before writing anything."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import asyncpg

from longhouse.errors import SetupError
from longhouse.store.database import bound, quoted

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
THERE: Final = """
    SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace(:schema) AND relname = ANY(:names::text[]) ORDER BY relname
"""
MADE: Final = re.compile(r"^CREATE (?:TABLE|VIEW) (\w+)", re.MULTILINE)


async def check(connection: asyncpg.Connection, schema: str, statements: Sequence[str], *, begun: bool) -> None:
    """Refuses a Postgres on which these migrations cannot run; `begun`: some have, so the tables are Longhouse's."""
    facts = await connection.fetchrow(FACTS, quoted(schema))
    problems = [*lacking(facts, schema)]
    names = MADE.findall("\n".join(statements))
    if begun:
        owners = [row["owner"] for row in await connection.fetch(*bound(OWNERS, schema=quoted(schema), names=names))]
        problems += [f"The tables in {schema} belong to {owner}: migrate as that role." for owner in owners]
    elif strange := [
        row["relname"] for row in await connection.fetch(*bound(THERE, schema=quoted(schema), names=names))
    ]:
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
