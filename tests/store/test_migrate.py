"""Numbered SQL files, each applied once; a schema that is not ours is refused in one sentence."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from conftest import database
from longhouse.errors import SetupError
from longhouse.store import migrate
from longhouse.store.database import Database, open_database
from support import process


@pytest.fixture
async def empty(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """A database with nothing in it."""
    async with database(request) as dsn:
        yield dsn


def test_migrations_are_numbered_from_one_without_a_gap() -> None:
    known = migrate.known()
    assert [migration.number for migration in known] == list(range(1, len(known) + 1))
    assert all(migration.name.startswith(f"{migration.number:04d}_") for migration in known)
    assert len({migration.digest for migration in known}) == len(known)


async def test_a_migration_is_applied_once(empty: str) -> None:
    async with open_database(empty) as db:
        with pytest.raises(SetupError, match="run `longhouse migrate` once"):
            await migrate.check(db)
        assert await migrate.migrate(db) == [migration.name for migration in migrate.known()]
        assert await migrate.migrate(db) == []
        await migrate.check(db)
        rows = await db.rows("SELECT number, name, digest FROM schema_migrations ORDER BY number")
        assert [tuple(row) for row in rows] == [(one.number, one.name, one.digest) for one in migrate.known()]


async def test_of_many_who_migrate_at_once_one_does(empty: str) -> None:
    async with open_database(empty) as db:
        applied = await asyncio.gather(*(migrate.migrate(db) for _ in range(5)))
        names = [migration.name for migration in migrate.known()]
        assert sorted(applied) == sorted([names, [], [], [], []])


async def test_a_migration_that_fails_leaves_nothing_behind(empty: str) -> None:
    async with open_database(empty) as db:
        await db.run("CREATE TABLE workers (id text)")
        with pytest.raises(asyncpg.DuplicateTableError):
            await migrate.migrate(db)
        assert await db.value("SELECT to_regclass('sessions') IS NULL AND to_regclass('journal') IS NULL")
        assert await db.value("SELECT count(*) FROM schema_migrations") == 0
        await db.run("DROP TABLE workers")
        assert await migrate.migrate(db)


async def test_a_file_that_was_changed_after_it_was_applied_is_refused(db: Database) -> None:
    await db.run("UPDATE schema_migrations SET digest = 'another' WHERE number = 1")
    for work in (migrate.check, migrate.migrate):
        with pytest.raises(SetupError, match=r"0001_\w+\.sql was changed after it had been applied"):
            await work(db)


async def test_a_newer_schema_is_refused(db: Database) -> None:
    await db.run("INSERT INTO schema_migrations (number, name, digest) VALUES (9001, '9001_later.sql', 'd')")
    for work in (migrate.check, migrate.migrate):
        with pytest.raises(SetupError, match=r"9001.*use a newer Longhouse"):
            await work(db)


async def test_serve_and_work_refuse_an_empty_database_and_migrate_mends_it(empty: str) -> None:
    async def ended(*arguments: str) -> tuple[int, list[str]]:
        async with process(*arguments, database_url=empty, log_level="warning") as ran:
            code = await ran.ended()
        return code, ran.said

    refused, working = await asyncio.gather(ended("serve", "--port", "0"), ended("work"))
    names = [migration.name for migration in migrate.known()]
    sentence = f"longhouse: The database lacks {', '.join(names)}: run `longhouse migrate` once, then start again."
    assert refused == (1, [sentence])
    assert working == (1, [sentence])
    migrating, again = await asyncio.gather(ended("migrate"), ended("migrate"))
    assert sorted([migrating, again]) == [
        (0, [f"applied {name}" for name in names]),
        (0, ["the schema is up to date"]),
    ]
    async with open_database(empty) as db:
        await migrate.check(db)
