"""A user, a conversation, an owner is erased: nothing of it is left in any file, and others lose nothing."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis

from delegating_server import cast
from longhouse.agents.template import MemoryPolicy, PromptPack, Template, ToolPolicy
from longhouse.app.store import open_store
from longhouse.cli.upkeep import erase as commands
from longhouse.errors import SetupError
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call
from longhouse.runtime.cleanup.eraser import Eraser
from longhouse.runtime.inbox import Inbox
from longhouse.settings import Settings
from longhouse.store.database import Database, Transaction
from longhouse.store.erasing import erasures
from longhouse.store.erasing.erasures import Target
from pages import ROOT
from redis_server import RedisServer
from server_helpers import NO_FILES, House, Serving, dictated, sse

KEEPER = Template(
    name="keeper",
    prompt_pack=PromptPack(system_prompt="I am keeper."),
    tool_policy=ToolPolicy(
        allowlist=("createreporttool", "createfiletool", "agent.helper", "finalanswertool"), selection_strategy="static"
    ),
    memory_policy=MemoryPolicy(scope="agent", recall=True),
)
HELPER = Template(
    name="helper",
    prompt_pack=PromptPack(system_prompt="I am helper."),
    tool_policy=ToolPolicy(allowlist=("createfiletool", "finalanswertool"), selection_strategy="static"),
    memory_policy=MemoryPolicy(scope="owner"),
)
DRAWN = re.compile(r"bird[0-9a-z]+")


def bird_of(body: Any) -> str:
    """The bird that the last message names."""
    return str(DRAWN.findall(str(body.messages))[-1])


def keeps(body: Any) -> Say:
    done, bird = sum(isinstance(message, ToolResult) for message in body.messages), bird_of(body)
    return (
        call("createreporttool", title=f"Отчёт {bird}", content=f"# {bird} 鸟\n\n" + f"{bird} поёт. " * 2_000),
        call("createfiletool", path=f"birds/{bird}.md", content=f"Птица {bird} поёт."),
        call("agent_helper", task=f"Помни {bird}", label=f"{bird}.x"),
        call("finalanswertool", answer=f"Готово, {bird}."),
    )[min(done, 3)]


def helps(body: Any) -> Say:
    bird = bird_of(body)
    done = any(isinstance(message, ToolResult) for message in body.messages)
    return (
        call("finalanswertool", answer=f"Помню {bird}.")
        if done
        else call("createfiletool", path=f"shared-{bird}.md", content=f"Всем: {bird}")
    )


async def ask(house: House, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    async with house.http.request(method, path, json=body) as response:
        return response.status, await response.json() if response.content_type == "application/json" else None


async def rows_of(db: Database, *marks: str) -> dict[str, list[str]]:
    """All rows with one of these words in them, by table."""
    tables = [row[0] for row in await db.rows("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")]
    found = {}
    for table in tables:
        rows = [row[0] for row in await db.rows(f"SELECT t::text FROM {table} t")]
        found[table] = sorted(row for row in rows if any(mark in row for mark in marks))
    return {table: rows for table, rows in found.items() if rows}


async def in_redis(redis: Redis) -> dict[bytes, Any]:
    names = [key async for key in redis.scan_iter("*")]
    return {key: await (redis.hgetall(key) if await redis.type(key) == b"hash" else redis.get(key)) for key in names}


def files_with(folder: Path, word: str) -> list[str]:
    """The files below a folder that have the word in them, or in their name."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    found = [path for path in paths if word in path.name or word.encode() in path.read_bytes()]
    return sorted(str(path.relative_to(folder)) for path in found)


async def until(look: Any, is_there: Any) -> None:
    async with asyncio.timeout(20):
        while not is_there(await look()):
            await asyncio.sleep(0.05)


@asynccontextmanager
async def own_data(folder: Path, redis_url: str) -> AsyncIterator[tuple[Serving, Settings]]:
    """A Postgres with a data folder of its own, which also has the logs and the reports."""
    folders = {name: folder / name for name in ("session_log_dir", "agent_log_dir", "reports_dir")}
    settings = Settings(data_dir=folder, redis_url=SecretStr(redis_url), **folders, **NO_FILES)
    async with open_store(settings) as (_, postgres):
        assert postgres is not None
        yield Serving(postgres.dsn), settings


