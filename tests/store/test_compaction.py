"""Compaction: what it cannot take out of the files of Postgres it says, with what to do."""

import asyncpg

from conftest import plain_role
from longhouse.store.database import Database, open_database
from longhouse.store.erasing import compaction


async def test_rows_that_somebody_may_still_read_are_told_of_and_go_the_next_time(db: Database, dsn: str) -> None:
    await db.run("INSERT INTO place_turns (held, last_owner) VALUES ('template:a', 'canary')")
    reader = await asyncpg.connect(dsn)
    async with reader.transaction(isolation="repeatable_read"):
        await reader.execute("SELECT 1")  # from now on it sees what is there now
        await db.run("DELETE FROM place_turns")
        told: list[str] = []
        done = await compaction.compact(db, lambda table, nth, of: told.append(table), tries=1)
        assert "place_turns" in told
        assert done.left[0].startswith('"place_turns" holds deleted rows that an open transaction may still read')
    await reader.close()
    # Whoever connects to any database of this Postgres counts as a reader for a moment: so more than one try.
    assert (await compaction.compact(db)).left == []


async def test_an_account_without_rights_is_told_what_is_left_to_whom(dsn: str) -> None:
    admin = await asyncpg.connect(dsn)
    await admin.execute("GRANT USAGE ON SCHEMA longhouse TO PUBLIC")
    await admin.close()
    async with plain_role(dsn) as plain, open_database(plain) as db:
        done = await compaction.compact(db, tries=1)
        assert done.tables > 40, "the owner of the database may write its tables anew"
        assert [line.partition(":")[0] for line in done.left] == [
            "The planner's samples of tables that are empty now may hold values of deleted rows",
            "The write-ahead log still tells of deleted rows",
        ]
    async with plain_role(dsn, owner=False) as plain, open_database(plain) as db:
        done = await compaction.compact(db, tries=1)
        assert done.tables == 0
        assert all("does not belong to this account" in line for line in done.left[:40])
