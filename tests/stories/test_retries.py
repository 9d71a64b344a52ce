"""The same request once more: it attaches to its turn, and the journal holds one prompt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Say, call
from server_helpers import AGENT, House, Serving, chat, content, dictated, sse, user

KEY = {"Idempotency-Key": "order-17"}
FIRST_TRY = {"x-stainless-retry-count": "0"}
RETRY = {"x-stainless-retry-count": "1"}


def echo(body: Body) -> Say:
    said = [text_of(message.content) for message in body.messages if isinstance(message, User)]
    if said[-1] == "?":
        return call("clarificationtool", questions=["Which city?"])
    return call("finalanswertool", answer=" | ".join(said))


async def prompts(house: House) -> int:
    return int(await house.db.value("SELECT count(*) FROM journal WHERE kind = 'Prompted'"))


@asynccontextmanager
async def asked(house: House, text: str, headers: dict[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
    body = {"model": AGENT, "messages": [user(text)], "stream": True}
    async with asyncio.timeout(20), house.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200
        yield response


async def heard(response: aiohttp.ClientResponse) -> tuple[str, str]:
    """Id and text of a stream, read to its end."""
    text, ids = "", set()
    async for event in sse(response):
        if event.data != "[DONE]":
            ids.add(event.json["id"])
            text += event.json["choices"][0]["delta"].get("content", "")
    assert event.data == "[DONE]"
    [one] = ids
    return one, text


async def first_content(response: aiohttp.ClientResponse) -> str:
    async for event in sse(response):
        if text := event.json["choices"][0]["delta"].get("content"):
            return str(text)
    raise AssertionError("the stream ended without content")


@pytest.mark.parametrize("headers", [KEY, RETRY], ids=["key", "retry-count"])
async def test_a_repeat_of_a_finished_request_is_answered_from_the_journal(
    serving: Serving, headers: dict[str, str]
) -> None:
    async with serving(echo) as house:
        first = await chat(house, [user("Hello")], headers=headers)
        assert content(first) == "Hello"
        head = (await house.session(first["model"]))["head"]
        for _ in range(2):
            again = await chat(house, [user("Hello")], headers=headers)
            assert (again["id"], again["model"], content(again)) == (first["id"], first["model"], "Hello")
            assert again["usage"] == first["usage"]
        assert (await house.session(first["model"]))["head"] == head
        # A follow-up has gone on since: the repeat still gets its own answer, and nothing of the other turn.
        await house.say("More", model=first["model"])
        assert content(await chat(house, [user("Hello")], headers=headers)) == "Hello"
        assert await prompts(house) == 2
        assert house.model is not None
        assert len(house.model.requests) == 2


@pytest.mark.parametrize("headers", [KEY, RETRY], ids=["key", "retry-count"])
async def test_a_repeat_of_a_running_request_streams_the_same_turn(serving: Serving, headers: dict[str, str]) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        async with asked(house, "Hello", {**headers, **(FIRST_TRY if headers == RETRY else {})}) as first:
            pen = await model.asked()
            pen.call("finalanswertool", '{"answer": "One ')
            assert await first_content(first) == "One "
        # The client has left; its retry joins in the middle and reads along while the answer is being written.
        async with asked(house, "Hello", headers) as again, asked(house, "Hello", headers) as third:
            assert await first_content(again) == "One "
            pen.more("two ")
            assert await first_content(again) == "two "
            pen.end('three"}')
            assert (await heard(again))[1] == "three"
            assert (await heard(third))[1] == "One two three"
        assert await prompts(house) == 1


async def test_requests_with_one_key_at_once_give_one_prompt(serving: Serving) -> None:
    async with serving(echo) as house:
        got = await asyncio.gather(*(chat(house, [user("Hello")], headers=KEY) for _ in range(8)))
        assert {content(one) for one in got} == {"Hello"}
        assert len({(one["id"], one["model"]) for one in got}) == 1
        assert await prompts(house) == 1
        named = await asyncio.gather(
            *(chat(house, [user("More")], model=got[0]["model"], headers={"Idempotency-Key": "k2"}) for _ in range(8))
        )
        assert {content(one) for one in named} == {"Hello | More"}
        assert await prompts(house) == 2


async def test_another_body_under_the_same_key_is_refused(serving: Serving) -> None:
    async with serving(echo) as house:
        first = await chat(house, [user("Hello")], headers=KEY)
        body = {"model": AGENT, "messages": [user("Something else")]}
        async with house.http.post("/v1/chat/completions", json=body, headers=KEY) as response:
            assert 400 <= response.status < 500
            assert response.headers["x-request-id"]
            assert (await response.json())["error"]["code"] == "key_reused"
        assert await prompts(house) == 1
        assert content(await chat(house, [user("Hello")], headers=KEY)) == content(first)


NO_KEYS = ["", "k" * 256, "schlüssel"]


async def test_a_key_that_is_none_is_refused(serving: Serving) -> None:
    async with serving(echo) as house:
        for key in NO_KEYS:
            refused = await chat(house, [user("Hello")], headers={"Idempotency-Key": key})
            assert refused["error"]["param"] == "Idempotency-Key"
            assert await prompts(house) == 0


async def test_a_key_may_be_used_again_after_a_day(serving: Serving) -> None:
    async with serving(echo) as house:
        first = await chat(house, [user("Hello")], headers=KEY)
        await house.db.run("UPDATE requests SET at = at - interval '25 hours'")
        second = await chat(house, [user("Something else")], headers=KEY)
        assert second["model"] != first["model"]
        assert content(second) == "Something else"
        assert content(await chat(house, [user("Something else")], headers=KEY)) == "Something else"
        assert await prompts(house) == 2


async def test_requests_are_not_kept_for_longer_than_a_day(serving: Serving) -> None:
    async with serving(echo) as house:
        for text in ("Old", "New"):
            await chat(house, [user(text)])
        oldest = "SELECT session_id FROM requests ORDER BY at LIMIT 1"
        await house.db.run(f"UPDATE requests SET at = at - interval '25 hours' WHERE session_id = ({oldest})")
    async with serving(echo) as house, asyncio.timeout(10):
        while await house.db.value("SELECT count(*) FROM requests") > 1:
            await asyncio.sleep(0.02)
        assert await house.db.value("SELECT count(*) FROM requests") == 1


async def test_without_a_retry_count_an_equal_request_is_a_new_one(serving: Serving) -> None:
    async with serving(echo) as house:
        headers: list[dict[str, str]] = [{}, {}, FIRST_TRY]
        got = [await chat(house, [user("Hello")], headers=one) for one in headers]
        assert len({one["model"] for one in got}) == 3
        assert await prompts(house) == 3
        # A retry attaches to the newest of them, and one whose body differs is new.
        assert (await chat(house, [user("Hello")], headers=RETRY))["model"] == got[-1]["model"]
        assert (await chat(house, [user("Hello!")], headers=RETRY))["model"] not in {one["model"] for one in got}


async def test_a_retry_attaches_for_ten_minutes_only(serving: Serving) -> None:
    async with serving(echo) as house:
        first = await chat(house, [user("Hello")])
        await house.db.run("UPDATE requests SET at = at - interval '11 minutes'")
        assert (await chat(house, [user("Hello")], headers=RETRY))["model"] != first["model"]


async def test_an_answer_to_a_question_is_repeated_like_a_prompt(serving: Serving) -> None:
    async with serving(echo) as house:
        first = await chat(house, [user("?")], headers=KEY)
        assert content(first) == "Which city?"
        again = await chat(house, [user("?")], headers=KEY)
        assert (content(again), again["id"]) == ("Which city?", first["id"])

        session_id = first["model"]
        answered = [
            await chat(house, [user("Oslo")], model=session_id, headers={"Idempotency-Key": "answer"}) for _ in range(2)
        ]
        assert [content(one) for one in answered] == ["? | Oslo", "? | Oslo"]
        # Two responses of one turn are two completions; a repeat is the same one.
        assert answered[0]["id"] == answered[1]["id"] != first["id"]
        assert (await house.kinds(session_id)).count("Returned") == 2


async def test_the_openai_client_retries_after_a_broken_connection_and_one_prompt_is_there(serving: Serving) -> None:
    async with serving(echo) as house:
        dropped = asyncio.Event()
        async with (
            _flaky(house.url, dropped) as url,
            AsyncOpenAI(base_url=url, api_key="none", max_retries=2) as client,
        ):
            answer = await client.chat.completions.create(model=AGENT, messages=[{"role": "user", "content": "Hello"}])
        assert dropped.is_set()
        assert answer.choices[0].message.content == "Hello"
        assert await prompts(house) == 1


# A retry that comes before the first try has arrived


ROW = "SELECT FROM sessions WHERE id = $1 FOR UPDATE"
ROWS = "LOCK TABLE sessions IN SHARE ROW EXCLUSIVE MODE"
# Appends and openings of sessions, and no sweep of a worker that waits for the same lock.
STUCK = """FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND (
      query LIKE '%INTO sessions%' OR query LIKE '%head = head +%' OR query LIKE 'SELECT pg_advisory_xact_lock%'
    )"""


@asynccontextmanager
async def stalled(house: House, sql: str, *args: object) -> AsyncIterator[None]:
    """Somebody holds in Postgres what this takes, until the end of the block."""
    async with house.db.connection() as connection, connection.transaction():
        await connection.execute(sql, *args)
        yield


async def stuck(house: House, number: int) -> None:
    """Returns when so many requests wait for somebody else's lock."""
    async with asyncio.timeout(10):
        while await house.db.value(f"SELECT count(*) {STUCK}") < number:
            await asyncio.sleep(0.01)


