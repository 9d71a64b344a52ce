"""A process that is asked to leave brings its steps to their next record, and leaves nothing to be guessed."""

import asyncio
import signal
from typing import Any

import aiohttp
import pytest

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import ToolResult
from longhouse.models.scripted import Say, call
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store import journals
from longhouse.store.database import Database
from server_helpers import Process, Serving, dictated, process
from till import open_till

PAYER = {"name": "payer", "tool_policy": {"allowlist": ["pay", "finalanswertool"]}}


def pays_once(body: Body) -> Say:
    results = [message.content for message in body.messages if isinstance(message, ToolResult)]
    return call("finalanswertool", answer=results[-1]) if results else call("pay")


async def put(there: Process, path: str, given: dict[str, Any]) -> None:
    async with there.http.post(path, json=given) as response:
        assert response.status < 300, await response.text()


async def says(there: Process, words: str, within: float = 20.0) -> None:
    """Waits until the process has logged these words."""
    async with asyncio.timeout(within):
        while not any(words in line for line in there.said):
            await asyncio.sleep(0.02)


async def kinds(db: Database, session_id: str) -> list[str]:
    return [type(record.event).__name__ for record in await journals.read(db, session_id)]


async def test_an_effect_that_ends_while_we_leave_is_recorded_and_asks_nobody(
    serving: Serving, dsn: str, db: Database
) -> None:
    async with open_till() as till, serve_model(pays_once) as model:
        settings: dict[str, Any] = {"llm_base_url": model.url, "allow_egress": till.place}
        async with process(database_url=dsn, **settings) as leaving:
            await put(leaving, "/admin/tools", till.tool)
            await put(leaving, "/admin/templates", PAYER)
            saying = asyncio.create_task(leaving.say("Pay it.", model="payer"))
            await asyncio.wait_for(till.begun.wait(), 20)
            session_id = await db.value("SELECT id FROM sessions")
            leaving.process.send_signal(signal.SIGTERM)
            await says(leaving, "shutdown_draining")
            till.may_end.set()
            assert await leaving.ended() == 0
            await asyncio.gather(saying, return_exceptions=True)
        assert await kinds(db, session_id) == ["Opened", "Prompted", "Started", "Replied", "Called", "Returned"]
        assert await db.value("SELECT count(*) FROM workers") == 0
        assert await db.value("SELECT holder IS NULL AND due FROM sessions")

        async with serving(**settings) as next_one:
            shown = await next_one.until(session_id, "COMPLETED", "WAITING_FOR_APPROVAL")
            assert (shown["state"], shown["result"], till.payments) == ("COMPLETED", "paid", 1)
        assert "Resumed" not in await kinds(db, session_id)


async def test_a_reply_that_is_paid_for_is_kept_by_a_worker_that_leaves(dsn: str, db: Database) -> None:
    async with dictated() as model, process(database_url=dsn, llm_base_url=model.url) as gateway:
        saying = asyncio.create_task(gateway.say("Think."))
        pen = await model.asked()
        session_id = await db.value("SELECT id FROM sessions")
        gateway.process.send_signal(signal.SIGINT)
        await says(gateway, "shutdown_draining")
        pen.call("finalanswertool", '{"answer": "thought"}')
        pen.end()
        assert await gateway.ended() == 0
        await asyncio.gather(saying, return_exceptions=True)
    assert (await kinds(db, session_id))[-1] == "Finished"
    assert await db.value("SELECT count(*) FROM workers") == 0


async def test_a_worker_without_an_api_tells_how_it_is_and_leaves_as_quietly(
    serving: Serving, dsn: str, db: Database
) -> None:
    async with dictated() as model, process("work", "--port", "0", database_url=dsn, llm_base_url=model.url) as worker:
        assert await db.value("SELECT count(*) FROM workers") == 1
        await says(worker, "served on")
        url = next(line for line in worker.said if "served on" in line).rpartition(" ")[2]
        async with aiohttp.ClientSession(url) as http:
            for path, status in {"/health": 200, "/ready": 200, "/metrics": 200, "/": 404, "/v1/models": 404}.items():
                async with http.get(path) as response:
                    assert response.status == status, path
            # While it finishes its step it is watched all the same, and says that it takes no more.
            async with serving(works=False, llm_base_url=model.url) as gateway:
                saying = asyncio.create_task(gateway.say("Think."))
                pen = await model.asked()
                worker.process.send_signal(signal.SIGTERM)
                await says(worker, "shutdown_draining")
                for path, status in {"/health": 200, "/ready": 503, "/metrics": 200}.items():
                    async with http.get(path) as response:
                        assert response.status == status, path
                pen.call("finalanswertool", '{"answer": "thought"}')
                pen.end()
                assert await worker.ended(within=60) == 0
                assert (await saying)["choices"][0]["message"]["content"] == "thought"
    assert await db.value("SELECT count(*) FROM workers") == 0


@pytest.mark.parametrize(("name", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
async def test_who_will_not_wait_says_so_twice(dsn: str, name: signal.Signals, code: int) -> None:
    async with dictated() as model, process(database_url=dsn, llm_base_url=model.url) as house:
        saying = asyncio.create_task(house.say("Think."))
        await model.asked()
        house.process.send_signal(name)
        await says(house, "shutdown_draining")
        house.process.send_signal(name)
        assert await house.ended(8) == code
        await asyncio.gather(saying, return_exceptions=True)
