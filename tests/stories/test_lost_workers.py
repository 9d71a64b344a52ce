"""A session that takes down, or holds up, one worker after the other ends in words; who runs beside it goes on."""

import asyncio
import re
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from deadly_server import CHIEF, CLERK, DEADLY
from test_kill import session_ids
from test_takeover import eventually

from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.journal.messages import ToolResult, User, text_of
from longhouse.models.scripted import Hang, Say, call, calls, say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals
from longhouse.store.database import Database
from server_helpers import Process, Serving, data_folder, launched, launched_words

GIVEN_UP = "this call was interrupted three times by the loss of its worker; it is not tried again"
REASON = "it was interrupted three times by the loss of its worker"
GUILTY = "exittool slowtool"
ENOUGH = 120.0
"""Seconds that a tool holds its process up: longer than any test."""
MANY, KILLS = 8, 5


def clerk(body: Body) -> Say:
    """The task names the tools to use side by side; then the turn ends with what they said."""
    task = next(text_of(message.content) for message in body.messages if isinstance(message, User))
    results = [text_of(message.content) for message in body.messages if isinstance(message, ToolResult)]
    if results:
        return call("finalanswertool", answer=" | ".join(results))
    names = task.split()
    return calls(*(call(name, seconds=ENOUGH) if name == "holdtool" else call(name) for name in names))


def house(folder: Path, **environment: Any) -> AbstractAsyncContextManager[Process]:
    return launched(str(Path(__file__).with_name("deadly_server.py")), test_folder=str(folder), **environment)


def ledger(folder: Path) -> Counter[str]:
    path = folder / "ledger"
    return Counter(path.read_text().split()) if path.exists() else Counter()


async def session_of(db: Database, task: str) -> str:
    return str(await db.value("SELECT id FROM sessions WHERE task = :task", task=task))


async def state_of(db: Database, task: str) -> str:
    return str(await db.value("SELECT state FROM sessions WHERE task = :task", task=task))


def chief(body: Body) -> Say:
    """Lets the clerk look; whatever comes of that, the turn goes on to its end."""
    if not any(b"agent_clerk" in bytes(one) for one in body.tools):
        return clerk(body)
    heard = [text_of(message.content) for message in body.messages if isinstance(message, ToolResult)]
    return call("finalanswertool", answer=f"I was told: {heard[0]}") if heard else call("agent_clerk", task=GUILTY)


async def decided(there: Process, session_id: str, call_id: str, decision: str) -> int:
    given = {"call_id": call_id, "decision": decision}
    async with there.http.post(f"/v1/sessions/{session_id}/approval", json=given) as response:
        return response.status


