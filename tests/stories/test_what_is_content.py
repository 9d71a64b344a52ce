"""Content is the answer or the question, once, and nothing else; whatever a model says on the way is reasoning."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from longhouse.agents.template import Abilities, LLMPolicy, Template, ToolPolicy
from longhouse.models.scripted import Say, call, calls, say
from longhouse.runtime.bus import Bus
from longhouse.store.catalog import Catalog
from longhouse.web import access, wire
from longhouse.web.telling import Telling
from longhouse.web.turns import Turns
from support import Dictated, House, Serving, Sse, chat, dictated, sse, user

THOUGHT: dict[str, Any] = {
    "reasoning_steps": ["one"], "current_situation": "here", "plan_status": "fine", "enough_data": True,
    "remaining_steps": [], "task_completed": False,
}  # fmt: skip
TOOLS = ("clocktool", "clarificationtool", "finalanswertool")
NOON = call("finalanswertool", answer="Noon.", status="completed")


def thinker(agent: str = "ToolCallingAgent", *, tools: tuple[str, ...] = TOOLS, **can: bool) -> Template:
    return Template(
        name="thinker",
        base_agent_class=agent,
        tool_policy=ToolPolicy(allowlist=tools),
        llm_policy=LLMPolicy(can=Abilities(**can)),
    )


def hybrid(*, tools: tuple[str, ...] = TOOLS, **can: bool) -> Template:
    return thinker("SGRToolCallingAgent", tools=("reasoningtool", *tools), **can)


@dataclass
class Shown:
    """What a client has read of one stream."""

    content: str = ""
    reasoning: list[str] = field(default_factory=list)
    error: Any = None
    finish: str = ""
    session_id: str = ""

    def take(self, event: Sse) -> None:
        if event.data == "[DONE]":
            return
        if self.error is not None or "error" in event.json:
            self.error = event.json
            return
        self.session_id = event.json["model"]
        choice = event.json["choices"][0]
        self.content += choice["delta"].get("content") or ""
        if reasoning := choice["delta"].get("reasoning_content"):
            self.reasoning.append(reasoning)
        self.finish = choice["finish_reason"] or self.finish


@asynccontextmanager
async def asked(house: House) -> AsyncIterator[AsyncIterator[Sse]]:
    body = {"model": "thinker", "messages": [user("What time is it?")], "stream": True}
    async with asyncio.timeout(30), house.http.post("/v1/chat/completions", json=body) as response:
        yield sse(response)


@asynccontextmanager
async def writing(serving: Serving, model: Dictated, template: Template) -> AsyncIterator[AsyncIterator[Sse]]:
    """The stream of an agent whose model is dictated."""
    async with serving(llm_base_url=model.url, templates=[template]) as house, asked(house) as events:
        yield events


async def streamed(house: House) -> Shown:
    shown = Shown()
    async with asked(house) as events:
        async for event in events:
            shown.take(event)
    assert (shown.error, shown.finish) == (None, "stop")
    return shown


async def read_until(events: AsyncIterator[Sse], shown: Shown, *, content: str = "", reasoning: str = "") -> None:
    """Reads on until the client has exactly this."""
    while (shown.content, "".join(shown.reasoning)) != (content, reasoning):
        shown.take(await anext(events))
        assert content.startswith(shown.content), shown
        assert reasoning.startswith("".join(shown.reasoning)), shown


# Words beside calls


@pytest.mark.parametrize("forced", [True, False])
async def test_words_beside_a_call_do_not_spoil_the_answer(serving: Serving, forced: bool) -> None:
    script = [calls(say("Let me look that up. "), call("clocktool")), NOON]
    async with serving(script, templates=[thinker(forced_tool_choice=forced)]) as house:
        shown = await streamed(house)
    assert (shown.content, shown.reasoning) == ("Noon.", ["Let me look that up. "])


@pytest.mark.parametrize("forced", [True, False])
async def test_words_beside_a_question_do_not_spoil_the_question(serving: Serving, forced: bool) -> None:
    script = [calls(say("I need to know more. "), call("clarificationtool", questions=["Which city?"]))]
    async with serving(script, templates=[thinker(forced_tool_choice=forced)]) as house:
        shown = await streamed(house)
    assert (shown.content, shown.reasoning) == ("Which city?", ["I need to know more. "])


async def test_words_are_shown_as_soon_as_a_call_begins_beside_them(serving: Serving) -> None:
    async with dictated() as model, writing(serving, model, thinker()) as events:
        shown = Shown()
        pen = await model.asked()
        pen.write(content="Let me ")
        pen.write(content="look. ")
        pen.call("clocktool")
        await read_until(events, shown, reasoning="Let me look. ")
        pen.write(content="At the clock. ")
        await read_until(events, shown, reasoning="Let me look. At the clock. ")
        pen.end("{}")
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "Noon."}')
        pen.end()
        async for event in events:
            shown.take(event)
    assert (shown.content, shown.error) == ("Noon.", None)


# Words alone


@pytest.mark.parametrize(
    "template", [thinker(), thinker(forced_tool_choice=False), hybrid(), hybrid(forced_tool_choice=False)]
)
async def test_an_answer_in_words_is_told_once_and_as_content(serving: Serving, template: Template) -> None:
    answer = Say(text="It is noon, and it rains.", reasoning="Hm. ", chunk=8, delay=0.001)
    before = [call("reasoningtool", **THOUGHT)] if template.base_agent_class == "SGRToolCallingAgent" else []
    async with serving([*before, answer, *before, answer], templates=[template]) as house:
        shown = await streamed(house)
        assert shown.content == "It is noon, and it rains."
        assert "It is" not in "".join(shown.reasoning)
        assert "".join(shown.reasoning).endswith("Hm. ")
        whole = (await chat(house, [user("Again")], model="thinker"))["choices"][0]["message"]
        assert whole["content"] == "It is noon, and it rains."
        assert whole["reasoning_content"] == "".join(shown.reasoning)


@pytest.mark.parametrize("agent", ["ToolCallingAgent", "SGRToolCallingAgent", "SGRAgent"])
async def test_an_agent_without_tools_is_read_as_it_writes(serving: Serving, agent: str) -> None:
    async with dictated() as model, writing(serving, model, thinker(agent, tools=())) as events:
        shown, pen = Shown(), await model.asked()
        pen.write(content="It is ")
        await read_until(events, shown, content="It is ")
        pen.write(content="noon.")
        await read_until(events, shown, content="It is noon.")
        pen.end()
        async for event in events:
            shown.take(event)
    assert (shown.content, shown.error) == ("It is noon.", None)


# Answers that are none


async def test_an_answer_before_the_reasoning_is_refused_and_not_shown(serving: Serving) -> None:
    early = call("finalanswertool", answer="Too early", status="completed")
    async with serving([early, call("reasoningtool", **THOUGHT), NOON], templates=[hybrid()]) as house:
        shown = await streamed(house)
    assert shown.content == "Noon."


async def test_an_answer_by_a_tool_that_is_not_offered_is_not_shown(serving: Serving) -> None:
    early = call("finalanswertool", answer="Not like this", status="completed")
    policy = ToolPolicy(allowlist=("clocktool",), denylist=("finalanswertool",))
    async with serving([early, say("Noon.")], templates=[Template(name="thinker", tool_policy=policy)]) as house:
        shown = await streamed(house)
    assert shown.content == "Noon."


@pytest.mark.parametrize(
    ("beside", "state"),
    [
        ({"status": "success"}, "COMPLETED"),
        ({"status": None}, "COMPLETED"),
        ({"status": "Failed."}, "FAILED"),
        ({"completed_steps": "I looked.", "reasoning": None, "status": 1}, "COMPLETED"),
    ],
)
@pytest.mark.parametrize("agent", ["ToolCallingAgent", "SGRAgent"])
async def test_what_stands_beside_an_answer_does_not_cost_the_answer(
    serving: Serving, agent: str, beside: dict[str, Any], state: str
) -> None:
    given = {"answer": "Noon.", **beside}
    reply = call("finalanswertool", **given)
    if agent == "SGRAgent":
        reply = say(json.dumps({**THOUGHT, "function": {"tool_name_discriminator": "finalanswertool", **given}}))
    async with serving([reply], templates=[thinker(agent, json_schema=False)]) as house:
        shown = await streamed(house)
        assert shown.content == "Noon."
        assert (await house.session(shown.session_id))["state"] == state


# Thoughts in words


async def test_a_thought_in_words_is_told_once(serving: Serving) -> None:
    script = [Say(text="I think aloud.", reasoning="Hm. ", chunk=5, delay=0.001), NOON] * 2
    async with serving(script, templates=[hybrid()]) as house:
        shown = await streamed(house)
        assert ("".join(shown.reasoning), shown.content) == ("Hm. I think aloud.", "Noon.")
        whole = await chat(house, [user("Again")], model="thinker")
        assert whole["choices"][0]["message"]["reasoning_content"] == "Hm. I think aloud."


async def test_the_same_thought_again_is_told_again(serving: Serving) -> None:
    thought = say("I look at the clock. ")
    async with serving([thought, call("clocktool"), thought, NOON], templates=[hybrid()]) as house:
        shown = await streamed(house)
    assert shown.reasoning == ["I look at the clock. "] * 2


async def test_a_thought_that_was_not_heard_is_told_when_it_is_recorded(serving: Serving) -> None:
    async with serving([say("I think aloud."), NOON], templates=[hybrid()]) as house:
        request = wire.ChatRequest.model_validate({"model": "thinker", "messages": [user("What time is it?")]})
        where = await Turns(house.db, Catalog(house.db)).attach(access.LOCAL, request, b"", {})
        house.app.bus.wake(where.session.id)
        await house.until(where.session.id, "COMPLETED")
        # Who comes so late hears no fragment, as if another process had done the work.
        telling = Telling(house.db, Bus(), replace(where, is_behind=True))
        async with asyncio.timeout(10):
            pieces = [piece async for batch in telling.pieces() for piece in batch]
    assert [piece.reasoning for piece in pieces if piece.reasoning] == ["I think aloud."]
    assert "".join(piece.content for piece in pieces) == "Noon."
