"""What `longhouse doctor` asks Postgres: its clock, rights of the role, the extension, room for connections."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from longhouse import clock
from longhouse.store import migrate
from longhouse.store.connections import quoted
from longhouse.store.database import Database
from longhouse.store.search import columns

FACTS: Final = """
    SELECT current_setting('server_version') AS version, current_user AS role,
           pg_is_in_recovery() OR current_setting('transaction_read_only')::bool AS is_read_only,
           pg_database_size(current_database()) AS size,
           current_setting('max_connections')::int AS most,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int AS used
"""
CLOCK: Final = "SELECT clock_timestamp()"
MAY_ENTER: Final = "SELECT COALESCE(has_schema_privilege(to_regnamespace(:schema), 'USAGE'), true)"
# Views are only read; the index of the catalog is emptied when it is made anew. Tables of other programs are not asked.
RIGHTS: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
LACKING: Final = """
    SELECT c.relname AS table, array_agg(wanted.right ORDER BY wanted.nth) AS rights
    FROM pg_class c
    CROSS JOIN unnest(:rights::text[]) WITH ORDINALITY AS wanted ("right", nth)
    WHERE c.relnamespace = to_regnamespace(:schema) AND c.relname = ANY(:names::text[])
      AND (c.relkind IN ('r', 'p') OR wanted.right = 'SELECT')
      AND (c.relname LIKE 'search\\_%' OR wanted.right <> 'TRUNCATE')
      AND NOT has_table_privilege(c.oid, wanted.right)
    GROUP BY c.relname ORDER BY c.relname
"""


class Checkup(msgspec.Struct, frozen=True):
    version: str
    role: str
    is_read_only: bool
    size: int
    """Bytes of the database."""
    most: int
    used: int
    """Connections that Postgres allows, and those that are in use."""
    seconds_ahead: float
    """How far its clock is ahead of this machine's; what the way there may have taken counts for neither."""
    schema: str
    may_enter: bool
    """Whether the role may use the schema at all."""
    lacking: Mapping[str, Sequence[str]]
    """Tables and views with the rights that the role needs and does not have."""
    vector: str | None
    """The version of pgvector that is installed; empty: it is only available; None: it is not there."""


async def examine(db: Database) -> Checkup:
    [facts] = await db.rows(FACTS)
    schema, names = quoted(db.schema), migrate.MADE.findall(migrate.statements())
    lacking = dict(await db.rows(LACKING, schema=schema, names=names, rights=RIGHTS))
    extension = await db.row(columns.EXTENSION)
    vector = (extension["installed_version"] or "") if extension else None
    return Checkup(
        **dict(facts),
        seconds_ahead=await _seconds_ahead(db),
        schema=db.schema,
        may_enter=await db.value(MAY_ENTER, schema=schema),
        lacking=lacking,
        vector=vector,
    )


async def _seconds_ahead(db: Database) -> float:
    before = clock.now()
    there = await db.value(CLOCK)
    after = clock.now()
    if before <= there <= after:
        return 0.0
    return float((there - (after if there > after else before)).total_seconds())
