"""What sub-agents do, as chat streams tell it: causes first, nothing twice, and what is collected is not lost."""

import asyncio
from typing import Any

import pytest

from delegating_server import (
    CAST,
    SignTool,
    answer,
    appears,
    ask,
    in_steps,
    last_result,
    playing,
    question,
    results,
    session_of,
    task_of,
)
from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.models.scripted import Say, call, calls
from server_helpers import Dictated, House, Pen, Serving, content, dictated, sse

ENDINGS = ("completed", "waiting")


async def streamed(house: House, text: str, **extra: Any) -> list[Any]:
    """What the agent and its sub-agents do, as a chat stream tells it between its acceptance and its end."""
    body = {"model": "master", "stream": True, "messages": [{"role": "user", "content": text}], **extra}
    return await read(house, "/v1/chat/completions", body)


async def read(house: House, path: str, body: Any) -> list[Any]:
    async with asyncio.timeout(30), house.http.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        chunks = [event.json async for event in sse(response) if event.data != "[DONE]"]
    first, *told, last = [chunk["x_agent"] for chunk in chunks if chunk.get("x_agent", {}).get("event")]
    assert first["event"] == "accepted"
    assert last["event"] in ENDINGS
    return told


def names(told: list[Any]) -> list[str]:
    """Each event with its agent, where it is a sub-agent."""
    below = "subagent_name"
    return [f"{one[below]}: {one['event'].removeprefix('subagent_')}" if below in one else one["event"] for one in told]


def below(told: list[Any]) -> list[str]:
    return [name for name in names(told) if ": " in name]


async def asked(model: Dictated, count: int) -> dict[str, Pen]:
    """The next requests by who makes them."""
    pens = [await model.asked() for _ in range(count)]
    return {str(pen.body["messages"][0]["content"]).splitlines()[0][5:-1]: pen for pen in pens}


def hands_in(pen: Pen, text: str) -> None:
    pen.call("finalanswertool", f'{{"answer": "{text}"}}')
    pen.end()


def collects(body: Body) -> Say:
    return last_result(body) if results(body) else call("collecttool", handle="1-action-0")


def begins_then_collects(body: Body) -> Say:
    """The first turn goes on with a handle; every later one collects it."""
    begins = in_steps(ask("ann", "Count.", wait=False), answer("Begun."))
    return begins(body) if task_of(body) == "Go." else collects(body)


# Causes come before their effects


async def test_a_call_comes_before_its_delegation_and_a_completion_before_the_result(serving: Serving) -> None:
    roles = {
        "master": lambda body: last_result(body) if results(body) else ask("ann", "Count."),
        "ann": lambda body: last_result(body) if results(body) else ask("ben", "Check."),
        "ben": in_steps(call("clocktool"), answer("Right.")),
    }
    async with playing(serving, roles) as house:
        assert names(await streamed(house, "Go.")) == [
            "started", "tool_call",
            "ann: delegation", "ann: assistant_with_tools", "ann: tool",
            "ben: delegation", "ben: assistant_with_tools", "ben: tool", "ben: tool_result", "ben: completion",
            "ann: tool_result", "ann: completion",
            "tool_result", "tool_call", "tool_result",
        ]  # fmt: skip


async def test_the_order_is_that_of_the_stream_of_the_tree(serving: Serving) -> None:
    roles = {
        "master": lambda body: answer("Ok.") if results(body) else calls(ask("ann", "Go."), ask("ben", "Go.")),
        "ann": in_steps(call("clocktool"), answer("A.")),
        "ben": in_steps(call("clocktool"), call("clocktool"), answer("B.")),
    }
    async with playing(serving, roles) as house:
        told = await streamed(house, "Go.", chat_id="c")
        root = await session_of(house.db, "master", "root")
        async with house.http.get(f"/v1/sessions/{root}/events?tree=true&deltas=false") as response:
            tree = [event async for event in sse(response)]
        assert sorted(below(told)) == sorted(below([one.json for one in tree if one.event.startswith("subagent_")]))
        for name in ("ann", "ben"):
            mine = [f"{name}: {one}" for one in ("delegation", "completion")]
            places = [names(told).index(one) for one in mine]
            call_, result = (
                next(n for n, one in enumerate(told) if one["event"] == event and one["tool"] == f"agent.{name}")
                for event in ("tool_call", "tool_result")
            )
            assert call_ < places[0] < places[1] < result


# After a question nothing is told twice


def ann_asks(body: Body) -> Say:
    asks = in_steps(call("clocktool"), question("Which?"))
    return answer("Found.") if task_of(body) == "Blue." else asks(body)


