"""A step that breaks off in the middle is taken again: what a client has read cannot be taken back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import pytest

from server_helpers import AGENT, Dictated, House, Serving, Sse, chat, content, dictated, sse, user


@dataclass
class Scene:
    house: House
    model: Dictated


@pytest.fixture
async def scene(serving: Serving) -> AsyncIterator[Scene]:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        yield Scene(house, model)


class Reader:
    """One client's stream, read piece by piece."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._events = sse(response)
        self.content = ""
        self.reasoning = ""
        self.session_id = ""
        self.error: Any = None
        self.is_done = False

    async def until(self, text: str) -> None:
        """Reads on until it has this much content, and no more than this."""
        while self.content != text:
            assert text.startswith(self.content)
            self._take(await anext(self._events))

    async def to_the_end(self) -> None:
        async for event in self._events:
            self._take(event)

    def _take(self, event: Sse) -> None:
        assert not self.is_done
        assert self.error is None
        if event.data == "[DONE]":
            self.is_done = True
            return
        if error := event.json.get("error"):
            self.error = error
            return
        delta = event.json["choices"][0]["delta"]
        self.session_id = event.json["model"]
        self.content += delta.get("content") or ""
        self.reasoning += delta.get("reasoning_content") or ""


@asynccontextmanager
async def asked(house: House) -> AsyncIterator[Reader]:
    body = {"model": AGENT, "messages": [user("Hello")], "stream": True}
    async with asyncio.timeout(30), house.http.post("/v1/chat/completions", json=body) as response:
        yield Reader(response)


async def test_the_same_text_goes_on_without_duplication(scene: Scene) -> None:
    async with asked(scene.house) as reader:
        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "One two ')
        await reader.until("One two ")
        pen.cut()

        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "One')
        pen.more(" two thr")
        await reader.until("One two thr")
        pen.cut()

        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "One two three."}')
        pen.end()
        await reader.to_the_end()
    assert (reader.content, reader.is_done) == ("One two three.", True)
    assert (await scene.house.kinds(reader.session_id)).count("Replied") == 1


async def test_another_text_ends_the_stream_with_an_error_and_the_session_completes(scene: Scene) -> None:
    async with asked(scene.house) as reader:
        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "Oslo, I think')
        await reader.until("Oslo, I think")
        pen.cut()

        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "Oslo')
        pen.more(" or ")
        # The stream ends as soon as the texts part, while the new one is still being written.
        await reader.to_the_end()
        assert reader.content == "Oslo, I think"
        assert not reader.is_done
        assert {**reader.error, "message": ""} == {
            "message": "", "type": "server_error", "param": None, "code": "step_restarted",
        }  # fmt: skip
        assert f"/v1/sessions/{reader.session_id}" in reader.error["message"]
        assert (await scene.house.session(reader.session_id))["state"] == "RESEARCHING"
        pen.end('Bergen."}')
    shown = await scene.house.until(reader.session_id, "COMPLETED")
    assert shown["result"] == "Oslo or Bergen."


async def test_the_openai_client_raises_when_the_text_cannot_go_on(scene: Scene) -> None:
    messages: list[Any] = [user("Hello")]
    stream = await scene.house.client.chat.completions.create(model=AGENT, messages=messages, stream=True)
    pen = await scene.model.asked()
    pen.call("finalanswertool", '{"answer": "Yes')
    heard = ""
    async with asyncio.timeout(30):
        while heard != "Yes":
            heard += (await anext(stream)).choices[0].delta.content or ""
        pen.cut()
        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "No"}')
        pen.end()
        with pytest.raises(openai.APIError) as raised:
            async for _ in stream:
                pass
    assert raised.value.code == "step_restarted"


async def test_a_text_that_ends_before_what_was_sent_is_another_text(scene: Scene) -> None:
    async with asked(scene.house) as reader:
        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "Oslo, I think')
        await reader.until("Oslo, I think")
        pen.cut()
        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "Oslo"}')
        pen.end()
        await reader.to_the_end()
    assert reader.error["code"] == "step_restarted"
    assert (await scene.house.session(reader.session_id))["result"] == "Oslo"


