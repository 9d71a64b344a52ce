"""A response that is streamed is the same for every client, on every node, after every crash: its numbers, its text."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from response_helpers import StreamReader, ended, resumed, streamed, text_of
from server_helpers import House, HouseClient, Process, Serving, dictated, process

BEGUN = '{"answer": "One two three four five six seven '
DELTA = "response.output_text.delta"
SHOWN = "One two three four five six seve"
"""As many whole pieces as were written of it."""


async def all_of(house: HouseClient, response_id: str) -> list[Any]:
    async with resumed(house, response_id) as reader:
        return await reader.to_the_end()


async def check_each_place(house: HouseClient, response_id: str, seen: list[Any]) -> None:
    """What a client has seen is the stream, and it can be joined after each of its events."""
    assert [event["sequence_number"] for event in seen] == list(range(len(seen)))
    assert await all_of(house, response_id) == seen
    for place in range(len(seen) - 1):
        async with resumed(house, response_id, place) as reader:
            assert await reader.to_the_end() == seen[place + 1 :]


def shown_texts(seen: list[Any]) -> dict[int, str]:
    """Output index -> the text that a client has put together from its pieces."""
    texts: dict[int, str] = {}
    for event in seen:
        if event["type"] == DELTA:
            texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
    return texts


@asynccontextmanager
async def restarted(serving: Serving) -> AsyncIterator[tuple[House, StreamReader, Any]]:
    """A step that begins anew after half of its text was shown; and the pen of the second attempt."""
    async with dictated() as model, serving(llm_base_url=model.url) as house, streamed(house) as reader:
        pen = await model.asked()
        pen.call("finalanswertool", BEGUN)
        await reader.until(DELTA, SHOWN)
        pen.cut()
        yield house, reader, await model.asked()


async def test_a_step_that_restarts_goes_on_where_its_text_was(serving: Serving) -> None:
    async with restarted(serving) as (house, reader, pen):
        pen.call("finalanswertool", BEGUN)
        pen.more('eight nine ten eleven."}')
        pen.end()
        seen = await reader.to_the_end()
        assert reader.text == text_of(reader.last) == "One two three four five six seven eight nine ten eleven."
        await check_each_place(house, reader.id, seen)


async def test_text_that_changes_is_taken_back_and_never_mixed(serving: Serving) -> None:
    async with restarted(serving) as (house, reader, pen):
        pen.call("finalanswertool", '{"answer": "Quite another answer, which')
        await reader.until(DELTA, "Quite another an")
        pen.more(' is long enough."}')
        pen.end()
        seen = await reader.to_the_end()
        assert shown_texts(seen) == {0: SHOWN, 1: "Quite another answer, which is long enough."}
        broken, whole = reader.last["output"]
        assert (broken["status"], broken["content"]) == ("incomplete", [])
        assert whole["status"] == "completed"
        assert text_of(reader.last) == "Quite another answer, which is long enough."
        await check_each_place(house, reader.id, seen)


async def test_what_was_shown_goes_once_the_journal_says_the_same(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, streamed(house) as reader:
        pen = await model.asked()
        pen.call("finalanswertool", BEGUN)
        await reader.until(DELTA, SHOWN)
        assert await house.db.value("SELECT sum(length(text)) FROM response_drafts") == len(SHOWN)
        pen.more('eight."}')
        pen.end()
        seen = await reader.to_the_end()
        assert await house.db.value("SELECT count(*) FROM response_drafts") == 0
        await check_each_place(house, reader.id, seen)


async def test_two_gateways_show_the_same_while_it_is_written(serving: Serving) -> None:
    async with (
        dictated() as model,
        serving(llm_base_url=model.url) as house,
        serving(llm_base_url=model.url) as other,
        streamed(house) as reader,
    ):
        pen = await model.asked()
        pen.call("finalanswertool", BEGUN)
        await reader.until(DELTA, SHOWN)
        async with resumed(other, reader.id) as second, resumed(other, reader.id, reader.numbers[-1]) as third:
            await second.until(DELTA, SHOWN)
            assert second.events == reader.events
            pen.more("eight nine ten eleven twelve thirteen ")
            await asyncio.gather(*(one.until(DELTA, "ven twelve t") for one in (second, third, reader)))
            pen.more('fourteen."}')
            pen.end()
            seen = await reader.to_the_end()
            assert await second.to_the_end() == seen
            await third.to_the_end()
            assert third.events == seen[third.numbers[0] :]
            await check_each_place(other, reader.id, seen)


@pytest.mark.parametrize("text", ["One two three four five six seven eight.", "Another text altogether, quite long."])
async def test_a_killed_server_goes_on_with_the_same_numbers(serving: Serving, text: str) -> None:
    """The process that serves, works and has shown half of an answer is killed with -9."""
    settings = {"database_url": serving.dsn}
    async with dictated() as model:
        settings["llm_base_url"] = model.url
        async with process(**settings) as first:
            reader, cut = await shown_half(first, model)
            pen = cut
            first.kill()
            await first.ended()
        async with process(**settings) as second:
            pen = await model.asked()
            async with resumed(second, reader.id, reader.numbers[-1]) as again:
                pen.call("finalanswertool", f'{{"answer": "{text}"}}')
                pen.end()
                rest = await again.to_the_end()
            seen = [*reader.events, *rest]
            assert again.last["status"] == "completed"
            assert text_of(again.last) == text
            is_same = text.startswith(SHOWN)
            assert shown_texts(seen) == ({0: text} if is_same else {0: SHOWN, 1: text})
            await check_each_place(second, reader.id, seen)
            assert (await ended(second, reader.id)) == again.last


async def shown_half(first: Process, model: Any) -> tuple[StreamReader, Any]:
    async with streamed(first, background=True) as reader:
        pen = await model.asked()
        pen.call("finalanswertool", BEGUN)
        await reader.until(DELTA, SHOWN)
    return reader, pen


async def test_a_background_response_survives_a_kill_that_nobody_saw(serving: Serving) -> None:
    async with dictated() as model:
        settings = {"database_url": serving.dsn, "llm_base_url": model.url}
        async with process(**settings) as first:
            async with streamed(first, background=True) as reader:
                await reader.next()  # response.created, and the client is gone
            await model.asked()
            first.kill()
            await first.ended()
        async with process(**settings) as second:
            pen = await model.asked()
            pen.call("finalanswertool", '{"answer": "Still here."}')
            pen.end()
            done = await ended(second, reader.id)
            assert (done["status"], text_of(done)) == ("completed", "Still here.")


async def test_a_worker_that_dies_leaves_its_gateway_a_stream_without_a_seam(serving: Serving) -> None:
    async with dictated() as model:
        settings = {"database_url": serving.dsn, "llm_base_url": model.url}
        async with serving(llm_base_url=model.url, works=False) as house:
            async with process("work", **settings) as worker, streamed(house) as reader:
                pen = await model.asked()
                pen.call("finalanswertool", BEGUN)
                await reader.until(DELTA, SHOWN)
                worker.kill()
                await worker.ended()
                async with process("work", **settings):
                    pen = await model.asked()
                    pen.call("finalanswertool", BEGUN)
                    pen.more('eight, by another worker."}')
                    pen.end()
                    seen = await reader.to_the_end()
            assert reader.text == "One two three four five six seven eight, by another worker."
            await check_each_place(house, reader.id, seen)


async def test_numbers_that_no_event_has_are_refused(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        async with streamed(house, background=True) as reader:
            await reader.next()
        for number in ("-1", "x", "1e3", str(10**18), "99999"):
            where = f"/v1/responses/{reader.id}?stream=true&starting_after={number}"
            async with house.http.get(where) as response:
                assert response.status == 400, number
                assert (await response.json())["error"]["param"] == "starting_after"
        await finished(house, model, reader.id)


async def finished(house: House, model: Any, response_id: str) -> None:
    pen = await model.asked()
    pen.call("finalanswertool", '{"answer": "Done."}')
    pen.end()
    await ended(house, response_id)
