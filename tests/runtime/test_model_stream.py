"""Listening to a model: what is shown while it is written, as what, and what is kept back until it is known."""

import asyncio
import json
from dataclasses import replace
from typing import Any, Literal

import pytest

from longhouse.agents.strategies.protocol import Reply, Request
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.agents.strategies.tool_calling import SGRToolCallingAgent, ToolCallingAgent
from longhouse.agents.template import Abilities, LLMPolicy, Template, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.errors import ProviderError
from longhouse.journal.events import ProviderCall, Replied, Sampling, Usage
from longhouse.journal.session import Session
from longhouse.models.protocol import Delta
from longhouse.models.scripted import Say, ScriptedModel, call, calls, say
from longhouse.runtime.bus.items import Fragment, Item, JournalGrew, SubagentsChanged
from longhouse.runtime.bus.local import Bus, Subscription
from longhouse.runtime.steps import model_stream
from longhouse.runtime.steps.model_stream import listen
from longhouse.store.database import Database
from longhouse.tools.builtin.clock import ClockTool
from longhouse.tools.builtin.dialogue import FinalAnswerTool
from longhouse.tools.builtin.planning import ReasoningTool
from server_helpers import folded, opened, prompted, returned, started, used

CLOCK, REASONING, ANSWER = ClockTool.described(), ReasoningTool.described(), FinalAnswerTool.described()
NOON = call("finalanswertool", answer="Noon.", status="completed")
AGENTS = {one.name: one() for one in (ToolCallingAgent, SGRToolCallingAgent, SGRAgent)}
Shown = list[tuple[Literal["content", "reasoning", "retry"], str]]


def request_of(agent: str, *offered: Tool, session: Session | None = None, can: Abilities | None = None) -> Request:
    template = Template(
        name="t",
        base_agent_class=agent,
        tool_policy=ToolPolicy(allowlist=()),
        llm_policy=LLMPolicy(can=can or Abilities()),
    )
    return AGENTS[agent].propose(session or begun(), template, offered)


def begun(*new: Any) -> Session:
    return folded(opened(), prompted("What time is it?"), started(2), *new)


async def heard(db: Database, request: Request, says: Say, *, shows_answer: bool = True) -> tuple[Shown, Reply]:
    """What followers see of this reply, and the reply."""
    bus, session = Bus(), begun()
    with bus.subscribed(session.id) as subscription:
        reply = await listen(
            db, bus, ScriptedModel([says]), request, session=session, fence=1, shows_answer=shows_answer
        )
        bus.publish(session.id, JournalGrew())
        items = await subscription.take()
    return [(item.kind, item.text) for item in items if isinstance(item, Fragment)], reply


def structured(tool: str, **arguments: Any) -> Say:
    return say(json.dumps({"reasoning_steps": ["so"], "function": {"tool_name_discriminator": tool, **arguments}}))


@pytest.mark.parametrize("forced", [True, False])
async def test_text_beside_a_call_is_content(db: Database, forced: bool) -> None:
    request = request_of("ToolCallingAgent", CLOCK, ANSWER, can=Abilities(forced_tool_choice=forced))
    shown, reply = await heard(db, request, calls(say("Let me look. "), call("clocktool")))
    assert shown == [("content", "Let me look. ")]
    assert (reply.text, reply.streamed_chars, len(reply.calls)) == ("Let me look. ", len("Let me look. "), 1)
    shown, _ = await heard(db, request, calls(say("Now I know. "), NOON))
    assert shown == [("content", "Now I know. "), ("content", "\n\nNoon.")]
    shown, reply = await heard(db, request, calls(say(" \n"), NOON))
    assert (shown, reply.streamed_chars) == ([("content", "Noon.")], 2), "there was nothing to read"


@pytest.mark.parametrize("forced", [True, False])
async def test_text_is_content_as_it_comes_although_a_call_may_follow(db: Database, forced: bool) -> None:
    can = Abilities(forced_tool_choice=forced)
    request = request_of("ToolCallingAgent", CLOCK, ANSWER, can=can)
    shown, reply = await heard(db, request, Say(text="It is noon.", reasoning="Hm.", chunk=6))
    assert shown == [("reasoning", "Hm."), ("content", "It is "), ("content", "noon.")]
    assert (reply.text, reply.streamed_chars) == ("It is noon.", 11)
    thought = begun(Replied(phase="reasoning", thought="So."))
    action = request_of("SGRToolCallingAgent", CLOCK, REASONING, ANSWER, session=thought, can=can)
    assert action.phase == "action"
    shown, reply = await heard(db, action, Say(text="It is noon.", chunk=6))
    assert (shown, reply.streamed_chars) == ([("content", "It is "), ("content", "noon.")], 11)


async def test_text_is_kept_back_only_where_a_format_was_asked_for(db: Database) -> None:
    for asked, expected in (("json_object", []), ("text", [("content", "{}")])):
        sampling = Sampling(response_format=json.dumps({"type": asked}))
        session = folded(opened(), prompted("What time is it?", sampling=sampling), started(2))
        shown, reply = await heard(db, request_of("ToolCallingAgent", CLOCK, session=session), say("{}"))
        assert (shown, reply.text, reply.streamed_chars) == (expected, "{}", 2 * len(expected))
        without = request_of("ToolCallingAgent", session=session)
        assert (await heard(db, without, say("{}")))[0] == [("content", "{}")], "no call can follow"