async def test_the_openai_client_loses_patience_while_postgres_stalls_and_one_prompt_is_there(serving: Serving) -> None:
    tries: asyncio.Queue[Any] = asyncio.Queue()
    async with serving(echo) as house:
        session_id = (await house.say("One"))["model"]
        counting = DefaultAsyncHttpxClient(event_hooks={"request": [tries.put]})
        async with AsyncOpenAI(
            base_url=f"{house.url}/v1", api_key="none", max_retries=8, timeout=0.8, http_client=counting
        ) as client:
            async with stalled(house, ROW, session_id):
                said: Any = [user("Pay")]
                asking = asyncio.create_task(client.chat.completions.create(model=session_id, messages=said))
                async with asyncio.timeout(20):
                    for _ in range(3):  # the third one means that the second has waited in vain, too
                        await tries.get()
            answer = await asking
        assert answer.choices[0].message.content == "One | Pay"
        assert await prompts(house) == 2


async def test_a_retry_waits_for_a_first_try_that_opens_a_session(serving: Serving) -> None:
    async with serving(echo) as house:
        async with stalled(house, ROWS):
            first = asyncio.create_task(chat(house, [user("Hello")], headers=FIRST_TRY))
            await stuck(house, 1)
            again = [asyncio.create_task(chat(house, [user("Hello")], headers=RETRY)) for _ in range(3)]
            other = asyncio.create_task(chat(house, [user("Hello!")], headers=RETRY))
            await stuck(house, 2)
        got = await asyncio.gather(first, *again)
        assert len({(one["id"], one["model"], content(one)) for one in got}) == 1
        assert content(await other) == "Hello!"
        assert await prompts(house) == 2


