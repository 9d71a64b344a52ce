"""The whole house dies, kill -9, its Postgres with it; started again on the same folder, it goes on where it was."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from custom_server import CLERK, clerk_house, ledger
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import Message, User, text_of
from longhouse.models.scripted import Hang, Say, ScriptedStatus, call, say, step_of
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals, migrate
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import open_postgres
from server_helpers import AGENT, House, Process, Serving, process

CLERKS = {"model": CLERK.name}


async def until(is_so: Callable[[], bool], within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while not is_so():
            await asyncio.sleep(0.01)


def task_of(messages: list[Message]) -> str:
    return next(text_of(message.content) for message in messages if isinstance(message, User))


def each_once(facts: list[Any]) -> bool:
    """Is every event there once, in order, without a gap?"""
    calls = Counter((fact["event"]["kind"], fact["event"].get("call")) for fact in facts if "call" in fact["event"])
    return [fact["seq"] for fact in facts] == list(range(1, len(facts) + 1)) and set(calls.values()) <= {1}


def kinds(facts: list[Any]) -> list[str]:
    return [fact["event"]["kind"] for fact in facts]


async def content_of(saying: asyncio.Task[Any]) -> str:
    async with asyncio.timeout(20):
        return str((await saying)["choices"][0]["message"]["content"])


async def left_alone(saying: asyncio.Task[Any]) -> None:
    """The client of a server that was killed hears of it by its connection."""
    with pytest.raises(aiohttp.ClientError):
        async with asyncio.timeout(10):
            await saying


async def session_ids(there: Process) -> dict[str, str]:
    """Task -> session id."""
    async with there.http.get("/v1/sessions") as response:
        return {row["task"]: row["session_id"] for row in (await response.json())["data"]}


async def test_sessions_go_on_after_a_kill_of_server_and_postgres(folder: Path) -> None:
    is_up = False

    def script(body: Body) -> Say:
        match task_of(list(body.messages)), step_of(body.messages):
            case "ask", 0 if not any(isinstance(m, User) and m.content == "Oslo" for m in body.messages):
                return call("clarificationtool", questions=["Which city?"])
            case "ask", _:
                return call("finalanswertool", answer="Rain in Oslo.")
            case "hang", _:
                return call("finalanswertool", answer="I was asked twice.") if is_up else say("", fault=Hang())
            case _:
                return call("finalanswertool", answer="Trouble is over.") if is_up else say("", fault=ScriptedStatus())

    async with serve_model(script) as model:
        settings = {"data_dir": str(folder), "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with process(**settings) as first:
            asked = await first.say("ask")
            hanging, troubled = (asyncio.create_task(first.say(task)) for task in ("hang", "trouble"))
            await until(lambda: {task_of_request(one) for one in model.requests} == {"ask", "hang", "trouble"})
            ids = await session_ids(first)
            await waits_for_its_provider(folder, ids["trouble"])
            first.kill()
            await left_alone(hanging)
            await left_alone(troubled)
            await first.ended()
        is_up = True
        async with process(**settings) as second:
            assert asked["model"] == ids["ask"]
            assert (await second.session(ids["ask"]))["state"] == "WAITING_FOR_CLARIFICATION"
            answered = await second.say("Oslo", model=ids["ask"])
            assert answered["choices"][0]["message"]["content"] == "Rain in Oslo."
            assert (await second.until(ids["hang"], "COMPLETED"))["result"] == "I was asked twice."
            assert (await second.until(ids["trouble"], "COMPLETED"))["result"] == "Trouble is over."

            told = await second.facts(ids["ask"])
            assert each_once(told)
            assert kinds(told) == [
                "Opened", "Prompted", "Started", "Replied", "Called", "Returned",
                "Replied", "Called", "Returned", "Finished",
            ]  # fmt: skip
            finished = ["Replied", "Called", "Returned", "Finished"]
            assert kinds(await second.facts(ids["hang"])) == ["Opened", "Prompted", "Started", "Resumed", *finished]
            # The retry was in `wake_at` of its row, held by nobody: there was nothing to take over.
            told = [kind for kind in kinds(await second.facts(ids["trouble"])) if kind != "Spent"]
            assert told == ["Opened", "Prompted", "Started", *finished], "and how long nobody worked"


def task_of_request(request: Any) -> str:
    return next(str(message["content"]) for message in request["messages"] if message["role"] == "user")


async def waits_for_its_provider(folder: Path, session_id: str) -> None:
    """Between two attempts the session is held by nobody and has the time of the next one in its row; it is moved, so
    that it does not come before the kill."""
    sql = """
        UPDATE sessions SET wake_at = wake_at + interval '3 seconds'
        WHERE id = :id AND wake_at IS NOT NULL AND holder IS NULL RETURNING true
    """
    async with open_postgres(folder) as postgres, open_database(postgres.dsn) as db, asyncio.timeout(10):
        while not await db.value(sql, id=session_id):
            await asyncio.sleep(0.005)


def clerk(body: Body) -> Say:
    """The task names the tool to use once; then the turn ends with what the tool said."""
    task, results = task_of(list(body.messages)), [m for m in body.messages if m.__class__.__name__ == "ToolResult"]
    if not results:
        return call(task.split()[0])
    return call("finalanswertool", answer=text_of(results[-1].content))


async def states_of_effects(there: Process, session_id: str) -> list[tuple[str, str, str, int]]:
    async with there.http.get(f"/v1/sessions/{session_id}/effects") as response:
        found = (await response.json())["data"]
    assert all(effect["key"] == f"{session_id}:{effect['call_id']}" for effect in found)
    return [(one["tool"], one["effect"], one["state"], one["workers_lost"]) for one in found]


async def test_a_kill_in_mid_tool_reruns_what_may_be_rerun_and_asks_about_the_rest(folder: Path) -> None:
    async with serve_model(clerk) as model:
        settings = {"data_dir": str(folder), "llm_base_url": model.url}
        async with clerk_house(folder, **settings) as first:
            tasks = ["looktool 1", "paytool happened", "paytool did_not_happen", "paytool give_up"]
            saying = [asyncio.create_task(first.say(task, **CLERKS)) for task in tasks]
            await until(lambda: len(ledger(folder)) == 4)
            ids = await session_ids(first)
            first.kill()
            for one in saying:
                await left_alone(one)
            await first.ended()
        (folder / "go").touch()
        async with clerk_house(folder, **settings) as second:
            assert (await second.until(ids["looktool 1"], "COMPLETED"))["result"] == "looktool is done"
            for decision in ("happened", "did_not_happen", "give_up"):
                session_id = ids[f"paytool {decision}"]
                shown = await second.until(session_id, "WAITING_FOR_APPROVAL")
                [question] = shown["questions"]
                assert (question["kind"], question["call_id"]) == ("unknown_outcome", "1-action-0")
                assert await states_of_effects(second, session_id) == [("paytool", "once", "unknown", 1)]
                verdict = {"call_id": question["call_id"], "decision": decision, "result": "Paid, says the bank."}
                async with second.http.post(f"/v1/sessions/{session_id}/approval", json=verdict) as response:
                    assert response.status == 202
                async with second.http.post(f"/v1/sessions/{session_id}/approval", json=verdict) as response:
                    assert (response.status, response.headers["x-should-retry"]) == (409, "false")
            results = {
                decision: (await second.until(ids[f"paytool {decision}"], "COMPLETED"))["result"]
                for decision in ("happened", "did_not_happen", "give_up")
            }
            assert results["happened"] == "Paid, says the bank."
            assert results["did_not_happen"] == "paytool is done"
            assert "given up" in results["give_up"]

            ends = {"happened": "done", "did_not_happen": "done", "give_up": "unknown"}
            for decision, end in ends.items():
                found = await states_of_effects(second, ids[f"paytool {decision}"])
                assert [(state, lost) for _, _, state, lost in found] == [(end, 1)], "what was lost is still told"
            assert await states_of_effects(second, ids["looktool 1"]) == [], "to read changes nothing"

            begun = Counter(ledger(folder))
            assert begun["looktool", f"{ids['looktool 1']}:1-action-0"] == 2
            # Only the one of which a person said that it had not happened was begun again, under the same key.
            assert begun["paytool", f"{ids['paytool did_not_happen']}:1-action-0"] == 2
            assert begun["paytool", f"{ids['paytool happened']}:1-action-0"] == 1
            assert begun["paytool", f"{ids['paytool give_up']}:1-action-0"] == 1
            for session_id in ids.values():
                assert each_once(await second.facts(session_id))
            assert kinds(await second.facts(ids["paytool give_up"]))[3:] == [
                "Replied", "Called", "Resumed", "Decided", "Returned", "Replied", "Called", "Returned", "Finished",
            ]  # fmt: skip


@pytest.mark.parametrize("where", ["a Postgres that stays", "a Postgres that dies too"])
async def test_a_probe_says_whether_a_lost_call_happened_and_nobody_is_asked(
    folder: Path, dsn: str, where: str
) -> None:
    stays = where == "a Postgres that stays"
    store = {"database_url": dsn} if stays else {"data_dir": str(folder)}
    async with serve_model(clerk) as model:
        settings = {**store, "llm_base_url": model.url}
        async with clerk_house(folder, **settings) as first:
            saying = [asyncio.create_task(first.say(f"chargetool {task}", **CLERKS)) for task in ("yes", "no")]
            await until(lambda: len(ledger(folder)) == 2)
            ids = await session_ids(first)
            first.kill()
            for one in saying:
                await left_alone(one)
            await first.ended()
        yes, no = ids["chargetool yes"], ids["chargetool no"]
        (folder / "charged").write_text(f"{yes}:1-action-0\n")
        (folder / "go").touch()
        async with clerk_house(folder, **settings) as second:
            assert (await second.until(yes, "COMPLETED"))["result"] == "Charged, says the bank."
            # Whether the old process has ended is not known without its lock: then the call's time has to be over.
            assert (await second.until(no, "COMPLETED", within=20))["result"] == "chargetool is done"
            begun = Counter(key for _, key in ledger(folder))
            assert begun == {f"{yes}:1-action-0": 1, f"{no}:1-action-0": 2}, "what the bank knows is not done twice"
            by = {name: [fact["event"].get("by") for fact in await second.facts(name)] for name in (yes, no)}
            assert "probe:chargedtool" in by[yes]
            assert "probe:chargedtool" in by[no]
            for name in (yes, no):
                async with second.http.get(f"/v1/sessions/{name}/timeline") as response:
                    [turn] = (await response.json())["turns"]
                assert turn["waits"] == [], "nobody was asked, not for a moment"
            assert [state for _, _, state, _ in await states_of_effects(second, no)] == ["done"]


class Gate:
    """A TCP proxy that passes requests on and lets answers through only while it is open."""

    def __init__(self) -> None:
        self.target = ""
        self.is_open = False
        self._clients: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def listening(self) -> Any:
        server = await asyncio.start_server(self._pass, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self.hang_up()

    def hang_up(self) -> None:
        for client in self._clients:
            client.close()
        self._clients = []

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.append(writer)
        host, port = self.target.removeprefix("http://").split(":")
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(
            self._pump(reader, inner_writer, is_answer=False), self._pump(inner_reader, writer, is_answer=True)
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        try:
            while data := await reader.read(65536):
                if not is_answer or self.is_open:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_gateway_killed_before_its_first_byte_has_stored_the_prompt_once(
    serving: Serving, dsn: str, db: Database, stream: bool
) -> None:
    gate = Gate()
    async with serve_model(lambda body: call("finalanswertool", answer="Here I am.")) as model, gate.listening() as url:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=4)
        async with client, process(database_url=dsn, llm_base_url=model.url) as first:
            gate.target = first.url
            asking = asyncio.create_task(
                client.chat.completions.create(
                    model=AGENT, messages=[{"role": "user", "content": "Are you there?"}], stream=stream
                )
            )
            async with asyncio.timeout(10):
                while not await db.value("SELECT count(*) FROM journal WHERE kind = 'Prompted'"):
                    await asyncio.sleep(0.002)
            first.kill()
            await first.ended()
            async with serving(llm_base_url=model.url) as second:
                gate.target, gate.is_open = second.url, True
                gate.hang_up()
                async with asyncio.timeout(20):
                    answered = await asking
                    text = (
                        answered.choices[0].message.content
                        if isinstance(answered, ChatCompletion)
                        else "".join([chunk.choices[0].delta.content or "" async for chunk in answered])
                    )
                assert isinstance(answered, ChatCompletion) is not stream
                assert text == "Here I am."
                assert await db.value("SELECT count(*) FROM sessions") == 1
                assert await db.value("SELECT count(*) FROM journal WHERE kind = 'Prompted'") == 1
                assert await db.value("SELECT count(*) FROM journal WHERE kind = 'Finished'") == 1


def slow_story(tools: int) -> list[Say]:
    """So many steps, each written slowly, and the answer."""
    steps = [Say(calls=call("clocktool").calls, chunk=1, delay=0.03) for _ in range(tools)]
    return [*steps, call("finalanswertool", answer="All through it.")]


async def asserts_an_unbroken_turn(house: House, session_id: str, *, steps: int) -> None:
    told = await house.journal(session_id)
    assert [record.seq for record in told] == list(range(1, len(told) + 1))
    per_step = ["Replied", "Called", "Returned"] * (steps + 1)
    assert await house.kinds(session_id) == ["Opened", "Prompted", "Started", *per_step, "Finished"]
    assert house.model is not None
    assert len(house.model.requests) == steps + 1


async def test_a_running_session_goes_on_when_all_its_connections_are_cut(serving: Serving, dsn: str) -> None:
    async with serving(slow_story(8), lease_seconds=60) as house:
        saying = asyncio.create_task(house.say("Go"))
        admin = await asyncpg.connect(dsn)
        cuts = 0
        while not saying.done():
            cuts += await admin.fetchval(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.15)
        await admin.close()
        assert cuts > 3
        answered = await saying
        assert answered["choices"][0]["message"]["content"] == "All through it."
        await asserts_an_unbroken_turn(house, answered["model"], steps=8)


async def test_a_running_session_goes_on_when_postgres_is_restarted(folder: Path) -> None:
    async with open_postgres(folder) as postgres:
        async with open_database(postgres.dsn) as db:
            await migrate.migrate(db)
        restarting = postgres.dsn
    stop, stopped = asyncio.Event(), asyncio.Event()

    async def run_postgres() -> None:
        async with open_postgres(folder) as first:
            assert first.dsn == restarting
            running.set()
            await stop.wait()
        stopped.set()
        async with open_postgres(folder):
            await over.wait()

    running, over = asyncio.Event(), asyncio.Event()
    keeping = asyncio.create_task(run_postgres())
    await running.wait()
    async with Serving(restarting)(slow_story(8), lease_seconds=60) as house:
        saying = asyncio.create_task(house.say("Go"))
        model = house.model
        assert model is not None
        await until(lambda: len(model.requests) >= 3)
        stop.set()
        await stopped.wait()
        assert not saying.done()
        answered = await saying
        assert answered["choices"][0]["message"]["content"] == "All through it."
        await asserts_an_unbroken_turn(house, answered["model"], steps=8)
        assert (await journals.load(house.db, answered["model"])).state == "COMPLETED"
    over.set()
    await keeping


async def test_requests_that_grew_before_a_kill_are_those_composed_from_nothing_after_it(folder: Path) -> None:
    """Turns after turns, a resent history, a branch: what reached the model is what another process composes."""
    is_up = False

    def script(body: Body) -> Say:
        last = next(text_of(one.content) for one in reversed(body.messages) if isinstance(one, User))
        if "подожди" in last and step_of(body.messages) == 2 and not is_up:
            return say("", fault=Hang())
        if step_of(body.messages) < 3:
            return call("clocktool", timezone="Asia/Shanghai")
        return call("finalanswertool", answer=f"好的：{last} " * 5)

    said = [{"role": "user", "content": f"Вопрос {n}: 天气？"} for n in range(6)]
    history = [one for asked in said for one in (asked, {"role": "assistant", "content": "Ответ. 晴天。"})]
    async with serve_model(script) as model:
        settings = {"data_dir": str(folder), "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with process(**settings) as first:
            history = [*history, {"role": "user", "content": "И завтра?"}]
            answered = await first.say("", messages=history)
            session_id = answered["model"]
            history = [*history, answered["choices"][0]["message"], {"role": "user", "content": "再说一次"}]
            assert (await first.say("", messages=history))["model"] == session_id, "it is found by what was said"
            waiting = asyncio.create_task(first.say("подожди", model=session_id))
            await until(lambda: len(model.requests) == 4 + 4 + 3)
            first.kill()
            await left_alone(waiting)
            await first.ended()
        is_up = True
        async with process(**settings) as second:
            await second.until(session_id, "COMPLETED")
            async with second.http.post(f"/v1/sessions/{session_id}/fork", json={"after": 12}) as response:
                branch = (await response.json())["session_id"]
            await second.until(branch, "COMPLETED")
            await second.say("Что дальше? 然后呢？", model=branch)
            await second.say("Ещё раз.", model=session_id)
            composed = []
            for one, steps in ((session_id, 16), (branch, 8)):
                for step in range(1, steps + 1):
                    async with second.http.get(f"/v1/sessions/{one}/steps/{step}/request") as response:
                        shown = await response.json()
                    assert shown["matches"], (one, step)
                    composed.append(shown["request"])
    sent = [{name: one[name] for name in one if not name.startswith("stream")} for one in model.requests]
    assert max(len(one["messages"]) for one in sent) > 40
    assert [one for one in sent if one not in composed] == [], "the model was asked nothing else"
    assert [one for one in composed if one not in sent] == []
