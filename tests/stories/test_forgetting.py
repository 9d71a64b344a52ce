"""DELETE /v1/sessions/{id}: nothing of what was said is left, anywhere that we have put it."""

import asyncio
import base64
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from delegating_server import CAST, SignTool, ask, cast, in_steps, playing
from longhouse.agents.template import MemoryPolicy, PromptPack, Template, ToolPolicy
from longhouse.journal.events import Fault, Returned
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call
from longhouse.store.database import Database
from redis_server import RedisServer, text
from server_helpers import House, Serving, content, dictated, sse

CANARY = "канарейка金絲雀canary"
LABEL = "canary.bird"
KEEPER = Template(
    name="keeper",
    prompt_pack=PromptPack(system_prompt="I am keeper."),
    tool_policy=ToolPolicy(
        allowlist=("createreporttool", "createfiletool", "agent.helper", "clarificationtool", "finalanswertool"),
        selection_strategy="static",
    ),
    memory_policy=MemoryPolicy(scope="conversation"),
)
HELPER = Template(
    name="helper",
    prompt_pack=PromptPack(system_prompt="I am helper."),
    tool_policy=ToolPolicy(allowlist=("finalanswertool",)),
)


def keeps(body: Any) -> Say:
    """Asks first; then says what it was told to all who keep something."""
    done = sum(isinstance(message, ToolResult) for message in body.messages)
    return (
        call("clarificationtool", questions=[f"{CANARY}?"]),
        call("createreporttool", title=f"Отчёт {CANARY}", content=f"# {CANARY}\n\n" + f"{CANARY} " * 4_000),
        call("createfiletool", path=f"{CANARY}.md", content=CANARY),
        call("agent_helper", task=f"Помни {CANARY}", label=LABEL, constraints={"что": CANARY}),
        call("finalanswertool", answer=f"Готово, {CANARY}."),
    )[done]


ROLES = {"keeper": keeps, "helper": in_steps(call("finalanswertool", answer=f"Помню {CANARY}."))}
IMAGE = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + CANARY.encode()).decode()


async def everything(db: Database) -> str:
    """All rows of all tables as text, and all bytes that they hold."""
    tables = await db.rows(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
        " WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
    )
    found = [await db.rows(f"SELECT t::text AS row FROM {table['name']} t") for table in tables]
    kept = await db.rows("SELECT content FROM files UNION ALL SELECT state FROM snapshots")
    rows = [row["row"] for rows in found for row in rows] + [row[0].decode(errors="replace") for row in kept]
    return "\n".join(rows)


def on_disk(*folders: Path) -> str:
    said = []
    for path in (path for folder in folders for path in folder.rglob("*")):
        with suppress(FileNotFoundError, IsADirectoryError):  # it may go while we look
            said.append(f"{path.name}\n{path.read_text(errors='replace')}")
    return "\n".join(said)


async def in_redis(redis: Redis) -> str:
    names = [key async for key in redis.scan_iter("*") if await redis.type(key) == b"string"]
    return "\n".join([f"{text(key)} {text(await redis.get(key) or b'')}" for key in names])