async def test_a_tool_that_ends_its_process_is_left_to_a_person_and_what_runs_beside_it_is_not(tmp_path: Path) -> None:
    """Its agent works for another, which hears of it in words. Each process has the Postgres of its folder, as with
    `make run`, and leaves it behind when it dies."""
    async with serve_model(chief) as model:
        with data_folder() as folder:
            settings = {"data_dir": str(folder), "llm_base_url": model.url}
            async with house(tmp_path, **settings) as first:
                saying = [asyncio.create_task(first.say("slowtool", model=CLERK.name))]
                await eventually(lambda: ledger(tmp_path)["slowtool"] == 1)
                saying.append(asyncio.create_task(first.say("Let the clerk look", model=CHIEF.name)))
                assert await first.ended() == 3
                await asyncio.gather(*saying, return_exceptions=True)
            async with house(tmp_path, **settings) as second:
                assert await second.ended() == 3
            (tmp_path / "go").touch()
            async with house(tmp_path, **settings) as third:
                assert await third.ended() == 3
            async with house(tmp_path, **settings) as fourth:
                ids = await session_ids(fourth)
                root = ids["Let the clerk look"]
                asked = await fourth.until(root, "WAITING_FOR_APPROVAL", within=30)
                [question] = asked["questions"]
                assert (question["kind"], question["tool"]) == ("worker_lost", "exittool")
                assert question["text"] == "exittool took three workers down, one after another. Try it again?"
                async with fourth.http.get("/v1/questions") as response:
                    [listed] = (await response.json())["data"]
                for field in ("kind", "text", "tool", "arguments", "name"):
                    assert listed[field] == question[field]
                assert await decided(fourth, root, question["call_id"], "happened") in (400, 409), "it is no effect"
                with suppress(aiohttp.ServerDisconnectedError):  # it may end before it has answered
                    assert await decided(fourth, root, question["call_id"], "did_not_happen") == 202
                assert await fourth.ended() == 3, "it is tried again, since somebody said so"
            for _ in range(2):  # and counts anew
                async with house(tmp_path, **settings) as another:
                    assert await another.ended() == 3
            async with house(tmp_path, **settings) as last:
                [question] = (await last.until(root, "WAITING_FOR_APPROVAL", within=30))["questions"]
                assert await decided(last, root, question["call_id"], "give_up") == 202
                asker = await last.until(root, "COMPLETED", within=30)
                assert asker["result"] == f"I was told: Error: {GIVEN_UP} | looked"
                assert (await last.until(ids["slowtool"], "COMPLETED", within=30))["result"] == "looked"
                assert last.process.returncode is None
                told = [one["event"] for one in await last.facts(ids[GUILTY])]
                above = [one["event"]["kind"] for one in await last.facts(root)]
    assert ledger(tmp_path)["exittool"] == 6
    assert sum(event["kind"] == "Resumed" for event in told) == 6
    assert "Resumed" not in above, "who waits for another loses no worker"
    outcomes = [one["outcome"] for one in told if one["kind"] == "Returned"]
    assert [(one["code"], one["message"]) for one in outcomes if "code" in one] == [("worker_lost", GIVEN_UP)]
    # It is not offered again in this turn.
    last = next(one for one in reversed(model.requests) if GUILTY in str(one["messages"][1]))
    offered = {one["function"]["name"] for one in last["tools"]}
    assert "slowtool" in offered
    assert "exittool" not in offered


async def test_a_tool_that_holds_up_one_server_after_the_other_is_noticed_named_and_left_to_a_person(
    dsn: str, db: Database, tmp_path: Path
) -> None:
    settings = {"database_url": dsn, "lease_seconds": "2"}
    async with serve_model(clerk) as model, AsyncExitStack() as stack:
        houses = await asyncio.gather(
            *(stack.enter_async_context(house(tmp_path, llm_base_url=model.url, **settings)) for _ in range(4))
        )
        saying = asyncio.create_task(houses[0].say("holdtool", model=CLERK.name))
        await eventually(lambda: is_asked(db, "holdtool"), within=60)
        session_id = await session_of(db, "holdtool")
        [waiting] = (await journals.load(db, session_id)).uncertain
        assert waiting.doubt == REASON

        async def is_told_of_all() -> bool:
            return sum(map(is_blocked, houses)) == 3

        # It is told by a thread of the server that stands still, and read by one of this process.
        await eventually(is_told_of_all, within=60)
        [free] = [one for one in houses if not is_blocked(one)]
        assert await decided(free, session_id, waiting.call, "give_up") == 202
        await eventually(lambda: is_completed(db, "holdtool"), within=60)
        session = await journals.load(db, session_id)
        assert session.turn is not None
        assert session.turn.answer == f"Error: {GIVEN_UP}"
        assert ledger(tmp_path)["holdtool"] == 3
        blocked = [one for one in houses if is_blocked(one)]
        assert len(blocked) == 3
        for one in blocked:
            words = next(line for line in one.said if "event_loop_blocked" in line)
            assert session_id in words
            assert "stories/deadly_server.py" in words
            assert "hold_up" in words
        assert "sk-canary" not in str([one.said for one in houses])
        for one in blocked:
            one.kill()
        await asyncio.gather(saying, return_exceptions=True)