async def test_nothing_of_a_user_is_in_any_file_and_others_lose_no_byte(
    server: RedisServer, redis: Redis, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ann, bob, book = "bird7q2ann", "bird9k4bob", "bird5w1book"
    async with own_data(folder, server.url) as (serving, settings):
        places: dict[str, Any] = {
            name: str(getattr(settings, name)) for name in ("session_log_dir", "agent_log_dir", "reports_dir")
        }
        roles = cast(keeper=keeps, helper=helps)
        async with serving(roles, templates=[KEEPER, HELPER], redis_url=server.url, **places) as house:
            talks = {}
            for bird, chat in ((ann, "c-1"), (bob, "c-2"), (ann, "c-3")):
                told = await house.say(f"Спой {bird} " * 60, model="keeper", chat_id=chat, user=f"{bird}@鸟.example")
                talks[chat] = told["model"]
            added = {"source": "user", "source_type": "user", "target": "keeper", "target_type": "agent"}
            for bird, chat in ((ann, "c-1"), (bob, "c-2")):
                one = {**added, "content": f"By phone: {bird}", "type": "input"}
                assert (await ask(house, "POST", f"/v1/conversations/{chat}/interactions", one))[0] == 201
            async with house.http.post(
                "/v1/documents?filename=birds.md", data=f"# Birds\n\nThe {book} sings.".encode(),
                headers={"content-type": "text/markdown"},
            ) as response:  # fmt: skip
                assert response.status == 201, await response.text()
            # Everything is everywhere, in samples of the planner too.
            await until(lambda: in_redis(redis), lambda found: f"subagent:helper:c-3/{ann}.x".encode() in found)
            for chat in talks:
                await ask(house, "GET", f"/v1/conversations/{chat}/interactions")  # the ledger catches up
            behind = """
                SELECT count(*) FROM sessions s CROSS JOIN (VALUES ('redis'), ('session_log')) p (name)
                LEFT JOIN projection_cursors c ON c.projection = p.name AND c.session_id = s.id
                WHERE COALESCE(c.head, 0) < s.head AND s.side <> 'external'
            """
            await until(lambda: house.db.value(behind), lambda count: count == 0)
            await house.db.run("ANALYZE")
            await house.db.run("CHECKPOINT")
            known = " ".join(files_with(folder, ann))
            assert all(place in known for place in ("base", "pg_wal", *places)), known
            assert {"sessions", "journal", "ledger", "passages", "memories"} <= (await rows_of(house.db, ann)).keys()
            sessions = await house.db.rows("SELECT id FROM sessions WHERE conversation_id = 'c-2'")
            theirs = (bob, *(row["id"] for row in sessions), book)
            before = await rows_of(house.db, *theirs)
            their_files = {name: (folder / name).read_bytes() for name in files_with(folder, bob) if "_dir" in name}
            assert len(their_files) >= 3

            path = f"/v1/users/{ann}@鸟.example"
            status, planned = await ask(house, "DELETE", f"{path}?dry_run=true")
            assert (status, planned["deleted"], planned["dry_run"]) == (200, False, True)
            assert await rows_of(house.db, *theirs) == before
            status, done = await ask(house, "DELETE", path)
            assert (status, done["object"], done["deleted"]) == (200, "user.deleted", True)
            assert done["counts"] == planned["counts"], "what was said is what went"
            assert done["counts"]["sessions"] == 5, "two talks, two helpers, what was added from outside"
            assert (done["counts"]["memory_files"], done["kept"]) == (2, {"sessions": [], "memory_files": []})
            assert (await rows_of(house.db, ann, talks["c-1"])).keys() <= {"forgotten"}
            assert (await ask(house, "DELETE", path))[1]["error"]["code"] == "user_not_found"
            await until(lambda: in_redis(redis), lambda found: ann not in str(found))

            async def copies() -> list[str]:
                return [name for name in files_with(folder, ann) if "_dir" in name]

            await until(copies, lambda found: not found)
            assert files_with(folder, ann), "Postgres has it in its files"
            await commands.compact(settings, yes=True)
            assert files_with(folder, ann) == []
            assert await rows_of(house.db, *theirs) == before, "what others have is as it was"
            assert {name: (folder / name).read_bytes() for name in their_files} == their_files
            assert bob in str(await in_redis(redis))
        # The owner, with what is left: Bob, the document. Nobody serves now: the command removes the copies too.
        await commands.erase_owner(settings, "local", yes=True)
        said = capsys.readouterr()
        assert "erased 3 sessions" in said.out, said.out
        assert "1 documents" in said.out
        assert bob not in str(await in_redis(redis))
        await commands.compact(settings, yes=True)
        assert files_with(folder, bob) == files_with(folder, book) == []
        async with open_store(settings) as (db, _):
            assert (await rows_of(db, bob, book, "local")).keys() <= {"forgotten"}
        assert "longhouse:" not in said.err + capsys.readouterr().err, "nothing was left undone"


KILLED = """
import asyncio, os, signal, sys
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.cleanup.eraser import Eraser
from longhouse.runtime.inbox import Inbox
from longhouse.store.database import open_database
from longhouse.store.erasing.erasures import Target

async def main():
    async with open_database(sys.argv[1]) as db:
        die = lambda counts: os.kill(os.getpid(), signal.SIGKILL)
        await Eraser(Inbox(db, Bus())).erase(Target("user", "local", "ann"), progress=die)

asyncio.run(main())
"""


async def test_a_killed_erasure_is_finished_and_a_running_session_cannot_be_written_back(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        asking = []
        for chat, user in (("c-1", "ann"), ("c-2", "ann"), ("c-3", "bob")):
            asking.append(asyncio.create_task(house.say(f"Долго, {user}", chat_id=chat, user=user)))
            pen = await model.asked()
            if chat != "c-2":
                pen.call("finalanswertool", '{"answer": "Done."}')
                pen.end()
                await asking[-1]
        running = await house.db.value("SELECT id FROM sessions WHERE conversation_id = 'c-2'")
        async with house.http.get(f"/v1/sessions/{running}/events?until=never") as following:
            # Another process erases, and is killed after its first step.
            killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, serving.dsn)
            assert await killed.wait() == -signal.SIGKILL
            left = await house.db.rows("SELECT conversation_id FROM sessions ORDER BY 1")
            assert [row[0] for row in left] == ["c-1", "c-3"], "who runs goes first"
            async with asyncio.timeout(20):
                assert (await asking[1])["error"]["code"] == "session_deleted"
                assert all(fact.data for fact in [one async for one in sse(following)]), "and the stream has ended"
        eraser = Eraser(Inbox(house.db, house.app.bus))
        await eraser.resume()
        assert await house.db.value("SELECT count(*) FROM sessions") == 2, "not yet: whoever began may be at it"
        assert await erasures.is_asked(house.db, Target("user", "local", "ann"))
        await eraser.resume(untouched_for=0)
        left = await house.db.rows("SELECT conversation_id FROM sessions")
        assert [row[0] for row in left] == ["c-3"]
        assert await house.db.value("SELECT count(*) FROM erasures") == 0
        async with asyncio.timeout(20):
            while house.app.worker.busy:
                await asyncio.sleep(0.02)
        assert await house.db.value("SELECT count(*) FROM journal WHERE session_id = :id", id=running) == 0
        # What takes too long is answered, and finished in the background.
        slow = await eraser.erase(Target("user", "local", "bob"), within=-1)
        assert (slow.is_finished, slow.counts["sessions"]) == (False, 1)
        assert (await ask(house, "DELETE", "/v1/users/bob"))[0] == 200, "somebody asks again: it is finished"
        assert await house.db.value("SELECT count(*) FROM erasures") == 0


async def test_what_others_share_with_a_user_stays_and_is_named(serving: Serving, capsys: Any) -> None:
    def writes(body: Any) -> Say:
        """Each appends to what all share."""
        done = sum(isinstance(message, ToolResult) for message in body.messages)
        bird = bird_of(body)
        if done % 2:
            return call("finalanswertool", answer="Done.")
        if bird == "bird1ann":
            return call("createfiletool", path="ours.md", content=f"{bird}.")
        return call("updatefiletool", path="ours.md", old_content="bird1ann.", new_content=f"bird1ann. {bird}.")

    writer = Template(
        name="helper",
        prompt_pack=PromptPack(system_prompt="I am helper."),
        tool_policy=ToolPolicy(allowlist=("createfiletool", "updatefiletool", "finalanswertool")),
        memory_policy=MemoryPolicy(scope="owner"),
    )
    async with serving(writes, templates=[writer]) as house:
        await house.say("Пиши bird1ann", model="helper", chat_id="c-1", user="ann")
        ours = (await house.say("Пиши bird2bob", model="helper", chat_id="c-2", user="bob"))["model"]
        await house.say("И я: bird2bob", model=ours, user="ann")
        content = await house.db.value("SELECT content FROM memories")
        assert "bird1ann. bird2bob." in content
        settings = Settings(database_url=SecretStr(serving.dsn), **NO_FILES)
        await commands.erase_user(settings, "ann", dry_run=True)
        said = capsys.readouterr().out
        assert f"stays: {ours}, a session of others" in said
        assert "stays: memory file ours.md" in said
        assert "would erase 1 sessions" in said
        with pytest.raises(SetupError, match="say --yes where nobody can be asked"):
            await commands.erase_user(settings, "ann")
        with pytest.raises(SetupError, match="there is no user 'cem': nothing is erased"):
            await commands.erase_user(settings, "cem", yes=True)
        assert await house.db.value("SELECT count(*) FROM sessions") == 2
        await commands.erase_user(settings, "ann", yes=True)
        assert await house.db.value("SELECT content FROM memories") == content
        # By its name it goes.
        await commands.erase_memory(settings, "ours.md", yes=True)
        assert await house.db.value("SELECT count(*) FROM memories") == 0
        assert "what " + ours in capsys.readouterr().out, "the session that wrote it last still tells of it"
        await commands.erase_conversation(settings, "c-2", yes=True)
        assert await house.db.value("SELECT count(*) FROM journal") == 0


async def test_every_table_is_in_the_list_of_what_goes_with_what(db: Database) -> None:
    page = (ROOT / "docs" / "erasing.md").read_text()
    listed = page.split("## What is kept where")[1].split("`forgotten` is what keeps")[0]
    names = [name for line in listed.splitlines() if line.startswith("| `") for name in
             re.findall(r"`(\w+)`", line.split("|")[1])]  # fmt: skip
    tables = [row[0] for row in await db.rows("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")]
    assert sorted(names) == sorted(tables), "say in docs/erasing.md with what a new table goes, and see to it"


async def test_a_document_that_changes_while_its_owner_is_erased_leaves_no_passage(serving: Serving) -> None:
    async with serving() as house:
        async with house.http.post("/v1/documents?filename=birds.md", data=b"# Birds\n\nThe wren sings.") as added:
            assert added.status == 201, await added.text()
        changed, may_commit = asyncio.Event(), asyncio.Event()

        async def change(tx: Transaction) -> None:
            """A new version, as its upload writes it."""
            await tx.run("UPDATE passages SET \"group\" = 'new' WHERE kind = 'document'")
            await tx.run("UPDATE documents SET text_id = 'new' WHERE owner = 'local'")
            changed.set()
            await may_commit.wait()

        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            tasks.create_task(house.db.together(change))
            await changed.wait()
            erasing = tasks.create_task(erasures.forget_documents(house.db, "local"))
            while not await house.db.value("SELECT count(*) FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
            may_commit.set()
        assert (erasing.result()["documents"], erasing.result()["passages"] > 0) == (1, True)
        assert (
            await house.db.value("SELECT count(*) FROM passages WHERE kind = 'document' AND scope LIKE '%local%'") == 0
        )
