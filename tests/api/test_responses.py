"""The Responses API in OpenAI's shapes: objects, items, events and their order, parameters, errors."""

import asyncio
import base64
from typing import Any

import openai
import pydantic
import pytest
from response_helpers import ask, ended, get, resumed, said, streamed, text_of, types_of
from test_openai_wire import PIXEL

from longhouse.models.scripted import Say, call, say
from server_helpers import AGENT, Serving, dictated

ANSWER = call("finalanswertool", answer="Hello, Ada. How are you today?")
LOOK = Say(text="Let me look. ", reasoning="Hm. ", calls=call("clocktool").calls)
MESSAGE = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
           "output_item.done"]  # fmt: skip


def without_repeats(kinds: list[str]) -> list[str]:
    return [kind for before, kind in zip([None, *kinds], kinds, strict=False) if kind != before]


async def test_a_response_has_the_shape_that_clients_expect(serving: Serving) -> None:
    async with serving([LOOK, ANSWER]) as house:
        answer = await said(house, "Hello", metadata={"for": "Ada"}, instructions="Be kind.", temperature=0.5)
        assert answer["object"] == "response"
        assert (answer["status"], answer["error"], answer["incomplete_details"]) == ("completed", None, None)
        assert (answer["metadata"], answer["instructions"]) == ({"for": "Ada"}, "Be kind.")
        assert (answer["model"], answer["temperature"]) == (AGENT, 0.5)
        assert types_of(answer) == ["reasoning", "message", "mcp_call", "message"]
        look, work = answer["output"][1], answer["output"][2]
        assert look["content"][0]["text"] == "Let me look. "
        assert (work["name"], work["status"], work["server_label"]) == ("clocktool", "completed", "longhouse")
        assert text_of(answer) == "Let me look. Hello, Ada. How are you today?"
        assert answer["usage"]["total_tokens"] == answer["usage"]["input_tokens"] + answer["usage"]["output_tokens"] > 0
        assert "user" not in answer
        assert "Be kind." in str(house.model and house.model.requests[0]["messages"][0])
        assert (await get(house, f"/v1/responses/{answer['id']}"))[1] == answer


async def test_a_stream_has_the_events_of_openai_in_their_order(serving: Serving) -> None:
    async with serving([LOOK, ANSWER]) as house, streamed(house) as reader:
        await reader.to_the_end()
        assert reader.numbers == list(range(len(reader.events)))
        assert without_repeats(reader.kinds) == [
            "created", "in_progress",
            "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
            "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
            *MESSAGE,
            "output_item.added", "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done",
            "mcp_call.completed", "output_item.done",
            *MESSAGE,
            "completed",
        ]  # fmt: skip
        assert reader.text == text_of(reader.last)
        assert reader.last == (await get(house, f"/v1/responses/{reader.id}"))[1]


async def test_text_is_shown_while_it_is_written(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house, streamed(house) as reader:
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "One two three four five six ')
        await reader.until("response.output_text.delta", "five six ")
        pen.more('seven."}')
        pen.end()
        await reader.to_the_end()
        assert reader.text == "One two three four five six seven."
