"""Where a client sees what the agent does is the template's choice."""

import json
from dataclasses import replace
from typing import Any

import pytest

from longhouse.agents.template import LLMPolicy, Streaming, Template, ToolPolicy
from longhouse.models.scripted import Say, call
from server_helpers import Serving, chat, content

SCRIPT = [call("clocktool", timezone="Mars"), call("finalanswertool", answer="Nobody knows.")]


def template(**streaming: Any) -> Template:
    policy = LLMPolicy(streaming=Streaming(**streaming))
    return Template(
        name="shower", tool_policy=ToolPolicy(allowlist=("clocktool", "finalanswertool")), llm_policy=policy
    )


async def streamed(house: Any, model: str = "shower") -> list[Any]:
    stream = await house.client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "What time is it on Mars?"}], stream=True
    )
    return [chunk async for chunk in stream]


async def test_as_tool_calls(serving: Serving) -> None:
    async with serving(SCRIPT, templates=[template(tool_activity="tool_calls")]) as house:
        chunks = await streamed(house)
        calls = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or ()]
        assert [(one.index, one.id, one.function.name) for one in calls] == [
            (0, "1-action-0", "clocktool"), (1, "2-action-0", "finalanswertool"),
        ]  # fmt: skip
        assert calls[0].function.arguments == '{"timezone":"Mars"}'
        assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_question_is_a_tool_call_too_where_calls_are_shown_as_such(serving: Serving) -> None:
    asked = call("clarificationtool", questions=["Which clock?", "Where?"])
    modes = ("tool_calls", "x_agent", "content")
    templates = [replace(template(tool_activity=mode), name=mode) for mode in modes]
    templates = [replace(one, tool_policy=ToolPolicy(allowlist=("clarificationtool",))) for one in templates]
    async with serving(lambda body: asked, templates=templates) as house:
        seen = {mode: await streamed(house, mode) for mode in modes}
        [called] = [one for chunk in seen["tool_calls"] for one in chunk.choices[0].delta.tool_calls or ()]
        assert (called.index, called.id, called.function.name) == (0, "1-action-0", "clarificationtool")
        assert json.loads(called.function.arguments) == {"questions": ["Which clock?", "Where?"]}
        for mode, chunks in seen.items():
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            assert (text, chunks[-1].choices[0].finish_reason) == ("Which clock?\nWhere?", "stop"), mode
            assert [chunk.x_agent["event"] for chunk in chunks if hasattr(chunk, "x_agent")] == [
                "accepted", "started", "waiting",
            ]  # fmt: skip


async def test_as_content_and_the_client_is_still_known_by_what_it_was_sent(serving: Serving) -> None:
    script = [*SCRIPT, call("finalanswertool", answer="Still nobody.")]
    async with serving(script, templates=[template(tool_activity="content")]) as house:
        chunks = await streamed(house)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text.startswith("ValueError: 'Mars' is not a time zone")
        assert text.endswith("\nNobody knows.")
        again = await house.client.chat.completions.create(
            model="shower",
            messages=[
                {"role": "user", "content": "What time is it on Mars?"},
                {"role": "assistant", "content": text},
                {"role": "user", "content": "And now?"},
            ],
        )
        assert again.model == chunks[0].model
        assert again.choices[0].message.content == "Still nobody."


async def test_as_content_the_same_is_told_at_once_and_as_a_stream(serving: Serving) -> None:
    script = [Say(text="On Mars?", calls=SCRIPT[0].calls), SCRIPT[1]]
    later = call("finalanswertool", answer="Still nobody.")
    async with serving([*script, later, *script], templates=[template(tool_activity="content")]) as house:
        task = {"role": "user", "content": "What time is it on Mars?"}
        whole = await chat(house, [task], model="shower")
        assert content(whole).startswith("On Mars?\n\nValueError: 'Mars' is not a time zone")
        assert content(whole).endswith("Nobody knows.")
        resent = [task, {"role": "assistant", "content": content(whole)}, {"role": "user", "content": "And now?"}]
        assert (await chat(house, resent, model="shower"))["model"] == whole["model"]
        chunks = await streamed(house)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == content(whole)


@pytest.mark.parametrize("reasoning", [True, False])
async def test_reasoning_is_sent_or_kept_back(serving: Serving, reasoning: bool) -> None:
    script = [Say(text="", reasoning="Hm.", calls=SCRIPT[1].calls)]
    async with serving(script, templates=[template(reasoning=reasoning)]) as house:
        chunks = await streamed(house)
        seen = "".join(getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks)
        assert seen == ("Hm." if reasoning else "")