def is_blocked(one: Process) -> bool:
    return any("event_loop_blocked" in line and "tool=holdtool" in line for line in one.said)


async def is_asked(db: Database, task: str) -> bool:
    return await state_of(db, task) == "WAITING_FOR_APPROVAL"


async def is_completed(db: Database, task: str) -> bool:
    return await state_of(db, task) == "COMPLETED"


async def test_a_step_that_no_worker_survives_is_left_to_a_person(dsn: str, db: Database, tmp_path: Path) -> None:
    """Its agent works for another, whose user is asked. Killed while it rests, the house asks the same."""
    settings = {"database_url": dsn}

    def script(body: Body) -> Say:
        """As long as it is said to, a process that reads the clerk's reply does not survive it."""
        heard = [text_of(message.content) for message in body.messages if isinstance(message, ToolResult)]
        if any(b"agent_clerk" in bytes(one) for one in body.tools):
            return call("finalanswertool", answer=f"I was told: {heard[0]}") if heard else call("agent_clerk", task="?")
        return call("finalanswertool", answer="It is dry.")

    (tmp_path / "deadly").touch()

    async with serve_model(script) as model:
        settings["llm_base_url"] = model.url
        async with house(tmp_path, **settings) as first:
            saying = asyncio.create_task(first.say("Rain?", model=CHIEF.name))
            await first.ended()
            await asyncio.gather(saying, return_exceptions=True)
        for _ in range(2):
            async with house(tmp_path, **settings) as another:
                await another.ended()
        async with house(tmp_path, **settings) as fourth:
            await eventually(lambda: is_asked(db, "?"), within=30)
            root, clerks = await session_of(db, "Rain?"), await session_of(db, "?")
            [question] = (await fourth.until(root, "WAITING_FOR_APPROVAL"))["questions"]
            assert any("step_left_to_person" in line and clerks in line for line in fourth.said)
            fourth.kill()
        requests = len(model.requests)
        async with house(tmp_path, **settings) as last:
            assert (await last.until(root, "WAITING_FOR_APPROVAL"))["questions"] == [question]
            assert (question["kind"], question["session_id"]) == ("worker_lost", clerks)
            for path in ("/v1/questions", "/admin/questions", f"/v1/sessions/{root}/questions"):
                async with last.http.get(path) as response:
                    [listed] = (await response.json())["data"]
                shown = ("session_id", "kind", "call_id", "name", "text")
                assert {**question, "root": root}.items() >= {name: listed[name] for name in (*shown, "root")}.items()
            assert len(model.requests) == requests, "nothing runs meanwhile"
            (tmp_path / "deadly").unlink()
            told = await launched_words("sessions", "settle", root, "did-not-happen", database_url=dsn)
            assert told[0] == 0
            assert f"{question['name']} is settled: did-not-happen" in told[1]
            assert (await last.until(root, "COMPLETED", within=30))["result"] == "I was told: It is dry."
    kinds = [events.kind_of(record.event) for record in await journals.read(db, clerks)]
    assert kinds.count("Resumed") == 3
    assert (kinds.count("Called"), kinds.count("Returned")) == (1, 1), "the answer, and nothing for the step"


@pytest.mark.parametrize("houses", [1, 2])
async def test_sessions_that_lost_one_worker_after_the_other_go_on_at_once_and_side_by_side(
    dsn: str, db: Database, tmp_path: Path, houses: int
) -> None:
    """They wait for the model when their servers are killed, so they were not the cause. Nobody is asked about them."""
    tasks = {f"task {number}" for number in range(MANY)}
    asked: set[str] = set()
    is_free = False

    def script(body: Body) -> Say:
        asked.add(next(text_of(message.content) for message in body.messages if isinstance(message, User)))
        return call("finalanswertool", answer="Done.") if is_free else say("", fault=Hang())

    async with serve_model(script) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url}
        for number in range(KILLS + 1):
            asked.clear()
            is_free = number == KILLS
            async with AsyncExitStack() as stack:
                here = [await stack.enter_async_context(house(tmp_path, **settings)) for _ in range(houses)]
                saying = [asyncio.create_task(here[0].say(task, model=CLERK.name)) for task in tasks if not number]
                # All of them at once: none waits until another has its reply.
                await eventually(lambda: asked == tasks, within=60)
                if is_free:
                    await eventually(lambda: are_completed(db, MANY), within=60)
                for one in here:
                    one.kill()
                await asyncio.gather(*saying, return_exceptions=True)
    for session_id in await db.rows("SELECT id FROM sessions"):
        told = [record.event for record in await journals.read(db, session_id["id"])]
        losses = [event.is_loss for event in told if isinstance(event, events.Resumed)]
        assert losses == [True] * KILLS
        assert not any(isinstance(event, events.Decided) for event in told)


