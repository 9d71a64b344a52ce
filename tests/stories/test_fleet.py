"""Several processes on one database: who takes the prompt need not be who works, nor who is asked afterwards."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.nats_server import NatsServer, nats_server
from structlog.testing import capture_logs

from longhouse.models.scripted import Say, ScriptedStatus, call, say
from longhouse.models.scripted_server import serve as serve_model
from longhouse.runtime.bus.doorbell import Doorbell
from server_helpers import AGENT, House, Serving, Sse, content, dictated, sse, user


@pytest.fixture(params=["nats", "doorbell"])
async def nats(request: pytest.FixtureRequest) -> AsyncIterator[NatsServer | None]:
    if request.param == "doorbell":
        yield None
        return
    async with nats_server() as server:
        yield server


@asynccontextmanager
async def fleet(serving: Serving, url: str, nats: NatsServer | None, **more: Any) -> AsyncIterator[list[House]]:
    """Two gateways that do not work, and a worker."""
    settings: dict[str, Any] = {"llm_base_url": url, **({"nats_url": nats.url} if nats else {}), **more}
    async with AsyncExitStack() as stack:
        opened = [serving(works=works, **settings) for works in (False, False, True)]
        houses = [await stack.enter_async_context(one) for one in opened]
        async with asyncio.timeout(20):
            for house in houses:
                while not is_linked(house.app.bus.relay):
                    await asyncio.sleep(0.01)
        yield houses


def is_linked(relay: Any) -> bool:
    return not relay.is_alone if isinstance(relay, Doorbell) else bool(relay.is_connected)


@asynccontextmanager
async def asked(house: House, text: str) -> AsyncIterator[AsyncIterator[Sse]]:
    body = {"model": AGENT, "messages": [user(text)], "stream": True}
    async with asyncio.timeout(30), house.http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200
        yield sse(response)


async def content_until(events: AsyncIterator[Sse], text: str) -> str:
    """Reads until there is this much content, and no more; the session's id."""
    read, session_id = "", ""
    async for event in events:
        assert event.data != "[DONE]", f"the stream ended with {read!r}"
        session_id = event.json["model"]
        read += event.json["choices"][0]["delta"].get("content") or ""
        if read == text:
            return str(session_id)
        assert text.startswith(read)
    raise AssertionError(f"the stream ended with {read!r}")


async def rest_of(events: AsyncIterator[Sse]) -> str:
    found = [event.json["choices"][0]["delta"].get("content") or "" async for event in events if event.data != "[DONE]"]
    return "".join(found)


async def test_a_stream_comes_from_wherever_the_session_runs(serving: Serving, nats: NatsServer | None) -> None:
    async with dictated() as model, fleet(serving, model.url, nats) as (gateway, other, worker):
        async with asked(gateway, "Tell me.") as events:
            pen = await model.asked()
            pen.write(content="It was ")
            session_id = await content_until(events, "It was ")
            # Somebody else looks in at another gateway, in the middle of a sentence: every event once, then the draft.
            path = f"/v1/sessions/{session_id}/events"
            async with asyncio.timeout(30), other.http.get(path) as response:
                looking = sse(response)
                read = [await anext(looking)]
                while read[-1].event != "delta.snapshot":
                    read.append(await anext(looking))
                assert read[-1].json["content"] == "It was "
                pen.write(content="a dark night.")
                await content_until(events, "a dark night.")
                while read[-1].event != "delta":
                    read.append(await anext(looking))
                assert (read[-1].json["offset"], read[-1].json["text"]) == (len("It was "), "a dark night.")
                pen.write(finish="stop")
                pen.frames.put_nowait(b"data: [DONE]\n\n")
                pen.frames.put_nowait(b"")
                assert await rest_of(events) == ""
                read += [event async for event in looking]
        ids = [int(event.id) for event in read if event.id]
        assert ids == list(range(1, len(ids) + 1)), "every event once"
        assert [event.event for event in read if not event.id] == ["delta.snapshot", "delta"], "and every word"
        assert {record.worker for record in await worker.journal(session_id) if record.worker} == {worker.app.worker.id}
        assert (gateway.app.worker.busy, other.app.worker.busy) == (0, 0)

        # Cancelled at one gateway, it ends in the worker and at the other.
        async with asked(gateway, "Go on.") as events:
            pen = await model.asked()
            pen.write(content="And then")
            session_id = await content_until(events, "And then")
            async with other.http.post(f"/v1/sessions/{session_id}/cancel") as response:
                assert response.status == 202
            last = [event async for event in events]
        assert any("cancelled" in event.data for event in last)
        assert (await gateway.until(session_id, "CANCELLED"))["state"] == "CANCELLED"


