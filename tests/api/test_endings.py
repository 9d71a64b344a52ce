"""Answers that we have to end ourselves: they end in words, and the words say where to go on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import structlog
from openai import APIError, AsyncOpenAI, UnprocessableEntityError

from longhouse.agents.template import ExecutionPolicy, Template, ToolPolicy
from longhouse.api import auth, wire
from longhouse.api.http import streaming as stream
from longhouse.api.inflight import INFLIGHT, InflightRequest
from longhouse.api.openai.completions import Completion
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.openai.turn_stream import follow_turn
from longhouse.api.sessions.sse import SessionCursor, events_of
from longhouse.models.scripted import call
from longhouse.runtime.bus.items import JournalGrew
from longhouse.runtime.inbox import Inbox
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import open_database
from server_helpers import AGENT, House, Pen, Serving, Sse, dictated, process, sse, user

CHAT = "/v1/chat/completions"
STOPPING = "The server is stopping."
AWAY = "Postgres cannot be reached."
UNREADABLE = "A newer release has written this, and this process cannot read it: ask again."


def body(text: str, **extra: Any) -> dict[str, Any]:
    return {"model": AGENT, "messages": [user(text)], **extra}


async def read(http: aiohttp.ClientSession, json: Any) -> list[Sse]:
    """A chat stream up to its end, which must be a clean one."""
    async with http.post(CHAT, json=json) as response:
        assert response.status == 200
        return [event async for event in sse(response)]


def assert_error(error: Any, message: str, session_id: str) -> None:
    assert error["error"] == {
        "message": f"{message} The session goes on: see /v1/sessions/{session_id}.",
        "type": "server_error",
        "param": None,
        "code": "unavailable",
    }


# The agent does not finish


async def test_a_turn_that_reaches_its_limit_is_no_error_of_the_server(serving: Serving) -> None:
    endless = Template(
        name="endless",
        execution_policy=ExecutionPolicy(max_iterations=1),
        tool_policy=ToolPolicy(allowlist=("clocktool", "finalanswertool")),
    )
    async with serving(lambda body: call("clocktool"), templates=[endless]) as house:
        wanted = {**body("Go on for ever"), "model": "endless"}
        async with house.http.post(CHAT, json=wanted) as response:
            assert (response.status, response.headers["x-should-retry"]) == (422, "false")
            told_whole = (await response.json())["error"]
        assert told_whole == {
            "message": "the agent did not finish within its limit of 1 steps",
            "type": "invalid_request_error",
            "param": None,
            "code": "limit_reached",
        }
        assert (await read(house.http, {**wanted, "stream": True}))[-1].json["error"] == told_whole
        client = house.client.with_options(max_retries=2)
        with pytest.raises(UnprocessableEntityError):
            await client.chat.completions.create(**wanted)
        rows = await house.db.rows("SELECT state FROM sessions")
        assert [row["state"] for row in rows] == ["FAILED"] * 3, "the SDK does not send it again"


# The server stops


async def test_a_server_that_stops_tells_everybody_whose_answer_is_not_there_yet(dsn: str) -> None:
    async with dictated() as model, process(database_url=dsn, llm_base_url=model.url) as house, asyncio.timeout(60):
        streaming = asyncio.create_task(read(house.http, body("One", stream=True)))
        pens = [await model.asked()]
        whole = asyncio.create_task(_answered(house.http, body("Two")))
        pens.append(await model.asked())
        async with house.http.get("/v1/sessions") as response:
            second, first = [one["session_id"] for one in (await response.json())["data"]]
        following = await house.http.get(f"/v1/sessions/{first}/events?until=never")
        pens[0].call("finalanswertool", '{"answer": "Half of ')
        house.process.terminate()

        last = (await streaming)[-1]
        assert last.event == "", "clients of OpenAI's protocol know no names"
        assert_error(last.json, STOPPING, first)
        status, answer = await whole
        assert status == 503, "which such clients send again, and are attached"
        assert_error(answer, STOPPING, second)
        last = [event async for event in sse(following)][-1]
        assert (last.event, last.json["error"]["message"]) == ("error", STOPPING)
        pens[0].end('a loaf."}')
        answer_with(pens[1])
        await house.ended()
        assert not [line for line in house.said if "Traceback" in line or "Exception in ASGI" in line]


def answer_with(pen: Pen) -> None:
    """What the worker waits for before it lets go."""
    pen.call("finalanswertool", '{"answer": "Done."}')
    pen.end()


async def _answered(http: aiohttp.ClientSession, json: Any) -> tuple[int, Any]:
    async with http.post(CHAT, json=json) as response:
        assert "x-should-retry" not in response.headers
        return response.status, await response.json()


# Something fails while we follow


async def grow_strange(house: House, session_id: str) -> None:
    """Writes what a newer worker might have written, and tells the followers that something is there."""
    await house.db.run("UPDATE sessions SET head = head + 1 WHERE id = :id", id=session_id)
    await house.db.run(
        "INSERT INTO journal (session_id, seq, conversation_id, kind, append_id, nth, body, at)"
        " SELECT id, head, conversation_id, 'Dreamt', gen_random_uuid(), 1, '{\"kind\": \"Dreamt\"}', now()"
        " FROM sessions WHERE id = :id",
        id=session_id,
    )
    house.app.bus.publish(session_id, JournalGrew())


async def test_a_shape_that_is_not_known_ends_streams_with_an_error(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, asyncio.timeout(30):
        client = AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0)
        chunks = await client.chat.completions.create(**body("Hello"), stream=True)
        session_id = (await anext(chunks)).model
        whole = asyncio.create_task(house.say("More", model=session_id))
        pen = await model.asked()
        following = await house.http.get(f"/v1/sessions/{session_id}/events")
        pen.call("finalanswertool", '{"answer": "Half of ')
        async for chunk in chunks:
            if chunk.choices[0].delta.content:
                break
        await _prompts(house, session_id, 2)
        with structlog.testing.capture_logs() as logs:
            await grow_strange(house, session_id)
            with pytest.raises(APIError) as raised:
                [chunk async for chunk in chunks]
            assert session_id in raised.value.message
            last = [event async for event in sse(following)][-1]
            assert (last.event, last.json["error"]["message"]) == ("error", UNREADABLE)
            assert_error(await whole, UNREADABLE, session_id)
        assert "stream_failed" not in [one["event"] for one in logs], "it is no defect of this process"
        pen.end('a loaf."}')
        await client.close()


async def _prompts(house: House, session_id: str, number: int) -> None:
    async with asyncio.timeout(10):
        while (await house.kinds(session_id)).count("Prompted") < number:
            await asyncio.sleep(0.01)


async def nowhere(message: Any) -> None:
    """Takes what a response sends."""


@asynccontextmanager
async def sent(response: stream.EventStream[Any], session_id: str) -> AsyncIterator[asyncio.Queue[bytes | None]]:
    """What a response sends, as it sends it; None is its end."""
    messages: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def send(message: Any) -> None:
        if message.get("body"):
            messages.put_nowait(message["body"])
        if message.get("more_body") is False:
            messages.put_nowait(None)

    visit = InflightRequest(asyncio.current_task(), send, session=session_id)
    serving = asyncio.create_task(response({"type": "http", INFLIGHT: visit}, asyncio.Event().wait, send))  # type: ignore[arg-type]
    try:
        yield messages
        await serving
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("is_chat", [True, False], ids=["chat", "events"])
async def test_a_postgres_that_goes_away_ends_streams_with_an_error(serving: Serving, dsn: str, is_chat: bool) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, open_database(dsn) as db:
        request = wire.ChatRequest.model_validate(body("Hello"))
        where = await SessionResolver(db, Catalog(db), Inbox(db, house.app.bus)).attach(
            auth.LOCAL, request, b"Hello", {}
        )
        session_id = where.session.id
        visit = InflightRequest(asyncio.current_task(), nowhere)
        telling = follow_turn({INFLIGHT: visit, "headers": []}, db, house.app.bus, where)
        response: stream.EventStream[Any] = (
            stream.EventStream(Completion(telling).chunks(), error=stream.bare_error)
            if is_chat
            else stream.EventStream(
                events_of(db, house.app.bus, SessionCursor(session_id, {}), until_rest_of=None, deltas=True)
            )
        )
        async with asyncio.timeout(30), sent(response, session_id) as messages:
            assert await messages.get()
            pen = await model.asked()
            with structlog.testing.capture_logs() as logs:
                db.pool.terminate()
                house.app.bus.publish(session_id, JournalGrew())
                read: list[bytes] = []
                while (message := await messages.get()) is not None:
                    read.append(message)
            assert AWAY.encode() in read[-1]
            assert session_id.encode() in read[-1]
            assert read[-1].startswith(b"data: " if is_chat else b"event: error\n")
            [line] = [one for one in logs if one["event"] == "database_unreachable"]
            assert (line["log_level"], line["session"]) == ("warning", session_id)
        answer_with(pen)