async def test_text_after_a_call_has_begun_is_shown_as_it_comes(db: Database) -> None:
    request = request_of("ToolCallingAgent", CLOCK)
    bus, session = Bus(), begun()

    class Backwards(ScriptedModel):
        """Calls first and talks then, as some models do."""

        async def stream(self, body: Any) -> Any:
            said = [delta async for delta in super().stream(body)]
            for delta in sorted(said, key=lambda one: not one.calls):
                yield delta

    with bus.subscribed(session.id) as subscription:
        model = Backwards([Say(text="I look.", calls=call("clocktool").calls, chunk=4)])
        await listen(db, bus, model, request, session=session, fence=1)
        items = await subscription.take()
    heard = [(item.kind, item.text) for item in items if isinstance(item, Fragment)]
    assert heard == [("content", "I lo"), ("content", "ok.")]


async def test_followers_are_told_what_came_before_a_reply_and_all_its_words_before_what_follows(db: Database) -> None:
    bus, session = Bus(), begun()
    told: list[list[Item]] = []

    async def follow(subscription: Subscription) -> None:
        while True:
            told.append(await subscription.take())

    class Whole(ScriptedModel):
        """Begins to write a turn of the event loop after it was asked; all of it comes at once."""

        async def stream(self, body: Any) -> Any:
            await asyncio.sleep(0)
            told.append([])
            yield Delta(text="It is noon.", finish="stop")

    with bus.subscribed(session.id) as subscription:
        following = asyncio.create_task(follow(subscription))
        await asyncio.sleep(0)
        middle = SubagentsChanged(more_follow=True)
        bus.publish(session.id, middle)
        await listen(db, bus, Whole([]), request_of("ToolCallingAgent"), session=session, fence=1)
        assert told == [[middle], [], [Fragment(session.head, 1, "content", 0, "It is noon.")]]
        following.cancel()


async def test_without_tools_text_is_the_answer_as_it_comes(db: Database) -> None:
    for agent in ("ToolCallingAgent", "SGRToolCallingAgent", "SGRAgent"):
        shown, _ = await heard(db, request_of(agent), Say(text="It is noon.", chunk=6))
        assert shown == [("content", "It is "), ("content", "noon.")], agent


async def test_a_thought_in_words_is_reasoning_as_it_comes(db: Database) -> None:
    request = request_of("SGRToolCallingAgent", CLOCK, REASONING, ANSWER)
    shown, _ = await heard(db, request, Say(text="First, the clock.", chunk=7))
    assert shown == [("reasoning", "First, "), ("reasoning", "the clo"), ("reasoning", "ck.")]


async def test_an_answer_is_shown_as_it_is_written_in_every_strategy(db: Database) -> None:
    pieces: Shown = [("content", "No"), ("content", "on.")]
    thought = begun(Replied(phase="reasoning"), used("1-reasoning", tool="reasoningtool"), returned("1-reasoning"))
    chunked = Say(calls=NOON.calls, chunk=len('{"answer":"No'))
    for agent, session in (("ToolCallingAgent", begun()), ("SGRToolCallingAgent", thought)):
        request = request_of(agent, CLOCK, REASONING, ANSWER, session=session)
        shown, _ = await heard(db, request, chunked)
        assert shown == pieces, agent
    text = structured("finalanswertool", answer="Noon.").text
    shown, _ = await heard(db, request_of("SGRAgent", CLOCK, ANSWER), Say(text=text, chunk=text.index("on.")))
    assert shown == pieces


async def test_an_answer_that_will_be_refused_is_not_shown(db: Database) -> None:
    reasoning = request_of("SGRToolCallingAgent", CLOCK, REASONING, ANSWER)
    assert reasoning.only == "reasoningtool"
    approved_first = replace(ANSWER, needs_approval=True)
    for request in (
        reasoning,
        request_of("ToolCallingAgent", CLOCK),
        request_of("ToolCallingAgent", CLOCK, approved_first),
    ):
        shown, reply = await heard(db, request, NOON)
        assert shown == []
        assert reply.calls == (ProviderCall(id="call_1", name="finalanswertool", arguments=NOON.calls[0].written),)
    for tools in ([CLOCK], [CLOCK, approved_first]):
        shown, _ = await heard(db, request_of("SGRAgent", *tools), structured("finalanswertool", answer="Noon."))
        assert shown == []


async def test_where_an_answer_would_be_sent_back_text_is_reasoning_at_once(db: Database) -> None:
    request = request_of("ToolCallingAgent", CLOCK, ANSWER)
    shown, reply = await heard(db, request, Say(text="It is noon.", chunk=6), shows_answer=False)
    assert shown == [("reasoning", "It is "), ("reasoning", "noon.")]
    assert reply.streamed_chars == 0
    shown, _ = await heard(db, request, NOON, shows_answer=False)
    assert shown == []


async def test_a_reply_without_end_is_given_up_and_paid_for(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(ScriptedModel):
        closed = False

        async def stream(self, body: Any) -> Any:
            try:
                while True:
                    yield Delta(text="and ", usage=Usage(total_tokens=7))
                    await asyncio.sleep(0.001)
            finally:
                self.closed = True

    monkeypatch.setattr(model_stream, "REPLY_WITHIN", 0.05)
    bus, model = Bus(), Endless([])
    with pytest.raises(ProviderError, match=r"did not end its reply within 0\.05 seconds") as late:
        await listen(db, bus, model, request_of("ToolCallingAgent"), session=begun(), fence=1)
    assert (late.value.retryable, late.value.usage, model.closed) == (True, Usage(total_tokens=7), True)
    assert bus.draft(begun().id) is None