async def test_a_retry_goes_its_own_way_when_the_first_try_is_refused(serving: Serving) -> None:
    async with serving(echo) as house:
        async with stalled(house, ROWS):
            first = asyncio.create_task(chat(house, [user("Hello")], headers=FIRST_TRY))
            await stuck(house, 1)
            again = asyncio.create_task(chat(house, [user("Hello")], headers=RETRY))
            assert await house.db.value(f"SELECT pg_cancel_backend(pid) {STUCK}")
            assert (await first)["error"]["type"] == "server_error"
            await stuck(house, 1)
        assert content(await again) == "Hello"
        assert await prompts(house) == 1


async def test_a_retry_at_another_gateway_waits_for_the_first_try(serving: Serving) -> None:
    async with serving(echo) as one, serving(echo) as other:
        session_id = (await one.say("One"))["model"]
        async with stalled(one, ROW, session_id):
            first = asyncio.create_task(chat(one, [user("Pay")], model=session_id, headers=FIRST_TRY))
            await stuck(one, 1)
            again = asyncio.create_task(chat(other, [user("Pay")], model=session_id, headers=RETRY))
            await stuck(one, 2)
        got = [await first, await again]
        assert [content(one) for one in got] == ["One | Pay"] * 2
        assert got[0]["id"] == got[1]["id"]
        assert await prompts(one) == 2


async def test_two_retries_at_two_gateways_are_one_prompt(serving: Serving) -> None:
    async with serving(echo) as one, serving(echo) as other:
        session_id = (await one.say("?"))["model"]
        async with stalled(one, ROW, session_id):
            both = [
                asyncio.create_task(chat(house, [user("Oslo")], model=session_id, headers=RETRY))
                for house in (one, other)
            ]
            await stuck(one, 2)
        got = await asyncio.gather(*both)
        assert {content(one) for one in got} == {"? | Oslo"}
        assert (await one.kinds(session_id)).count("Returned") == 2
        assert await prompts(one) == 1


async def test_equal_first_tries_do_not_wait_for_each_other(serving: Serving) -> None:
    async with serving(echo) as house:
        session_id = (await house.say("One"))["model"]
        async with stalled(house, ROW, session_id):
            both = [
                asyncio.create_task(chat(house, [user("Go on")], model=session_id, headers=FIRST_TRY)) for _ in range(2)
            ]
            await stuck(house, 2)
        got = await asyncio.gather(*both)
        assert len({one["id"] for one in got}) == 2
        assert await prompts(house) == 3


@asynccontextmanager
async def _flaky(url: str, dropped: asyncio.Event) -> AsyncIterator[str]:
    """A proxy that passes the first request on, and hangs up when the answer begins to come back."""
    host, port = url.removeprefix("http://").split(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(_pump(reader, outer), _answer(inner, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            outer.close()

    async def _answer(inner: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await inner.read(65536):
            if not dropped.is_set():
                dropped.set()
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