ASKS: dict[str, Any] = {
    "master": lambda body: last_result(body) if results(body) else ask("ann", "Find it."),
    "ann": ann_asks,
}
UNTIL_ASKED = ["ann: delegation", "ann: assistant_with_tools", "ann: tool", "ann: tool_result"]


@pytest.mark.parametrize("whole", [False, True])
async def test_after_an_answer_only_what_is_new_is_told(serving: Serving, whole: bool) -> None:
    """Also to a client that resends its conversation."""
    async with playing(serving, ASKS) as house:
        named = {} if whole else {"chat_id": "c"}
        assert below(await streamed(house, "Go.", **named)) == UNTIL_ASKED
        said = [("user", "Go."), ("assistant", "ann: Which?"), ("user", "Blue.")]
        more = {"messages": [{"role": role, "content": text} for role, text in said]} if whole else {}
        told = await streamed(house, "Blue.", **named, **more)
        assert names(told) == ["ann: completion", "tool_result", "tool_call", "tool_result"]


async def test_an_answer_that_is_sent_again_is_told_the_same_of_those_beneath(serving: Serving) -> None:
    async with playing(serving, ASKS) as house:
        await streamed(house, "Go.", chat_id="c")
        house.http.headers["Idempotency-Key"] = "k"
        for _ in range(2):
            assert below(await streamed(house, "Blue.", chat_id="c")) == ["ann: completion"]


async def test_an_answer_on_the_old_path_tells_only_what_is_new(serving: Serving) -> None:
    async with playing(serving, ASKS) as house:
        await streamed(house, "Go.", chat_id="c")
        root = await session_of(house.db, "master", "root")
        told = await read(house, f"/agents/{root}/provide_clarification", {"clarifications": "Blue."})
        assert below(told) == ["ann: completion"]


async def test_an_answer_to_the_agent_at_the_top_does_not_tell_again_what_others_did_before(serving: Serving) -> None:
    def master(body: Body) -> Say:
        return answer("Ok.") if task_of(body) == "Blue." else in_steps(ask("ann", "Count."), question("Which?"))(body)

    async with playing(serving, {"master": master, "ann": in_steps(answer("Three."))}) as house:
        assert below(await streamed(house, "Go.", chat_id="c")) == ["ann: delegation", "ann: completion"]
        assert names(await streamed(house, "Blue.", chat_id="c")) == ["tool_call", "tool_result"]


