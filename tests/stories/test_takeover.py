"""One session, one writer: the dead and the frozen are replaced, and what they still say is not heard."""

import asyncio
import json
import os
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from custom_server import CLERK, EXTRA, clerk_house, ledger

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Template
from longhouse.app import TOOLS
from longhouse.app.publish import publish_classes, publish_files
from longhouse.errors import Deposed
from longhouse.journal import events
from longhouse.journal.events import INTERRUPTED, Recorded, Resumed
from longhouse.journal.messages import ToolResult, User, text_of
from longhouse.journal.session import State
from longhouse.models.scripted import Hang, Say, ScriptedModel, call, say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.engine import Engine
from longhouse.runtime.workers.instances import InstancePool
from longhouse.store import journals, leases
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.tools.offering import Offering
from longhouse.tools.toolbox import Toolbox
from server_helpers import AGENT, Dictated, House, Process, Serving, dictated, sse


async def is_resumed(house: House, session_id: str) -> bool:
    return (await house.kinds(session_id))[-1] == "Resumed"


async def eventually(what: Any, within: float = 20.0) -> None:
    """Waits until `what()`, which may be awaitable, is true."""
    async with asyncio.timeout(within):
        while True:
            found = what()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


async def session_ids(there: Process) -> dict[str, str]:
    async with there.http.get("/v1/sessions") as response:
        return {row["task"]: row["session_id"] for row in (await response.json())["data"]}


def assert_one_writer(told: list[Recorded]) -> None:
    """No gap, fences that never go back, and nobody after `Resumed` but the one who resumed, or claimed it since."""
    assert [record.seq for record in told] == list(range(1, len(told) + 1))
    assert all(one.fence <= other.fence for one, other in pairwise([record for record in told if record.worker]))
    for index, record in enumerate(told):
        if isinstance(record.event, Resumed):
            assert {after.worker for after in told[index:] if after.fence == record.fence} == {record.event.worker}
            assert all(after.fence >= record.fence for after in told[index:] if after.worker)
            assert record.event.previous not in (record.event.worker, "")
    returned = Counter(record.event.call for record in told if isinstance(record.event, events.Returned))
    assert set(returned.values()) <= {1}


class Clerk:
    """Plays the task: `think` hangs while `is_stuck`, any other task names the tool to use."""

    is_stuck = True

    def __call__(self, body: Body) -> Say:
        task = next(text_of(message.content) for message in body.messages if isinstance(message, User))
        results = [message for message in body.messages if isinstance(message, ToolResult)]
        if results:
            return call("finalanswertool", answer=results[-1].content)
        if task == "think":
            return say("", fault=Hang()) if self.is_stuck else call("finalanswertool", answer="thought twice")
        return call(task)


CLERKS: Any = {"templates": [CLERK], "tools": EXTRA}