async def until_gone(look: Any, within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while CANARY in await look():
            await asyncio.sleep(0.05)


async def delete(house: House, session_id: str) -> tuple[int, Any]:
    async with house.http.delete(f"/v1/sessions/{session_id}") as response:
        return response.status, await response.json()


async def chat(house: House, *messages: Any, model: str = "keeper", **extra: Any) -> Any:
    async with house.http.post(
        "/v1/chat/completions", json={"model": model, "messages": list(messages), **extra}
    ) as response:
        return await response.json()


def user(text: str, image: str | None = None) -> dict[str, Any]:
    shown = [{"type": "image_url", "image_url": {"url": image}}] if image else []
    return {"role": "user", "content": [{"type": "text", "text": text}, *shown] if image else text}


async def test_nothing_of_a_session_is_left_anywhere(
    serving: Serving, server: RedisServer, redis: Redis, tmp_path: Path
) -> None:
    folders = {name: tmp_path / name for name in ("session_log_dir", "agent_log_dir", "reports_dir")}
    settings: dict[str, Any] = {name: str(path) for name, path in folders.items()}
    cast_of_two = cast(**ROLES)
    async with serving(cast_of_two, templates=[KEEPER, HELPER], redis_url=server.url, **settings) as house:
        long = f"{CANARY} " * 8_000  # more than a row takes: its body goes to files
        # Of such a user, what is kept for the conversation alone lies under a digest.
        asked = await chat(house, user(long, IMAGE), chat_id="c-1", metadata={"note": "x"}, user="我" * 200)
        session = asked["model"]
        assert content(await chat(house, user(f"Да, {CANARY}"), model=session)) == f"Готово, {CANARY}."
        async with house.http.get("/v1/sessions?conversation_id=c-1") as response:
            every = [row["session_id"] for row in (await response.json())["data"]]
        assert len(every) == 2, "the sub-agent is one of them"
        # It was everywhere.
        async with asyncio.timeout(20):
            while f"subagent:helper:c-1/{LABEL}" not in await in_redis(redis) or CANARY not in on_disk(
                folders["session_log_dir"]
            ):
                await asyncio.sleep(0.05)
        for name in ("agent_log_dir", "reports_dir"):
            assert CANARY in on_disk(folders[name]), name
        kept = await everything(house.db)
        assert CANARY in kept
        assert await house.db.value("SELECT count(*) FROM files WHERE media_type = 'application/json'") > 0
        assert await house.db.value("SELECT count(*) FROM memories") == 1

        assert await delete(house, session) == (
            200, {"id": session, "object": "session.deleted", "deleted": True},
        )  # fmt: skip
        rows = await everything(house.db)
        assert CANARY not in rows
        assert LABEL not in rows
        assert await house.db.value("SELECT count(*) FROM files") == 0
        await until_gone(lambda: in_redis(redis))
        assert LABEL not in await in_redis(redis)

        async def disk() -> str:
            return on_disk(*folders.values())

        await until_gone(disk)
        for one in every:
            assert (await delete(house, one))[0] == 404
            for path in ("", "/messages", "/memory", "/events", "/artifacts", "/sources", "/log", "/steps/1/request"):
                async with house.http.get(f"/v1/sessions/{one}{path}") as response:
                    assert response.status == 404, path
            assert (await chat(house, user("hi"), model=one))["error"]["code"] == "model_not_found"
        # The same conversation begins anew, and nobody remembers, even if Redis had kept it.
        await redis.set("chat_history:c-1", msgspec.json.encode([{"role": "user", "content": CANARY}]))
        assert house.model is not None
        before = len(house.model.requests)
        again = await chat(house, user("Привет"), chat_id="c-1")
        assert again["model"] not in every
        sent = [
            one for request in house.model.requests[before:] for one in request["messages"] if one["role"] == "user"
        ]
        assert [one["content"] for one in sent] == ["Привет"]


async def test_what_others_have_said_and_shown_stays(serving: Serving, server: RedisServer, redis: Redis) -> None:
    """Two agents in one conversation, and two conversations with the same image."""
    end = in_steps(call("finalanswertool", answer="Видел."))
    roles = cast(keeper=end, helper=end)
    async with serving(roles, templates=[KEEPER, HELPER], redis_url=server.url) as house:
        first = (await chat(house, user(f"Смотри {CANARY}", IMAGE), chat_id="c-1"))["model"]
        beside = (await chat(house, user("Скажи и ты"), chat_id="c-1", model="helper"))["model"]
        other = (await chat(house, user("Смотри", IMAGE), chat_id="c-2"))["model"]
        async with asyncio.timeout(20):
            while "Скажи и ты" not in await in_redis(redis):
                await asyncio.sleep(0.05)
        assert (await delete(house, first))[0] == 200
        assert await house.db.value("SELECT count(*) FROM files") == 1, "somebody else has shown the same image"
        await until_gone(lambda: in_redis(redis))
        async with asyncio.timeout(20):
            while (await redis.get("chat_history:c-1")) is None:
                await asyncio.sleep(0.05)
        told = msgspec.json.decode(text(await redis.get("chat_history:c-1")))
        assert [message["content"] for message in told] == ["Скажи и ты", "Видел."]
        for one in (beside, other):
            assert (await house.session(one))["state"] == "COMPLETED"
        assert (await delete(house, other))[0] == 200
        assert await house.db.value("SELECT count(*) FROM files") == 0


async def test_a_running_session_is_stopped_wherever_it_runs(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as worker:
        asking = asyncio.create_task(worker.say(f"Долго {CANARY}"))
        pen = await model.asked()
        [session] = [row["id"] for row in await worker.db.rows("SELECT id FROM sessions")]
        async with worker.http.get(f"/v1/sessions/{session}/events?until=never") as following:
            assert following.status == 200
            # By another process, of which the worker hears nothing.
            async with serving(llm_base_url=model.url) as other:
                assert (await delete(other, session))[0] == 200
            async with asyncio.timeout(20):
                assert (await asking)["error"]["code"] == "session_deleted"
                assert all(fact.data for fact in [one async for one in sse(following)]), "and the stream has ended"
        pen.call("finalanswertool", f'{{"answer": "{CANARY}"}}')
        pen.end()
        async with asyncio.timeout(20):
            while worker.app.worker.busy:
                await asyncio.sleep(0.02)
        assert CANARY not in await everything(worker.db)
        assert await worker.db.value("SELECT count(*) FROM journal") == 0


@pytest.mark.parametrize("calls", [1, 2])
async def test_who_waits_for_an_agent_that_is_deleted_is_told(serving: Serving, calls: int) -> None:
    asks = call("clarificationtool", questions=["Which city?"])
    roles = {
        "master": in_steps(ask("ann", f"Ask {CANARY}"), call("finalanswertool", answer="Without her.")),
        "ann": in_steps(asks if calls == 1 else ask("ben", "Ask")),
        "ben": in_steps(asks),
    }
    async with playing(serving, roles) as house:
        asked = await house.say("Go", model="master", chat_id="c")
        assert content(asked) == f"{'ann' if calls == 1 else 'ben'}: Which city?"
        children = {row["agent"]: row["id"] for row in await house.db.rows("SELECT id, agent FROM sessions")}
        assert (await delete(house, children["ann"]))[0] == 200
        shown = await house.until(asked["model"], "COMPLETED")
        assert shown["result"] == "Without her."
        events = [record.event for record in await house.journal(asked["model"])]
        [fault] = [one.outcome for one in events if isinstance(one, Returned) and isinstance(one.outcome, Fault)]
        assert fault.code == "forgotten"
        left = [row["agent"] for row in await house.db.rows("SELECT agent FROM sessions")]
        assert left == ["master"], "those that she had called are gone with her"
        assert (
            await house.db.value("SELECT count(*) FROM delegations WHERE parent <> :parent", parent=asked["model"]) == 0
        )
        # Called again, she is a new one.
        again = await house.say("Go", model="master", chat_id="c")
        assert content(again) == content(asked)


async def test_a_client_that_resends_everything_begins_a_new_session(serving: Serving) -> None:
    script = [call("finalanswertool", answer=answer) for answer in ("One.", "Two.", "Three.")]
    async with serving(script) as house:
        first = await chat(house, user("A"), model="tool_calling_agent")
        said = [user("A"), {"role": "assistant", "content": "One."}, user("B")]
        assert (await chat(house, *said, model="tool_calling_agent"))["model"] == first["model"]
        resident = house.app.resident
        assert resident.ids == {first["model"]}
        assert (await delete(house, first["model"]))[0] == 200
        assert resident.ids == set()
        anew = await chat(house, *said, model="tool_calling_agent")
        assert (content(anew), anew["model"] == first["model"]) == ("Three.", False)
        assert await house.db.value("SELECT count(*) FROM sessions") == 1


async def test_two_who_delete_at_once_and_one_who_still_talks(serving: Serving) -> None:
    def end(body: Any) -> Any:
        return call("finalanswertool", answer="Done.")

    async with serving(end, templates=CAST, tools=[SignTool]) as house:
        for _ in range(3):
            session = (await house.say("Go", model="ann"))["model"]
            answers = await asyncio.gather(
                delete(house, session), delete(house, session), chat(house, user("More"), model=session)
            )
            assert sorted(status for status, _ in answers[:2]) == [200, 404]
            error = answers[2].get("error", {"code": None})
            assert error["code"] in (None, "model_not_found", "session_deleted"), answers[2]
            assert (await delete(house, session))[0] == 404
        async with asyncio.timeout(20):
            while house.app.worker.busy:
                await asyncio.sleep(0.02)
        assert await house.db.value("SELECT count(*) FROM journal") == 0
