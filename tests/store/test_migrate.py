"""Numbered SQL files, each applied once; a schema that is not ours is refused in one sentence."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest
import structlog

from conftest import database, plain_role
from longhouse.errors import SetupError
from longhouse.journal import events
from longhouse.store import files, migrate
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import open_postgres
from longhouse.store.postgres.embedded import open_embedded
from old_database import made_formerly
from server_helpers import process


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
        with structlog.testing.capture_logs() as logs:
            assert await migrate.migrate(db) == [migration.name for migration in migrate.known()]
            assert await migrate.migrate(db) == []
        told = [(one["name"], one["ms"] > 0) for one in logs if one["event"] == "migration_applied"]
        assert told == [(migration.name, True) for migration in migrate.known()]
        # A first start is one line of the log.
        [summed] = [one for one in logs if one["log_level"] != "debug"]
        assert summed["event"] == "migrations_applied"
        assert (summed["count"], summed["last"]) == (len(told), told[-1][0])
        await migrate.check(db)
        rows = await db.rows("SELECT number, name, digest FROM schema_migrations ORDER BY number")
        assert [tuple(row) for row in rows] == [(one.number, one.name, one.digest) for one in migrate.known()]


async def test_whoever_finds_the_schema_current_waits_for_nobody(empty: str) -> None:
    async with open_database(empty) as db:
        assert not await migrate.is_current(db, may_extend=True), "nothing is there yet"
        await migrate.migrate(db, may_extend=False)
        assert await migrate.is_current(db, may_extend=False)
        assert await migrate.is_current(db, may_extend=None)
        assert not await migrate.is_current(db, may_extend=True), "vectors are shown as bytes"
        await migrate.migrate(db)
        async with db.connection() as migrating:
            await migrating.execute("SELECT pg_advisory_lock($1)", migrate.LOCK)
            assert await migrate.is_current(db, may_extend=True)
            assert not await migrate.is_current(db, may_extend=False)
        await db.run("DELETE FROM schema_migrations WHERE number = (SELECT max(number) FROM schema_migrations)")
        assert not await migrate.is_current(db, may_extend=True), "the last one is pending"


async def test_of_many_who_migrate_at_once_one_does(empty: str) -> None:
    async with open_database(empty) as db:
        applied = await asyncio.gather(*(migrate.migrate(db) for _ in range(5)))
        names = [migration.name for migration in migrate.known()]
        assert sorted(applied) == sorted([names, [], [], [], []])


async def test_a_migration_that_fails_leaves_nothing_behind(empty: str) -> None:
    async with open_database(empty) as db:
        await db.run("CREATE SCHEMA longhouse")
        await db.run("CREATE FUNCTION event_id(text, bigint) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$")
        with pytest.raises(
            SetupError, match=r"Migration 0007_views.sql failed, and nothing of it was kept: .*event_id"
        ):
            await migrate.migrate(db)
        assert await db.value("SELECT to_regclass('sessions') IS NOT NULL AND to_regclass('journal_events') IS NULL")
        assert await db.value("SELECT max(number) FROM schema_migrations") == 6
        await db.run("DROP FUNCTION event_id")
        assert await migrate.migrate(db)


async def test_a_migration_lets_others_through_while_it_waits_for_a_long_reader(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, reader = [one for one in migrate.known() if one.number <= 25], await asyncpg.connect(empty)
    monkeypatch.setattr(migrate, "LOCKED_WITHIN", "20ms")
    monkeypatch.setattr(migrate, "PAUSE", 0.01)
    monkeypatch.setattr(migrate, "known", lambda: known[:-1])
    async with open_database(empty) as db:
        await migrate.migrate(db)
        monkeypatch.setattr(migrate, "known", lambda: known)
        await reader.execute("BEGIN; SELECT FROM longhouse.sessions")
        monkeypatch.setattr(migrate, "TRIES", 2)
        with pytest.raises(SetupError, match=r"0025_question_order.sql waits for another .*pg_stat_activity"):
            await migrate.migrate(db)
        monkeypatch.setattr(migrate, "TRIES", 1_000_000)
        with structlog.testing.capture_logs() as logs:
            migrating = asyncio.create_task(migrate.migrate(db))
            async with asyncio.timeout(10):
                while not logs:
                    await db.rows("SELECT FROM sessions")
            assert (logs[0]["event"], logs[0]["name"]) == ("migration_waits", known[-1].name)
            await reader.execute("COMMIT")
            assert await migrating == [known[-1].name]
    await reader.close()


RELEASED = 39
"""The last migration of the release before."""
UNIQUE = """
    SELECT indrelid::regclass::text || ' ' || pg_get_indexdef(indexrelid) FROM pg_index
    WHERE indisunique AND indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'longhouse'::regnamespace)
