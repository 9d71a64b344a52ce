"""Who is next: owners in turn, and no more sessions of a template or a key at once than may run in the whole fleet."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.template import ExecutionPolicy, Template
from longhouse.journal import events
from longhouse.journal.messages import text_of
from longhouse.models.scripted import Say, call
from longhouse.store import journals, leases
from longhouse.store.database import Database
from server_helpers import AGENT, Dictated, House, Pen, Process, Serving, content, dictated, process

MANY = 300
ADMIN = "k3y-of-the-house-9f27"


async def queued(db: Database, owner: str, text: str, *, agent: str = AGENT) -> str:
    """A session with a prompt, which no hint announces."""
    opened = events.Opened(agent=agent, version=1, owner=owner, conversation=text)
    prompt = events.Prompted(trace=text, content=(text,))
    return (await journals.open(db, f"{agent}_{owner}-{text}", opened, prompt, task=text)).session_id


def last_words(body: Any) -> str:
    return str(body["messages"][-1]["content"])


@pytest.mark.parametrize("slots", [1, 3])
async def test_many_sessions_of_one_owner_do_not_stand_before_one_of_another(
    serving: Serving, db: Database, slots: int
) -> None:
    for number in range(MANY):
        await queued(db, "flood", f"flood {number}")
    await queued(db, "ann", "ann")
    await queued(db, "зоя", "зоя")
    seen: list[str] = []

    def answer(body: Any) -> Say:
        seen.append(text_of(body.messages[-1].content))
        return call("finalanswertool", answer="Done.")

    async with serving(answer, worker_slots=slots) as house:
        # While the worker is at it, somebody else comes: through the front door, and with a hint.
        async with asyncio.timeout(20):
            while len(seen) < 5:
                await asyncio.sleep(0.01)
            before = len(seen)
            assert content(await house.say("local")) == "Done."
    few = 3 * slots + 3
    assert max(seen.index("ann"), seen.index("зоя")) < few
    assert seen.index("local") < before + 2 * (slots + 8) + few < MANY
    assert len(seen) < MANY, "the flood is not over"
    floods = [int(text.split()[1]) for text in seen if text.startswith("flood")]
    # As many as there are slots begin together, and the house may end before the first of them asked its model.
    assert max(floods) < len(floods) + slots - 1, "of one owner, the oldest come first"


def limited(name: str, most: int | None) -> Template:
    base = next(one for one in BUILT_IN if one.name == AGENT)
    return replace(base, name=name, execution_policy=ExecutionPolicy(max_running=most))


def told(pen: Pen) -> str:
    return last_words(pen.body)


def answered(pen: Pen) -> None:
    pen.call("finalanswertool", '{"answer": "Done."}')
    pen.end()


async def waiting_in(house: House | Process, number: int) -> None:
    """So many sessions wait for a place."""
    async with asyncio.timeout(10):
        while True:
            async with house.http.get("/metrics") as response:
                page = await response.text()
            lines = [line for line in page.splitlines() if line.startswith("longhouse_sessions_waiting_for_place{")]
            if sum(int(float(line.split()[-1])) for line in lines) == number:
                return
            await asyncio.sleep(0.02)


async def test_no_more_sessions_of_a_template_run_than_may_whichever_worker_runs_them(serving: Serving) -> None:
    templates = (*BUILT_IN, limited("narrow", 2))
    async with AsyncExitStack() as stack, dictated() as model:
        opened = [serving(templates=templates, llm_base_url=model.url) for _ in range(2)]
        one, other = [await stack.enter_async_context(house) for house in opened]
        asking = [asyncio.create_task(house.say(f"n{n}", model="narrow")) for n in range(3) for house in (one, other)]
        at_work = [await model.asked(), await model.asked()]
        await waiting_in(one, 4)
        # What is not limited goes on meanwhile.
        free = asyncio.create_task(other.say("free"))
        pen = await model.asked()
        assert told(pen) == "free"
        answered(pen)
        assert content(await free) == "Done."
        # A place becomes free, and one of those who wait gets it, wherever it was asked.
        answered(at_work.pop(0))
        at_work.append(await model.asked())
        await waiting_in(other, 3)
        # The limit is lowered while two are at work: none comes before both are done.
        await one.app.catalog.templates.publish([limited("narrow", 1)], by="test", activate=True)
        answered(at_work.pop(0))
        await waiting_in(one, 3)
        async with asyncio.timeout(10):
            while len([task for task in asking if task.done()]) < 2:
                await asyncio.sleep(0.01)
        answered(at_work.pop(0))
        for left in (2, 1):
            pen = await model.asked()
            await waiting_in(one, left)
            answered(pen)
        # It is cancelled at one node while it waits for its place at the other.
        pen = await model.asked()
        more = asyncio.create_task(one.say("more", model="narrow"))
        await waiting_in(other, 1)
        waits = await other.db.row("SELECT id, state FROM sessions WHERE waits_for IS NOT NULL")
        assert waits is not None
        assert waits["state"] == "INITED"
        async with other.http.post(f"/v1/sessions/{waits['id']}/cancel") as response:
            assert response.status == 202
        await waiting_in(one, 0)
        assert "cancelled" in str(await more)
        # The limit is taken away.
        last = asyncio.create_task(one.say("last", model="narrow"))
        await waiting_in(other, 1)
        await one.app.catalog.templates.publish([limited("narrow", None)], by="test", activate=True)
        answered(await model.asked())
        assert content(await last) == "Done."
        answered(pen)
        assert [content(await task) for task in asking] == ["Done."] * 6
        assert await one.db.value("SELECT count(*) FROM places p JOIN sessions s ON s.id = session_id WHERE s.due") == 0


async def test_places_of_a_template_go_round_its_owners(serving: Serving, db: Database) -> None:
    for number in range(40):
        await queued(db, "flood", f"flood {number}", agent="narrow")
    for owner in ("ann", "bob", "зоя"):
        await queued(db, owner, owner, agent="narrow")
    seen: list[str] = []

    def answer(body: Any) -> Say:
        seen.append(text_of(body.messages[-1].content))
        return call("finalanswertool", answer="Done.")

    async with serving(answer, templates=(*BUILT_IN, limited("narrow", 1)), worker_slots=8):
        async with asyncio.timeout(20):
            while len({"ann", "bob", "зоя"} & set(seen)) < 3:
                await asyncio.sleep(0.02)
    assert len(seen) < 40, "the flood is not over"


async def posted(http: aiohttp.ClientSession, text: str) -> Any:
    body = {"model": AGENT, "messages": [{"role": "user", "content": text}]}
    async with http.post("/v1/chat/completions", json=body, headers={"x-api-key": ADMIN}) as response:
        return await response.json()


async def worker_of(db: Database, model: Dictated, workers: list[Process]) -> tuple[Pen, Process]:
    """The one request under way, and the process that sent it."""
    pen = await model.asked()
    holder = await db.value("SELECT holder FROM sessions WHERE holder IS NOT NULL AND due ORDER BY fence DESC LIMIT 1")
    [found] = [one for one in workers if f"-{one.process.pid}-" in holder]
    return pen, found


async def test_another_worker_takes_over_the_only_place_of_a_key(serving: Serving, dsn: str, db: Database) -> None:
    async with AsyncExitStack() as stack, dictated() as model:
        gateway = await stack.enter_async_context(serving(works=False, admin_key=ADMIN, llm_base_url=model.url))
        settings = {"database_url": dsn, "llm_base_url": model.url, "max_running": "1"}
        workers = list(
            await asyncio.gather(*(stack.enter_async_context(process("work", **settings)) for _ in range(2)))
        )
        first = asyncio.create_task(posted(gateway.http, "first"))
        pen, worker = await worker_of(db, model, workers)
        second = asyncio.create_task(posted(gateway.http, "second"))
        async with asyncio.timeout(10):
            while not await db.value("SELECT count(*) FROM sessions WHERE waits_for IS NOT NULL"):
                await asyncio.sleep(0.02)
        worker.kill()
        pen, heir = await worker_of(db, model, workers)
        assert heir is not worker
        assert told(pen) == "first", "its place is still its own"
        answered(pen)
        assert content(await first) == "Done."
        pen = await model.asked()
        assert told(pen) == "second"
        answered(pen)
        assert content(await second) == "Done."


async def test_a_session_of_before_has_no_key_and_runs(serving: Serving, db: Database) -> None:
    session_id = await queued(db, "local", "old")
    await db.run("UPDATE sessions SET queued_at = NULL, key_id = NULL")
    async with serving([call("finalanswertool", answer="Done.")] * 2, max_running=1) as house:
        assert (await house.until(session_id, "COMPLETED"))["state"] == "COMPLETED"
        assert await leases.runnable(db, "w", 10, running=[]) == []