async def test_who_takes_workers_down_among_many_is_found_and_costs_the_others_one_more_worker(
    dsn: str, db: Database, tmp_path: Path
) -> None:
    tasks = {f"task {number}" for number in range(MANY)}
    asked: set[str] = set()
    is_free = False

    def script(body: Body) -> Say:
        task = next(text_of(message.content) for message in body.messages if isinstance(message, User))
        if task == "exittool":
            return clerk(body)
        asked.add(task)
        return call("finalanswertool", answer="Done.") if is_free else say("", fault=Hang())

    async with serve_model(script) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url}
        async with house(tmp_path, **settings) as first:
            saying = [asyncio.create_task(first.say(task, model=CLERK.name)) for task in tasks]
            await eventually(lambda: asked == tasks, within=60)
            saying.append(asyncio.create_task(first.say("exittool", model=CLERK.name)))
            assert await first.ended() == 3
            await asyncio.gather(*saying, return_exceptions=True)
        async with house(tmp_path, **settings) as second:
            assert await second.ended() == 3
        is_free = True
        async with house(tmp_path, **settings) as third:
            assert await third.ended(within=60) == 3
            assert await are_completed(db, MANY), "it was tried alone, after the others"
        async with house(tmp_path, **settings) as fourth:
            await eventually(lambda: is_asked(db, "exittool"), within=60)
            assert fourth.process.returncode is None
    assert ledger(tmp_path)["exittool"] == 3
    for task in tasks:
        told = [record.event for record in await journals.read(db, await session_of(db, task))]
        assert sum(isinstance(event, events.Resumed) for event in told) <= 2
        assert not any(isinstance(event, events.Decided) for event in told)


async def are_completed(db: Database, number: int) -> bool:
    return bool(await db.value("SELECT count(*) = :number FROM sessions WHERE state = 'COMPLETED'", number=number))


async def test_what_was_done_while_the_loop_stood_still_is_kept(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a lease, in which no heartbeat could be sent: nobody has taken the session, so it goes on."""
    monkeypatch.setenv("LONGHOUSE_TEST_FOLDER", str(tmp_path))

    def script(body: Body) -> Say:
        results = [text_of(message.content) for message in body.messages if isinstance(message, ToolResult)]
        return call("finalanswertool", answer=results[-1]) if results else call("holdtool", seconds=3.0)

    parts: dict[str, Any] = {"templates": [CLERK], "tools": DEADLY, "lease_seconds": 2}
    async with serving(script, **parts) as here:
        answered = await asyncio.wait_for(here.say("Hold on", model=CLERK.name), 30)
        assert answered["choices"][0]["message"]["content"] == "held"
        assert ledger(tmp_path)["holdtool"] == 1
        assert "Resumed" not in await here.kinds(answered["model"])
        async with here.http.get("/metrics") as response:
            numbers = await response.text()
        [times] = re.findall(r"^longhouse_event_loop_blocked_total (.+)$", numbers, re.MULTILINE)
        [seconds] = re.findall(r"^longhouse_event_loop_blocked_seconds_total (.+)$", numbers, re.MULTILINE)
        assert float(times) >= 1
        assert float(seconds) >= 1