"""


async def test_whatever_the_release_before_names_in_on_conflict_stays(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes go on beside a migration, and a statement that names a key which is gone fails: one that nobody
    names any more may leave with the next release."""
    known = migrate.known()
    async with open_database(empty) as db:
        monkeypatch.setattr(migrate, "known", lambda: known[:RELEASED])
        await migrate.migrate(db)
        before = {row[0] for row in await db.rows(UNIQUE)}
        monkeypatch.setattr(migrate, "known", lambda: known)
        await migrate.migrate(db)
        assert len(before) > 40
        assert not before - {row[0] for row in await db.rows(UNIQUE)}


WAITS = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
CLASHING = "LOCK TABLE journal IN ACCESS EXCLUSIVE MODE; LOCK TABLE sessions IN ACCESS EXCLUSIVE MODE"


async def test_appends_go_on_while_their_tables_are_migrated(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append holds `sessions` when it comes to the journal: who has locked the journal must not wait for it."""
    known = [*migrate.known()]
    later = migrate.Migration(known[-1].number + 1, "later.sql", CLASHING)
    appending = await asyncpg.connect(empty, server_settings={"search_path": "longhouse"})
    # It is not the append that is ended where two wait for each other.
    await appending.execute("SET deadlock_timeout = '1h'")
    monkeypatch.setattr(migrate, "PAUSE", 0.01)
    monkeypatch.setattr(migrate, "known", lambda: known[:37])
    async with open_database(empty) as db:
        await migrate.migrate(db)
        for last in (*known[37:], later):
            await appending.execute("BEGIN; LOCK TABLE sessions IN ROW EXCLUSIVE MODE")
            monkeypatch.setattr(migrate, "known", lambda last=last: [*known[: last.number - 1], last])
            with structlog.testing.capture_logs() as logs:
                migrating = asyncio.create_task(migrate.migrate(db))
                async with asyncio.timeout(20):
                    while not migrating.done() and not await db.value(WAITS):
                        await asyncio.sleep(0.01)
                    await appending.execute("LOCK TABLE journal IN ROW EXCLUSIVE MODE; COMMIT")
                    assert await migrating == [last.name]
            # One that needs both, and in the other order, gives way and comes again.
            assert [one["name"] for one in logs if one["event"] == "migration_waits"] == [later.name] * (last is later)
    await appending.close()


DIGESTS = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("made", "shown", "long", "said", "brought")}


async def _write_as_before(db: Database, session: str) -> None:
    """What a process of the release before writes: a tool's file, images in a short and a long prompt, a text."""
    image = '[[{"type":"image_url","image_url":{"url":"longhouse-file:%s"}}]]'
    long = '{"v":1,"kind":"Prompted","content":%s}' % (image % DIGESTS["long"])
    digest = await files.put(db, long.encode(), "application/json")
    bodies = [
        ("Stored", events.encode(events.Stored(path="図", digest=DIGESTS["made"], media_type="text/csv")), None),
        ("Prompted", '{"v":1,"kind":"Prompted","content":%s}' % (image % DIGESTS["shown"]), None),
        ("Prompted", "{}", digest),
        (
            "Prompted",
            msgspec.json.encode({"v": 1, "kind": "Prompted", "content": [image % DIGESTS["said"]]}).decode(),
            None,
        ),
    ]
    bodies.append(
        ("Prompted", '{"v":1,"kind":"Prompted","content":["\\u0000 longhouse-file:"],"digest":"\\u0000"}', None)
    )
    await db.run(
        "INSERT INTO sessions (id, owner, conversation_id, side, agent, head, due, version, created_at, updated_at)"
        " VALUES (:id, 'ann', :id, 'root', 'a', 5, false, 1, now(), now())",
        id=session,
    )
    for seq, (kind, body, body_digest) in enumerate(bodies, 1):
        await db.run(
            "INSERT INTO journal (session_id, seq, conversation_id, kind, append_id, nth, body, body_digest, at)"
            " VALUES (:id, :seq, :id, :kind, gen_random_uuid(), 1, :body, :digest, now())",
            id=session, seq=seq, kind=kind, body=body, digest=body_digest,
        )  # fmt: skip
    request: dict[str, Any] = {"metadata": {"image_url": f"longhouse-file:{DIGESTS['said']}"}, "input": []}
    part = {"type": "input_image", "detail": "auto", "image_url": f"longhouse-file:{DIGESTS['brought']}"}
    request["input"] = [{"type": "message", "content": [part]}]
    await db.run(
        "INSERT INTO responses (id, owner, placed_in, placed_at, session_id, trace_id, after, request, is_stored,"
        " created_at) VALUES (:id, 'ann', :id, 1, :id, 't', 1, :request, true, now())",
        id=session, request=msgspec.json.encode(request).decode(),
    )  # fmt: skip


async def test_files_belong_to_the_sessions_of_before_and_of_processes_of_before(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = migrate.known()
    async with open_database(empty) as db:
        monkeypatch.setattr(migrate, "known", lambda: known[:41])
        await migrate.migrate(db)
        await _write_as_before(db, "before")
        await _write_as_before(db, "capsule")
        await db.run("UPDATE sessions SET capsule = id, capsule_head = head WHERE id = 'capsule'")
        manifest = msgspec.json.encode({"files": {DIGESTS["shown"]: "image/png"}}).decode()
        await db.run("INSERT INTO capsules (id, manifest) VALUES ('capsule', :manifest)", manifest=manifest)
        for session in ("before", "deleted", "forgotten", "forgotten here /logs"):
            await db.run("INSERT INTO projection_cursors VALUES ('redis', :id, '', 1)", id=session)
        monkeypatch.setattr(migrate, "known", lambda: known)
        await migrate.migrate(db)
        left = "SELECT session_id FROM projection_cursors ORDER BY session_id"
        assert [row[0] for row in await db.rows(left)] == ["before", "forgotten", "forgotten here /logs"]
        await _write_as_before(db, "beside")
        for session in ("before", "beside"):
            found = await db.rows("SELECT digest, media_type FROM session_files WHERE session_id = :id", id=session)
            types = {DIGESTS[name]: None for name in ("shown", "long", "brought")} | {DIGESTS["made"]: "text/csv"}
            assert dict(found) == types
        came = await db.rows("SELECT digest FROM session_files WHERE session_id = 'capsule'")
        assert [row[0] for row in came] == [DIGESTS["shown"]], "its events name others, which it does not hold"
        await db.run("DELETE FROM responses; DELETE FROM sessions")
        assert await db.value("SELECT count(*) FROM session_files") == 0


async def test_statements_are_never_compiled_whatever_the_server_says(empty: str) -> None:
    connection = await asyncpg.connect(empty)
    await connection.execute("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET jit = on', current_database()); END $$")
    await connection.close()
    async with open_database(empty) as db, db.connection() as dedicated:
        assert await db.value("SHOW jit") == "off"
        assert await dedicated.fetchval("SHOW jit") == "off"
        await db.renew()
        assert await db.value("SHOW jit") == "off"


async def test_a_file_that_was_changed_after_it_was_applied_is_refused(db: Database) -> None:
    await db.run("UPDATE schema_migrations SET digest = 'another' WHERE number = 1")
    for work in (migrate.check, migrate.migrate):
        with pytest.raises(SetupError, match=r"0001_\w+\.sql was changed after it had been applied"):
            await work(db)


async def test_a_newer_schema_is_refused(db: Database) -> None:
    await db.run("INSERT INTO schema_migrations (number, name, digest) VALUES (9001, '9001_later.sql', 'd')")
    for work in (migrate.check, migrate.migrate, partial(migrate.is_current, may_extend=True)):
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


# Where the tables are


async def schemas(db: Database) -> set[str]:
    rows = await db.rows("SELECT schemaname AS name FROM pg_tables UNION SELECT schemaname FROM pg_views")
    return {row["name"] for row in rows} - {"pg_catalog", "information_schema"}


async def test_a_start_that_cannot_read_its_files_leaves_the_schema_as_it_is(folder: Path, tmp_path: Path) -> None:
    """Whoever mends the files may do so with the release of before."""
    wrong, views = tmp_path / "config.yaml", "SELECT count(*) FROM pg_views WHERE viewname = 'agent_templates'"
    wrong.write_text("агенты: [")
    async with open_embedded(folder, binaries=None, schema="longhouse") as (db, _, is_current):
        assert is_current
        await db.run("DROP VIEW agent_templates")
    async with process(data_dir=str(folder), config_file=str(wrong)) as ran:
        assert await ran.ended() == 1
    assert "config.yaml" in ran.said[-1]
    async with open_embedded(folder, binaries=None, schema="longhouse") as (db, _, is_current):
        assert not is_current
        assert await db.value(views) == 0
    async with process(data_dir=str(folder)), open_postgres(folder) as attached, open_database(attached.dsn) as db:
        assert await db.value(views) == 1


async def test_all_tables_are_in_a_schema_of_our_own_beside_those_of_others(empty: str) -> None:
    connection = await asyncpg.connect(empty)
    await connection.execute("CREATE TABLE schema_migrations (version text); CREATE TABLE public.sessions (id int)")
    for schema in ("longhouse", "agents_2"):
        async with open_database(empty, schema=schema) as db:
            assert await migrate.migrate(db)
            await migrate.check(db)
            assert await db.value("SELECT count(*) FROM workers") == 0
            await db.renew()
            assert await db.value("SELECT current_schema()") == schema
    async with open_database(empty) as db:
        assert await schemas(db) == {"longhouse", "agents_2", "public"}
    strangers = (
        "SELECT array_agg(relname::text ORDER BY relname) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    )
    assert await connection.fetchval(f"{strangers} AND relkind IN ('r', 'v')") == ["schema_migrations", "sessions"]
    await connection.close()


@pytest.mark.parametrize("place", ["public", "Their Own"])
async def test_an_installation_of_before_stays_where_it_is(empty: str, place: str) -> None:
    """Its tables are where the role's search path led, which was `public` unless somebody had said otherwise."""
    connection = await asyncpg.connect(empty)
    await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{place}"')
    await connection.execute(
        f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = \"{place}\"', current_database()); END $$"
    )
    await connection.close()
    await made_formerly(empty)
    async with open_database(empty) as db:
        with pytest.raises(SetupError, match=r"The database lacks 0010_vectors.sql"):
            await migrate.check(db)
        assert (await migrate.migrate(db))[0] == "0010_vectors.sql"
        await migrate.check(db)
        assert await schemas(db) == {place}
    async with open_database(empty, schema="another") as db:
        with pytest.raises(SetupError, match=r"lacks 0001_journal.sql"):
            await migrate.check(db)


# What a Postgres lacks


async def lacks(dsn: str) -> str:
    async with open_database(dsn) as db:
        with pytest.raises(SetupError) as refused:
            await migrate.migrate(db)
        assert await db.value("SELECT count(*) FROM pg_class WHERE relname = 'schema_migrations'") == 0
    assert "\n" not in str(refused.value)
    return str(refused.value)


async def test_everything_that_is_missing_is_said_before_anything_is_written(request: pytest.FixtureRequest) -> None:
    async with database(request, "template0 ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C'") as admin:
        connection = await asyncpg.connect(admin)
        name = await connection.fetchval("SELECT current_database()")
        async with plain_role(admin, owner=False) as dsn:
            role = dsn.partition("//")[2].partition("@")[0]
            await connection.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
            said = await lacks(dsn)
            assert said.startswith("This Postgres cannot hold Longhouse yet; nothing was changed. Its transactions are")
            assert f"The database {name} is encoded in LATIN1" in said
            assert "may not create the schema longhouse: as a superuser, CREATE SCHEMA" in said
        await connection.close()


async def test_a_role_without_rights_is_told_which_and_works_once_it_has_them(empty: str) -> None:
    connection = await asyncpg.connect(empty)
    async with plain_role(empty, owner=False) as dsn:
        role = dsn.partition("//")[2].partition("@")[0]
        assert f'CREATE SCHEMA "longhouse" AUTHORIZATION "{role}"' in await lacks(dsn)
        await connection.execute("CREATE SCHEMA longhouse")
        assert f'GRANT USAGE, CREATE ON SCHEMA "longhouse" TO "{role}"' in await lacks(dsn)
        await connection.execute(f"GRANT USAGE, CREATE ON SCHEMA longhouse TO {role}")
        await connection.execute("CREATE TABLE longhouse.workers (id text)")
        assert "The schema longhouse already has workers, not created by Longhouse" in await lacks(dsn)
        await connection.execute("DROP TABLE longhouse.workers")
        async with process("migrate", database_url=dsn, log_level="warning") as ran:
            assert await ran.ended() == 0
        assert ran.said == [f"applied {one.name}" for one in migrate.known()]
        async with plain_role(empty, owner=False) as another, open_database(another) as db:
            with pytest.raises(SetupError, match="cannot be read: permission denied for schema longhouse"):
                await migrate.check(db)
    await connection.close()


async def test_tables_of_another_role_are_not_changed(empty: str) -> None:
    await made_formerly(empty)
    connection = await asyncpg.connect(empty)
    async with plain_role(empty, owner=False) as dsn:
        role = dsn.partition("//")[2].partition("@")[0]
        await connection.execute(f"GRANT ALL ON SCHEMA public TO {role}")
        await connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        async with open_database(dsn) as db:
            with pytest.raises(SetupError, match="The tables in public belong to longhouse: migrate as that role"):
                await migrate.migrate(db)
    await connection.close()


def test_an_old_version_and_a_standby_are_told() -> None:
    facts = {"major": 14, "version": "14.9", "encoding": "UTF8", "is_read_only": True, "is_standby": True}
    facts |= {"database": "d", "role": "r", "has_schema": False, "may_create_schemas": True, "has_plpgsql": False}
    assert list(migrate.lacking(facts, "longhouse")) == [
        "It is version 14.9: 15 or newer is needed.",
        "It is a standby, which cannot be written: name the primary in LONGHOUSE_DATABASE_URL.",
        "It has no plpgsql: CREATE EXTENSION plpgsql.",
    ]