async def test_an_answer_while_others_work_tells_how_that_work_goes_on(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        first = asyncio.create_task(streamed(house, "Go.", chat_id="c"))
        pen = await model.asked()
        for index, name in enumerate(("ann", "ben")):
            pen.call(f"agent_{name}", '{"task": "Go on."}', index=index)
        pen.end()
        pens = await asked(model, 2)
        pens["ann"].call("clarificationtool", '{"questions": ["Which?"]}')
        pens["ann"].end()
        await house.until(await session_of(house.db, "ann"), "WAITING_FOR_CLARIFICATION")
        pens["ben"].call("agent_cem", '{"task": "Count."}')
        pens["ben"].end()
        cem = await model.asked()
        second = asyncio.create_task(streamed(house, "Blue.", chat_id="c"))
        hands_in(await model.asked(), "Blue.")
        hands_in(cem, "Three.")
        for said in ("Ok.", "Done."):
            hands_in(await model.asked(), said)
        told = await second
        assert sorted(below(told)) == ["ann: completion", "ben: completion", "ben: tool_result", "cem: completion"]
        [heard] = [one for one in told if one["event"] == "subagent_tool_result"]
        assert (heard["name"], heard["content"]) == ("agent.cem", "Three."), "its call was told before"
        assert "ben: tool" in below(await first)


async def test_what_others_do_while_a_person_thinks_is_told_with_the_answer(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        first = asyncio.create_task(streamed(house, "Go.", chat_id="c"))
        pen = await model.asked()
        pen.call("agent_ann", '{"task": "Count.", "wait": false}')
        pen.end()
        pens = await asked(model, 2)
        pens["master"].call("clarificationtool", '{"questions": ["Which?"]}')
        pens["master"].end()
        assert below(await first) == ["ann: delegation"]
        hands_in(pens["ann"], "Three.")
        await house.until(await session_of(house.db, "ann"), "COMPLETED")
        second = asyncio.create_task(streamed(house, "Blue.", chat_id="c"))
        hands_in(await model.asked(), "Ok.")
        assert below(await second) == ["ann: completion"]


# What is collected


async def test_what_a_later_turn_collects_is_told_on_its_stream(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        first = asyncio.create_task(streamed(house, "Go.", chat_id="c"))
        pen = await model.asked()
        pen.call("agent_ann", '{"task": "Count.", "wait": false}')
        pen.end()
        pens = await asked(model, 2)
        hands_in(pens["master"], "Begun.")
        assert below(await first) == ["ann: delegation"]
        # Between the turns: nobody was told of it.
        pens["ann"].call("clocktool")
        pens["ann"].end()
        ann = await model.asked()
        second = asyncio.create_task(streamed(house, "Now?", chat_id="c"))
        pen = await model.asked()
        pen.call("collecttool", '{"handle": "1-action-0"}')
        pen.end()
        root = await session_of(house.db, "master", "root")
        await house.until(root, "WAITING_FOR_AGENT")
        hands_in(ann, "Three.")
        pen = await model.asked()
        hands_in(pen, "It is three.")
        told = await second
        assert below(told) == ["ann: assistant_with_tools", "ann: tool", "ann: tool_result", "ann: completion"]
        assert names(told)[-4:] == ["ann: completion", "tool_result", "tool_call", "tool_result"]
        assert {one["depth"] for one in told if "subagent_name" in one} == {1}


async def test_work_that_ended_between_the_turns_is_told_once_it_is_collected(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        first = asyncio.create_task(streamed(house, "Go.", chat_id="c"))
        pen = await model.asked()
        pen.call("agent_ann", '{"task": "Count.", "wait": false}')
        pen.end()
        pens = await asked(model, 2)
        hands_in(pens["master"], "Begun.")
        await first
        hands_in(pens["ann"], "Three.")
        await house.until(await session_of(house.db, "ann"), "COMPLETED")
        for expected in (["ann: completion"], []):
            turn = asyncio.create_task(streamed(house, "Now?", chat_id="c"))
            pen = await model.asked()
            pen.call("collecttool", '{"handle": "1-action-0"}')
            pen.end()
            pen = await model.asked()
            hands_in(pen, "It is three.")
            assert below(await turn) == expected, "what was told on one stream is not told on the next"


async def test_the_result_of_a_collected_task_belongs_to_the_turn_that_collects_it(serving: Serving) -> None:
    roles = {
        "master": begins_then_collects,
        "ann": lambda body: answer("Three.") if task_of(body) == "Yes." else question("Shall I?"),
    }
    async with playing(serving, roles) as house:
        root = (await house.say("Go.", model="master", chat_id="c"))["model"]
        await appears(house.db, "SELECT id FROM sessions WHERE agent = 'ann' AND state = 'WAITING_FOR_CLARIFICATION'")
        assert content(await house.say("Now?", model="master", chat_id="c")) == "ann: Shall I?"
        assert below(await streamed(house, "Yes.", chat_id="c")) == ["ann: completion"]
        journal = await house.journal(root)
        traces = {one.event.call: one.trace for one in journal if isinstance(one.event, events.Called)}
        assert len(set(traces.values())) == 2
        assert {one.event.call: one.trace for one in journal if isinstance(one.event, events.Returned)} == traces


# Which question is the oldest


async def test_the_question_that_was_asked_first_is_the_oldest_whatever_its_agent_did_since(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        asking = asyncio.create_task(house.say("Go.", model="master", chat_id="c"))
        pen = await model.asked()
        for index, name in enumerate(("ann", "ben")):
            pen.call(f"agent_{name}", '{"task": "Ask."}', index=index)
        pen.end()
        pens = await asked(model, 2)
        pens["ann"].call("clarificationtool", '{"questions": ["First?"]}', index=0)
        pens["ann"].call("agent_cem", '{"task": "Count."}', index=1)
        pens["ann"].end()
        cem = await model.asked()
        pens["ben"].call("clarificationtool", '{"questions": ["Second?"]}')
        pens["ben"].end()
        await house.until(await session_of(house.db, "ben"), "WAITING_FOR_CLARIFICATION")
        hands_in(cem, "Three.")
        said = await asking
        assert content(said) == "ann: First?"
        ages = await house.db.rows("SELECT agent FROM sessions WHERE agent IN ('ann', 'ben') ORDER BY updated_at")
        assert [row["agent"] for row in ages] == ["ben", "ann"], "Ann has heard from Cem since"
        assert [one["text"] for one in (await house.session(said["model"]))["questions"]] == ["First?", "Second?"]
