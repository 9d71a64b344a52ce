"""Content is what a model says to the user, as it says it; what it thinks on the way is reasoning."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import Abilities, LLMPolicy, Template, ToolPolicy
from longhouse.api import auth, wire
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.openai.turn_stream import TurnStream
from longhouse.models.scripted import Say, call, calls, say
from longhouse.runtime.bus.local import Bus, Subscription
from longhouse.runtime.inbox import Inbox
from longhouse.store.catalog.catalog import Catalog
from server_helpers import Dictated, House, Serving, Sse, assistant, chat, content, dictated, sse, user

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
async def asked(house: House, **more: Any) -> AsyncIterator[AsyncIterator[Sse]]:
    body = {"model": "thinker", "messages": [user("What time is it?")], "stream": True, **more}
    async with asyncio.timeout(30), house.http.post("/v1/chat/completions", json=body) as response:
        yield sse(response)


@asynccontextmanager
async def writing(serving: Serving, model: Dictated, template: Template) -> AsyncIterator[AsyncIterator[Sse]]:
    """The stream of an agent whose model is dictated."""
    async with serving(llm_base_url=model.url, templates=[template]) as house, asked(house) as events:
        yield events


async def streamed(house: House, **more: Any) -> Shown:
    shown = Shown()
    async with asked(house, **more) as events:
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
async def test_words_beside_a_call_stay_said(serving: Serving, forced: bool) -> None:
    script = [calls(say("Let me look that up. "), call("clocktool")), NOON]
    later = [call("finalanswertool", answer="Still noon.")]
    async with serving([*script, *later, *script, *later], templates=[thinker(forced_tool_choice=forced)]) as house:
        shown = await streamed(house)
        assert (shown.content, shown.reasoning) == ("Let me look that up. \n\nNoon.", [])
        assert (await house.session(shown.session_id))["result"] == "Noon."
        assert await resent(house, shown.content) == (shown.session_id, "Still noon.")
        whole = await chat(house, [user("What time is it?")], model="thinker")
        assert whole["choices"][0]["message"] == {"role": "assistant", "content": shown.content, "refusal": None}
        assert whole["model"] != shown.session_id
        assert await resent(house, shown.content) == (whole["model"], "Still noon.")


async def resent(house: House, heard: str) -> tuple[str, str]:
    """The session and the answer that a client gets which knows no ids and sends what it has heard."""
    talk = [user("What time is it?"), assistant(heard), user("And now?")]
    answer = await chat(house, talk, model="thinker")
    return answer["model"], content(answer)


@pytest.mark.parametrize("forced", [True, False])
async def test_words_beside_a_question_stay_said_and_the_question_is_answered(serving: Serving, forced: bool) -> None:
    first = calls(say("I need to know more. "), call("clarificationtool", questions=["Which city?"]))
    then = calls(say("Oslo, then. "), call("clocktool"))
    async with serving([first, then, NOON, NOON], templates=[thinker(forced_tool_choice=forced)]) as house:
        shown = await streamed(house)
        assert (shown.content, shown.reasoning) == ("I need to know more. \n\nWhich city?", [])
        talk = [user("What time is it?"), assistant(shown.content), user("Oslo")]
        answered = await chat(house, talk, model="thinker")
        assert (answered["model"], content(answered)) == (shown.session_id, "Oslo, then. \n\nNoon.")
        talk += [assistant(content(answered)), user("Thanks")]
        assert (await chat(house, talk, model="thinker"))["model"] == shown.session_id


async def test_words_are_read_as_they_are_written_whatever_follows_them(serving: Serving) -> None:
    async with dictated() as model, writing(serving, model, thinker()) as events:
        shown = Shown()
        pen = await model.asked()
        pen.write(content=" \n")
        pen.write(content="Let me ")
        await read_until(events, shown, content=" \nLet me ")
        pen.write(content="look. ")
        pen.call("clocktool")
        pen.write(content="At the clock.")
        await read_until(events, shown, content=" \nLet me look. At the clock.")
        pen.end("{}")
        pen = await model.asked()
        pen.write(content="Now I ")
        await read_until(events, shown, content=" \nLet me look. At the clock.\n\nNow I ")
        pen.write(content="know.")
        pen.call("finalanswertool", '{"answer": "At ')
        await read_until(events, shown, content=" \nLet me look. At the clock.\n\nNow I know.\n\nAt ")
        pen.end('noon."}')
        async for event in events:
            shown.take(event)
    assert (shown.content, shown.error) == (" \nLet me look. At the clock.\n\nNow I know.\n\nAt noon.", None)


async def test_words_that_a_reply_only_repeats_are_said_once(serving: Serving) -> None:
    answers = [calls(say("It is noon."), call("finalanswertool", answer=answer)) for answer in ("It is noon.", "It is")]
    question = calls(say("Which city?"), call("clarificationtool", questions=["Which city?"]))
    script = [Say(text=one.text, calls=one.calls, chunk=3, delay=0.001) for one in (*answers, question)]
    async with serving(script, templates=[thinker()]) as house:
        heard = [(await streamed(house)).content for _ in script]
    assert heard == ["It is noon.", "It is noon.\n\nIt is", "Which city?"]


async def test_behind_an_answer_nothing_is_said(serving: Serving) -> None:
    async with dictated() as model, writing(serving, model, thinker()) as events:
        shown, pen = Shown(), await model.asked()
        pen.write(content="So:")
        pen.call("finalanswertool", '{"answer": "Noon.')
        await read_until(events, shown, content="So:\n\nNoon.")
        pen.write(content="I hope that helps.")
        await read_until(events, shown, content="So:\n\nNoon.", reasoning="I hope that helps.")
        pen.end('"}')
        async for event in events:
            shown.take(event)
    assert (shown.content, shown.error) == ("So:\n\nNoon.", None)


async def test_who_asks_for_json_gets_json_and_nothing_before_it(serving: Serving) -> None:
    script = [calls(say("Let me look. "), call("clocktool")), Say(text='{"time": "noon"}', chunk=4)] * 2
    asks = {"response_format": {"type": "json_object"}}
    async with serving(script, templates=[thinker()]) as house:
        shown = await streamed(house, **asks)
        assert (shown.content, shown.reasoning) == ('{"time": "noon"}', ["Let me look. "])
        whole = await chat(house, [user("Again")], model="thinker", **asks)
        assert json.loads(content(whole)) == {"time": "noon"}


async def test_what_an_agent_beneath_says_is_not_said_here(serving: Serving) -> None:
    helper = replace(thinker(), name="helper", tool_policy=ToolPolicy(allowlist=("clocktool", "finalanswertool")))
    script = {
        "thinker": [calls(say("I ask somebody. "), call("agent_helper", task="Look.")), say("They say: noon.")],
        "helper": [calls(say("Nobody shall read this. "), call("clocktool")), say("It is noon, says the clock.")],
    }

    def play(body: Body) -> Say:
        return script["helper" if "Look." in str(body.messages[1]) else "thinker"].pop(0)

    boss = replace(thinker(), tool_policy=ToolPolicy(allowlist=("agent.helper", "finalanswertool")))
    async with serving(play, templates=[boss, helper]) as house:
        shown = await streamed(house)
    assert (shown.content, shown.reasoning) == ("I ask somebody. \n\nThey say: noon.", [])


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


@pytest.mark.parametrize(
    "template",
    [
        *(thinker(agent, tools=()) for agent in ("ToolCallingAgent", "SGRToolCallingAgent", "SGRAgent")),
        thinker(),
        thinker(forced_tool_choice=False),
        hybrid(),
    ],
)
async def test_an_answer_in_words_is_read_as_it_is_written(serving: Serving, template: Template) -> None:
    async with dictated() as model, writing(serving, model, template) as events:
        shown, pen = Shown(), await model.asked()
        if "reasoningtool" in (template.tool_policy.allowlist or ()):
            pen.call("reasoningtool", json.dumps(THOUGHT))
            pen.end()
            pen = await model.asked()
        pen.write(content="It is ")
        while shown.content != "It is ":
            shown.take(await anext(events))
        pen.write(content="noon.")
        while shown.content != "It is noon.":
            shown.take(await anext(events))
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
    model = LLMPolicy(can=Abilities(forced_tool_choice=False))
    thinker = Template(name="thinker", tool_policy=policy, llm_policy=model)
    async with serving([early, say("Noon.")], templates=[thinker]) as house:
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
        turns = SessionResolver(house.db, Catalog(house.db), Inbox(house.db, house.app.bus))
        where = await turns.attach(auth.LOCAL, request, b"", {})
        await house.until(where.session.id, "COMPLETED")
        # Who comes so late hears no fragment, as if another process had done the work.
        telling = TurnStream(house.db, Bus(), msgspec.structs.replace(where, is_behind=True), Subscription())
        async with asyncio.timeout(10):
            pieces = [piece async for batch in telling.pieces() for piece in batch]
    assert [piece.reasoning for piece in pieces if piece.reasoning] == ["I think aloud."]
    assert "".join(piece.content for piece in pieces) == "Noon."