async def test_a_question_after_half_an_answer_is_another_text(scene: Scene) -> None:
    async with asked(scene.house) as reader:
        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "Oslo')
        await reader.until("Oslo")
        pen.cut()
        pen = await scene.model.asked()
        pen.call("clarificationtool", '{"questions": ["Which city?"]}')
        pen.end()
        await reader.to_the_end()
    assert reader.error["code"] == "step_restarted"
    shown = await scene.house.session(reader.session_id)
    assert shown["questions"][0]["text"] == "Which city?"


async def test_a_step_that_had_shown_no_content_simply_goes_on(scene: Scene) -> None:
    async with asked(scene.house) as reader:
        pen = await scene.model.asked()
        pen.write(reasoning_content="Perhaps Oslo. ")
        pen.write(content=" \n")
        pen.call("finalanswertool", '{"reasoning": "Oslo", "ans')
        pen.cut()
        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "Bergen."}')
        pen.end()
        await reader.to_the_end()
    assert (reader.content, reader.is_done) == ("Bergen.", True)
    assert reader.reasoning == "Perhaps Oslo. "


async def test_words_go_on_after_a_restart_where_they_are_the_same(scene: Scene) -> None:
    async with asked(scene.house) as reader:
        pen = await scene.model.asked()
        pen.write(content="Let me ")
        await reader.until("Let me ")
        pen.cut()
        pen = await scene.model.asked()
        pen.write(content="Let me see. ")
        pen.call("clocktool", "{}")
        pen.end()
        await reader.until("Let me see. ")
        pen = await scene.model.asked()
        pen.write(content="It is ")
        await reader.until("Let me see. \n\nIt is ")
        pen.cut()
        pen = await scene.model.asked()
        pen.write(content="It is noon.")
        pen.end()
        await reader.to_the_end()
    assert (reader.content, reader.is_done) == ("Let me see. \n\nIt is noon.", True)


async def test_words_that_were_said_before_a_restart_and_not_after_it_end_the_stream(scene: Scene) -> None:
    async with asked(scene.house) as reader:
        pen = await scene.model.asked()
        pen.write(content="Let me see. ")
        await reader.until("Let me see. ")
        pen.cut()
        pen = await scene.model.asked()
        pen.call("clocktool", "{}")
        pen.end()
        pen = await scene.model.asked()
        pen.write(content="It is noon.")
        await reader.to_the_end()
        assert (reader.content, reader.error["code"]) == ("Let me see. ", "step_restarted")
        pen.end()
    shown = await scene.house.until(reader.session_id, "COMPLETED")
    assert shown["result"] == "It is noon."


async def test_a_client_that_does_not_stream_gets_the_answer_that_was_finished(scene: Scene) -> None:
    talk = asyncio.create_task(chat(scene.house, [user("Hello")]))
    pen = await scene.model.asked()
    pen.call("finalanswertool", '{"answer": "Oslo, I think')
    pen.cut()
    pen = await scene.model.asked()
    pen.call("finalanswertool", '{"answer": "Bergen."}')
    pen.end()
    assert content(await talk) == "Bergen."


async def test_on_the_event_stream_a_higher_fence_replaces_the_text(scene: Scene) -> None:
    async with asked(scene.house) as reader:
        pen = await scene.model.asked()
        pen.call("finalanswertool", '{"answer": "Oslo')
        await reader.until("Oslo")
        async with scene.house.http.get(f"/v1/sessions/{reader.session_id}/events") as response:
            events, seen = sse(response), list[Sse]()
            async with asyncio.timeout(30):
                while not seen or seen[-1].event != "delta.snapshot":
                    seen.append(await anext(events))
                pen.cut()
                pen = await scene.model.asked()
                pen.call("finalanswertool", '{"answer": "Ber')
                pen.end('gen."}')
                seen += [event async for event in events]
    snapshot = next(event.json for event in seen if event.event == "delta.snapshot")
    assert snapshot["content"] == "Oslo"
    text, fence = snapshot["content"], snapshot["fence"]
    for event in seen:
        if event.event == "delta" and event.json["kind"] == "content" and event.json["fence"] >= fence:
            assert event.json["after"] == snapshot["after"]
            if event.json["fence"] > fence:
                text, fence = "", event.json["fence"]
            text = text[: event.json["offset"]] + event.json["text"]
    assert fence > snapshot["fence"]
    assert text == "Bergen."
    ids = [int(event.id) for event in seen if event.id]
    assert ids == list(range(1, len(ids) + 1))