async def test_the_sessions_of_a_dead_worker_go_on_elsewhere(
    serving: Serving, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_TEST_FOLDER", str(tmp_path))
    script = Clerk()
    async with (
        serve_model(script) as model,
        clerk_house(tmp_path, database_url=dsn, llm_base_url=model.url) as doomed,
    ):
        tasks = ("think", "looktool", "paytool")
        saying = [asyncio.create_task(doomed.say(task, model=CLERK.name)) for task in tasks]
        await eventually(lambda: len(ledger(tmp_path)) == 2 and len(model.requests) == 3)
        ids = await session_ids(doomed)
        # A lease far longer than the test: the dead are found by their lock, not by their silence.
        async with (
            serving(llm_base_url=model.url, works=False, **CLERKS) as gateway,
            serving(llm_base_url=model.url, lease_seconds=600, **CLERKS) as heir,
            gateway.http.get(f"/v1/sessions/{ids['think']}/events") as following,
        ):
            script.is_stuck = False
            doomed.kill()
            await doomed.ended()
            (tmp_path / "go").touch()
            thought = await heir.until(ids["think"], "COMPLETED")
            looked = await heir.until(ids["looktool"], "COMPLETED")
            paid = await heir.until(ids["paytool"], "WAITING_FOR_APPROVAL")
            assert (thought["result"], looked["result"]) == ("thought twice", "looktool is done")
            assert Counter(tool for tool, _ in ledger(tmp_path))["paytool"] == 1
            assert [question["kind"] for question in paid["questions"]] == ["unknown_outcome"]
            for session_id in ids.values():
                assert_one_writer(await heir.journal(session_id))
            kinds = await heir.kinds(ids["think"])
            assert kinds[2:5] == ["Started", "Resumed", "Replied"]
            # Whoever followed it at a third process saw one step begin again, and every event once.
            read = [event async for event in sse(following)]
            assert [event.event for event in read if event.id] == kinds
            [restarted] = [event.json for event in read if event.event == "step.restarted"]
            assert restarted["after"] == kinds.index("Resumed") + 1
            assert not await heir.db.value("SELECT count(*) FROM workers WHERE id <> :id", id=heir.app.worker.id)
        await asyncio.gather(*saying, return_exceptions=True)


async def test_a_frozen_worker_wakes_up_deposed_and_doubles_nothing(
    serving: Serving, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_TEST_FOLDER", str(tmp_path))
    script = Clerk()
    async with serve_model(script) as model:
        settings = {"database_url": dsn, "llm_base_url": model.url, "lease_seconds": "2"}
        async with clerk_house(tmp_path, **settings) as frozen:
            tasks = ("think", "looktool", "paytool")
            saying = [asyncio.create_task(frozen.say(task, model=CLERK.name)) for task in tasks]
            await eventually(lambda: len(ledger(tmp_path)) == 2 and len(model.requests) == 3)
            ids = await session_ids(frozen)
            os.kill(frozen.process.pid, signal.SIGSTOP)
            script.is_stuck = False
            async with serving(llm_base_url=model.url, lease_seconds=2, **CLERKS) as heir:
                await heir.until(ids["think"], "COMPLETED")
                await heir.until(ids["paytool"], "WAITING_FOR_APPROVAL")
                await eventually(lambda: is_resumed(heir, ids["looktool"]))
                (tmp_path / "go").touch()
                await heir.until(ids["looktool"], "COMPLETED")

                os.kill(frozen.process.pid, signal.SIGCONT)
                # It had begun to pay before it froze: that outcome it may report, and it settles the question.
                paid = await heir.until(ids["paytool"], "COMPLETED")
                assert paid["result"] == "paytool is done"
                # It is back on the roster, under its own name, and says nothing more about what it has lost.
                await eventually(lambda: two_workers(heir.db))
                for session_id in ids.values():
                    told = await heir.journal(session_id)
                    assert_one_writer(told)
                    # A machine that is busy for long may make the heir drop its own runs; the frozen one loses once.
                    lost = [record.event.previous for record in told if isinstance(record.event, Resumed)]
                    assert {one.removesuffix(INTERRUPTED) for one in lost[1:]} <= {heir.app.worker.id}
                    assert sum(isinstance(record.event, events.Finished) for record in told) == 1
                begun = Counter(tool for tool, _ in ledger(tmp_path))
                assert begun["looktool"] >= 2, "by both, and once more where the heir has dropped a run of its own"
                assert begun["paytool"] == 1
                # Whoever still listens at the frozen one hears how it ended.
                answers = await asyncio.wait_for(asyncio.gather(*saying), 20)
                assert [answer["choices"][0]["message"]["content"] for answer in answers[:2]] == [
                    "thought twice", "looktool is done",
                ]  # fmt: skip


async def test_a_worker_that_froze_before_its_effect_says_when_it_wakes_that_nothing_had_begun(
    serving: Serving, dsn: str, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_TEST_FOLDER", str(tmp_path))
    (tmp_path / "go").touch()
    async with serve_model(Clerk()) as model, dictated() as slow:
        async with clerk_house(tmp_path, database_url=dsn, llm_base_url=slow.url, lease_seconds="2") as frozen:
            saying = asyncio.create_task(frozen.say("paytool", model=CLERK.name))
            pen = await slow.asked()
            [session_id] = (await session_ids(frozen)).values()
            async with db.pool.acquire() as other, other.transaction():
                # Its intent is sent, and waits in Postgres for the row; the worker freezes before it hears of it.
                await other.execute("SELECT FROM sessions WHERE id = $1 FOR UPDATE", session_id)
                pen.call("paytool", "{}")
                pen.end()
                await eventually(lambda: waits_for_a_row(db))
                os.kill(frozen.process.pid, signal.SIGSTOP)
            async with serving(llm_base_url=model.url, lease_seconds=2, **CLERKS) as heir:
                asked = await heir.until(session_id, "WAITING_FOR_APPROVAL")
                assert [question["kind"] for question in asked["questions"]] == ["unknown_outcome"]
                assert ledger(tmp_path) == []
                os.kill(frozen.process.pid, signal.SIGCONT)
                # Nobody has said anything, and nobody need. Either of the two may go on, each with its own model.
                answering = asyncio.create_task(answered(slow, "paytool is done"))
                paid = await heir.until(session_id, "COMPLETED", within=20)
                answering.cancel()
                assert (paid["result"], len(ledger(tmp_path))) == ("paytool is done", 1)
                told = await heir.journal(session_id)
                decided = [one.event for one in told if isinstance(one.event, events.Decided)]
                resumed = next(one.event for one in told if isinstance(one.event, Resumed))
                assert decided[0].by == resumed.previous
                # On a busy machine the heir's own heart may be late before its effect: it says the same of itself.
                assert {one.decision for one in decided} == {"did_not_happen"}
        await asyncio.gather(saying, return_exceptions=True)


async def answered(model: Dictated, answer: str) -> None:
    pen = await model.asked(within=60)
    pen.call("finalanswertool", json.dumps({"answer": answer}))
    pen.end()


async def waits_for_a_row(db: Database) -> bool:
    waiting = (
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return bool(await db.value(waiting))


async def test_a_run_that_is_broken_off_in_mid_effect_does_not_begin_it_again(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker lives on and takes its own session up again; what it had begun is a question until it reports."""
    monkeypatch.setenv("LONGHOUSE_TEST_FOLDER", str(tmp_path))
    async with serving(Clerk(), **CLERKS) as house:
        saying = asyncio.create_task(house.say("paytool", model=CLERK.name))
        await eventually(lambda: len(ledger(tmp_path)) == 1)
        [(session_id, fence)] = await house.db.rows("SELECT id, fence FROM sessions")
        house.app.bus.stop(session_id, fence)
        house.app.bus.stop(session_id, fence + 1)
        shown = await house.until(session_id, "WAITING_FOR_APPROVAL")
        assert [question["kind"] for question in shown["questions"]] == ["unknown_outcome"]
        assert (await saying)["x_agent"]["waiting_for"] == "approval"
        (tmp_path / "go").touch()
        paid = await house.until(session_id, "COMPLETED")
        assert paid["result"] == "paytool is done"
        assert len(ledger(tmp_path)) == 1
        assert await house.kinds(session_id) == [
            "Opened", "Prompted", "Started", "Replied", "Called", "Resumed", "Returned",
            "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip


async def two_workers(db: Database) -> bool:
    return bool(await db.value("SELECT count(*) = 2 FROM workers"))


# Two workers on one session, step by step


async def opened(db: Database, session_id: str = "s") -> str:
    prompted = events.Prompted(trace="t", content=("Hello",))
    about = events.Opened(agent=AGENT, version=1, owner="local", conversation=f"c-{session_id}")
    await journals.open(db, session_id, about, prompted, task="Hello")
    return session_id


async def engine(db: Database, worker: str, *script: Say) -> tuple[Engine, ScriptedModel]:
    model, catalog = ScriptedModel(script), Catalog(db)
    toolbox = Toolbox(TOOLS, catalog=catalog)

    async def model_for(template: Template) -> ScriptedModel:
        return model

    await publish_classes(catalog, toolbox.classes)
    await publish_files(catalog, (), BUILT_IN)
    return Engine(
        db, Bus(), catalog, toolbox, Offering(catalog, toolbox), InstancePool(model_for), worker=worker
    ), model


async def claimed(db: Database, session_id: str, worker: str) -> leases.Lease:
    lease = (await leases.claim(db, session_id, worker)).lease
    assert lease is not None
    return lease


async def test_of_two_workers_one_holds_and_the_other_is_deposed_at_its_first_write(db: Database) -> None:
    session_id = await opened(db)
    old, old_model = await engine(db, "old", call("finalanswertool", answer="from the old one"))
    new, _ = await engine(db, "new", call("finalanswertool", answer="from the new one"))
    lease = await claimed(db, session_id, "old")
    newer = await claimed(db, session_id, "new")
    assert (newer.fence, newer.previous) == (lease.fence + 1, "old")

    with pytest.raises(Deposed):
        await old.advance(lease)
    assert len(await journals.read(db, session_id)) == 2
    assert old_model.bodies == []

    session = await new.advance(newer)
    assert session.turn is not None
    assert session.turn.answer == "from the new one"
    # With nothing left to do there is nothing to write: it only finds that it may not let go.
    await old.advance(lease)
    told = await journals.read(db, session_id)
    assert {record.worker for record in told} == {"", "new"}
    assert await db.value("SELECT holder IS NULL AND NOT due FROM sessions WHERE id = :id", id=session_id)


async def test_a_worker_deposed_in_mid_step_drops_its_reply_and_is_silent(db: Database) -> None:
    session_id = await opened(db)
    answer = Say(calls=call("finalanswertool", answer="too late").calls, chunk=1, delay=0.01)
    old, old_model = await engine(db, "old", answer)
    new, _ = await engine(db, "new", call("finalanswertool", answer="in time"))
    advancing = asyncio.create_task(old.advance(await claimed(db, session_id, "old")))
    await eventually(lambda: len(old_model.bodies) == 1)
    session = await new.advance(await claimed(db, session_id, "new"))
    with pytest.raises(Deposed):
        await advancing
    assert session.state is State.COMPLETED
    told = await journals.read(db, session_id)
    assert_one_writer(told)
    assert [type(record.event).__name__ for record in told][2:] == [
        "Started", "Resumed", "Replied", "Called", "Returned", "Finished",
    ]  # fmt: skip
    assert "too late" not in str(told)


async def test_a_prompt_in_mid_step_never_costs_the_reply(db: Database) -> None:
    session_id = await opened(db)
    first = Say(calls=call("finalanswertool", answer="to the first").calls, chunk=1, delay=0.01)
    only, model = await engine(db, "only", first, call("finalanswertool", answer="to the second"))
    advancing = asyncio.create_task(only.advance(await claimed(db, session_id, "only")))
    await eventually(lambda: len(model.bodies) == 1)
    await journals.add(db, session_id, [events.Prompted(trace="t2", content=("And now?",))], trace="t2")
    session = await asyncio.wait_for(advancing, 20)
    assert (session.state, len(model.bodies)) == (State.COMPLETED, 2)
    told = await journals.read(db, session_id)
    assert [record.event.answer for record in told if isinstance(record.event, events.Finished)] == [
        "to the first", "to the second",
    ]  # fmt: skip
    assert await db.value("SELECT fence FROM sessions WHERE id = :id", id=session_id) == 1
    # The first turn could not rest, since something had come; the second could.
    assert await db.value("SELECT NOT due FROM sessions WHERE id = :id", id=session_id)
