"""The databases of tests: one that is used again is as new, and one with more than other rows is not used again."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import asyncpg
import pytest

from databases import TEMPLATE, Databases, dsn_of
from longhouse.store.connections import connect

ROWS = (
    "INSERT INTO longhouse.passage_shards (scope, kind, recipe) SELECT 's', 'k', n FROM generate_series(1, 5) n",
    "INSERT INTO longhouse.forgotten (session_id, owner, conversation_id, side, agent, label, reports, request)"
    " SELECT n, '', '', '', '', '', '{}', gen_random_uuid() FROM generate_series(1, 2000) n",
    "INSERT INTO longhouse.search_shards (kind) SELECT 'tool'; DELETE FROM longhouse.search_shards",
    "UPDATE longhouse.catalog_generation SET generation = 7",
    "DELETE FROM longhouse.search_state",
    "ANALYZE",
)
FORMS = (
    "CREATE TABLE longhouse.more (x int)",
    "CREATE FUNCTION longhouse.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE longhouse.sessions ALTER COLUMN owner SET DEFAULT 'x'",
    "ALTER TABLE longhouse.sessions RENAME COLUMN owner TO possessor",
    "DROP INDEX longhouse.sessions_wake",
    "GRANT SELECT ON longhouse.sessions TO PUBLIC",
    "ALTER TABLE longhouse.sessions SET (fillfactor = 50)",
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET jit = on', current_database()); END $$",
    "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I CONNECTION LIMIT 50', current_database()); END $$",
)
"""Each changes what is no row."""


@pytest.fixture
async def databases(request: pytest.FixtureRequest) -> AsyncIterator[Databases]:
    kept = Databases(request.config.databases.dsn)  # type: ignore[attr-defined]
    yield kept
    await asyncio.to_thread(kept.close)


async def left(databases: Databases, staying: list[asyncpg.Connection], *statements: str) -> str:
    """A database in which somebody does this and stays: its name."""
    name = await databases.make(TEMPLATE)
    named = {"application_name": "somebody"}
    staying.append(await asyncpg.connect(dsn_of(databases.dsn, name), server_settings=named))
    for statement in statements:
        await staying[-1].execute(statement)
    databases.leave(name)
    return name


async def contents(dsn: str) -> dict[str, Sequence[asyncpg.Record]]:
    """All rows, what sequences give next, the planner's statistics, and who is there."""
    connection = await asyncpg.connect(dsn)
    names = await connection.fetch(
        "SELECT oid::regclass::text FROM pg_class"
        " WHERE relnamespace = 'longhouse'::regnamespace AND relkind IN ('r', 'S')"
    )
    found = {name: await connection.fetch(f"SELECT * FROM {name}") for [name] in names}
    found["statistics"] = await connection.fetch("SELECT FROM pg_statistic WHERE starelid >= 16384")
    found["others"] = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'somebody'"
    )
    await connection.close()
    return found


async def test_a_database_is_used_again_as_it_was_made_unless_more_than_rows_has_changed(databases: Databases) -> None:
    staying: list[asyncpg.Connection] = []
    first = await databases.make(TEMPLATE)
    new = await contents(dsn_of(databases.dsn, first))
    databases.leave(first)
    for _ in range(2):
        assert await left(databases, staying, *ROWS) == first
    assert await databases.make(TEMPLATE) == first
    assert await contents(dsn_of(databases.dsn, first)) == new
    databases.leave(first)

    used = [await left(databases, staying, statement) for statement in FORMS]
    assert len({first, *used}) == len(FORMS)
    assert await databases.make(TEMPLATE) not in used
    for connection in staying:
        connection.terminate()


async def known_of(connection: asyncpg.Connection) -> dict[str, object]:
    """All that its server process knows of who uses it."""
    found = await connection.fetchrow("""
        SELECT current_setting('statement_timeout') AS timeout,
               (SELECT count(*) FROM pg_listening_channels()) AS channels,
               (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors,
               (SELECT count(*) FROM pg_prepared_statements) AS prepared,
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks
    """)
    return dict(found)


async def test_a_server_process_serves_the_next_test_and_has_forgotten_this_one(databases: Databases) -> None:
    name = await databases.make(TEMPLATE)
    dsn = dsn_of(databases.dsn, name)
    first = await connect(dsn)
    pids = [first.get_server_pid()]
    new = await known_of(first)
    await first.execute("SET statement_timeout = 77000; LISTEN anything; DECLARE c CURSOR WITH HOLD FOR SELECT 1")
    assert await first.fetchval("SELECT pg_try_advisory_lock(1)")
    known = await known_of(first)
    assert all(known[one] != value for one, value in new.items()), known
    first.terminate()
    # Not in the same test: what is closed there is closed. And never one that was left in the middle of something.
    second = await connect(dsn)
    pids.append(second.get_server_pid())
    await second.execute("BEGIN")
    second.terminate()

    databases.leave(name)
    assert await databases.make(TEMPLATE) == name
    again = [await connect(dsn) for _ in range(2)]
    pids += [one.get_server_pid() for one in again]
    assert pids[2] == pids[0]
    assert len(set(pids)) == 3
    assert [await known_of(one) for one in again] == [new, new]
    for one in again:
        await one.close()
