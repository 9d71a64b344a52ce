"""What `longhouse doctor` asks Postgres: its clock, rights of the role, the extension, room for connections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from longhouse import clock
from longhouse.store.database import Database, quoted
from longhouse.store.search import columns

FACTS: Final = """
    SELECT current_setting('server_version') AS version, current_user AS role,
           pg_is_in_recovery() OR current_setting('transaction_read_only')::bool AS is_read_only,
           pg_database_size(current_database()) AS size,
           current_setting('max_connections')::int AS most,
           (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int AS used
"""
CLOCK: Final = "SELECT clock_timestamp()"
CLOSED_TABLES: Final = """
    SELECT relname FROM pg_class
    WHERE relnamespace = to_regnamespace(:schema) AND relkind = 'r'
      AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
               AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE'))
    ORDER BY relname
"""


@dataclass(frozen=True, slots=True)
class Checkup:
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
    closed_tables: Sequence[str]
    """Tables that the role may not read and write."""
    vector: str | None
    """The version of pgvector that is installed; empty: it is only available; None: it is not there."""


async def examine(db: Database) -> Checkup:
    facts = await db.row(FACTS)
    assert facts is not None
    closed = [row["relname"] for row in await db.rows(CLOSED_TABLES, schema=quoted(db.schema))]
    extension = await db.row(columns.EXTENSION)
    vector = (extension["installed_version"] or "") if extension else None
    return Checkup(**dict(facts), seconds_ahead=await _seconds_ahead(db), closed_tables=closed, vector=vector)


async def _seconds_ahead(db: Database) -> float:
    before = clock.now()
    there = await db.value(CLOCK)
    after = clock.now()
    if before <= there <= after:
        return 0.0
    return float((there - (after if there > after else before)).total_seconds())