async def test_a_provider_in_trouble_is_given_up_earlier_while_somebody_waits_at_another_process(
    serving: Serving, nats: NatsServer | None
) -> None:
    # Whoever waits does so for a second; a turn that nobody follows would be tried for fifteen.
    async with (
        serve_model(lambda body: say("", fault=ScriptedStatus(status=503, message="busy"))) as model,
        fleet(serving, model.url, nats, patience=1) as (gateway, _, _),
    ):
        async with asked(gateway, "Hello?") as events:
            told = [event.json async for event in events if event.data != "[DONE]"]
        assert "error" in told[-1]
        assert len(model.requests) <= 3
        # What it said is for operators, who ask at any process.
        async with gateway.http.get("/admin/operations") as response:
            sentences = (await response.json())["sentences"]
        assert sentences[0]["text"].endswith("answered 503: busy")


TILL_AGENTS = """\
tool_packages: [{package}]
agents:
  cashier: {{tools: ["{package}:open_till", finalanswertool]}}
"""
TILL = """\
from longhouse import tool


@tool
async def open_till(amount: int) -> str:
    \"\"\"Open the till.\"\"\"
    return f"{amount} in the till"
"""


async def test_a_worker_leaves_agents_whose_package_it_lacks_to_others(serving: Serving, tmp_path: Path) -> None:
    package = f"till_{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{package}.py").write_text(TILL)
    (tmp_path / "agents.yaml").write_text(TILL_AGENTS.format(package=package))
    project: dict[str, Any] = {"agents_file": tmp_path / "agents.yaml"}

    def script(body: Any) -> Say:
        return call("open_till", amount=3) if len(body.messages) == 2 else call("finalanswertool", answer="Done.")

    async with serve_model(script) as model, serving(llm_base_url=model.url) as empty:
        with capture_logs() as log:
            async with serving(works=False, llm_base_url=model.url, **project) as gateway:
                told = asyncio.create_task(gateway.say("Open it", model="cashier"))
                other = await gateway.say("Hello")
                assert other["choices"], "sessions of other agents are worked on"
                async with asyncio.timeout(30):
                    while (ready := await status_of(empty, "/ready"))[0] != 503:
                        await asyncio.sleep(0.1)
                assert not told.done(), "the customer waits"
                assert f"Sessions of cashier wait, and no process can run them; here {package} is not in" in ready[1]
                # Where a worker is full, it may be one that can run them: they wait for room, and not for a package.
                full = "INSERT INTO workers (id, lock_key, node, pid, slots) VALUES ('full', 7, 'n', 1, 0)"
                await gateway.db.run(full)
                assert (await status_of(empty, "/ready"))[0] == 200
                await gateway.db.run("DELETE FROM workers WHERE id = 'full'")
                assert (await status_of(empty, "/ready"))[0] == 503
                async with serving(llm_base_url=model.url, **project):
                    answer = await asyncio.wait_for(told, 30)
                assert content(answer) == "Done."
                session_id = answer["model"]
                assert "Resumed" not in await gateway.kinds(session_id), "nobody was lost"
                assert (await status_of(empty, "/ready"))[0] == 200
    declined = [one for one in log if one["event"] == "agent_declined"]
    assert len(declined) == 1, "it is said once"
    assert (declined[0]["agent"], package in declined[0]["reason"]) == ("cashier", True)


async def status_of(house: House, path: str) -> tuple[int, str]:
    async with house.http.get(path) as response:
        return response.status, await response.text()
