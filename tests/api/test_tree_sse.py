"""GET /v1/sessions/{id}/events?tree=true: a session and its sub-agents as one stream, read once and in order."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from attack_helpers import leaves_no_trace, refusal

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
    session_of,
)
from longhouse.agents.strategies.protocol import Body
from longhouse.api.sessions.sse import TreeCursor
from longhouse.models.scripted import Say, call, calls, say
from server_helpers import House, Serving, Sse, dictated, sse

NAMED = {
    "subagent_delegation": {"task"},
    "subagent_assistant_with_tools": {"content", "tool_calls"},
    "subagent_tool": {"tool", "arguments", "call_id"},
    "subagent_tool_result": {"tool_call_id", "name", "content"},
    "subagent_completion": {"response", "status"},
}
ALWAYS = {"role", "subagent_name", "chat_id", "timestamp", "agent", "session_id", "trace_id", "depth"}


def in_turn(*says: Any) -> Any:
    """Replies by step, each a reply or a role."""
    return lambda body: _played(in_steps(*says)(body), body)


def _played(reply: Any, body: Body) -> Say:
    said = reply(body) if callable(reply) else reply
    assert isinstance(said, Say)
    return said


TWO_DEEP = {
    "master": in_turn(ask("analytic", "Count."), last_result),
    "analytic": in_steps(calls(say("I look. "), call("clocktool")), ask("ann", "Check."), answer("Three.")),
    "ann": in_steps(answer("Right.")),
}


@asynccontextmanager
async def followed(house: House, session_id: str, after: str = "", **query: str) -> AsyncIterator[AsyncIterator[Sse]]:
    headers = {"Last-Event-ID": after} if after else {}
    path = f"/v1/sessions/{session_id}/events"
    params = {"tree": "true", "deltas": "false", **query}
    async with asyncio.timeout(30), house.http.get(path, headers=headers, params=params) as response:
        assert response.status == 200, await response.text()
        yield sse(response)


async def streamed(house: House, session_id: str, after: str = "", **query: str) -> list[Sse]:
    async with followed(house, session_id, after, **query) as stream:
        return [event async for event in stream]


async def until(stream: AsyncIterator[Sse], event: str) -> list[Sse]:
    """What comes up to and including the next event of this name."""
    read = []
    async for one in stream:
        read.append(one)
        if one.event == event:
            return read
    raise AssertionError(f"the stream ended without {event}: {names(read)}")


def names(events: list[Sse]) -> list[str]:
    return [event.event for event in events]


def below(events: list[Sse]) -> list[Any]:
    return [event.json for event in events if event.event.startswith("subagent_")]


async def test_what_sub_agents_do_is_told_by_name_among_the_facts_of_the_session(serving: Serving) -> None:
    async with playing(serving, TWO_DEEP) as house:
        said = await house.say("Go.", model="master", chat_id=12345)
        events = await streamed(house, said["model"])
        assert names(events) == [
            "Opened", "Prompted", "Started", "Replied", "Called",
            "subagent_delegation", "subagent_assistant_with_tools", "subagent_tool", "subagent_tool_result",
            "subagent_assistant_with_tools", "subagent_tool",
            "subagent_delegation", "subagent_completion", "subagent_tool_result", "subagent_completion",
            "Returned", "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip
        assert [event.json["seq"] for event in events if "seq" in event.json] == list(range(1, 11))
        for event in events:
            if event.event in NAMED:
                assert NAMED[event.event] | ALWAYS <= set(event.json)
                assert event.json["role"] == event.json["event"] == event.event
                assert (event.json["chat_id"], event.json["subagent_name"]) == ("12345", event.json["agent"])
        assert len({event.id for event in events}) == len(events)
        [count, _, used, seen, *_, check, right, heard, three] = below(events)
        assert (count["agent"], count["depth"], count["task"]) == ("analytic", 1, "Count.")
        assert (check["agent"], check["depth"], check["task"]) == ("ann", 2, "Check.")
        assert (used["tool"], seen["name"], used["call_id"]) == ("clocktool", "clocktool", seen["tool_call_id"])
        assert (heard["name"], heard["content"]) == ("agent.ann", "Right.")
        assert [(one["response"], one["status"]) for one in (right, three)] == [
            ("Right.", "completed"), ("Three.", "completed")
        ]  # fmt: skip
        assert count["session_id"] == await session_of(house.db, "analytic")
        assert {one["trace_id"] for one in below(events)} == {events[0].json["trace_id"]}
        thought = below(events)[1]
        assert thought["content"] == "I look. "
        assert thought["tool_calls"] == [
            {"id": used["call_id"], "type": "function", "function": {"name": "clocktool", "arguments": "{}"}}
        ]


async def test_from_any_id_the_stream_goes_on_without_loss_or_repeat_also_after_a_restart(serving: Serving) -> None:
    async with playing(serving, TWO_DEEP) as house:
        session_id = (await house.say("Go.", model="master"))["model"]
        await house.say("Again.", model=session_id)
        whole = await streamed(house, session_id)
        assert names(whole).count("subagent_delegation") == 4
        assert len({one["trace_id"] for one in below(whole)}) == 2
    async with playing(serving, TWO_DEEP) as house:
        assert await streamed(house, session_id, "0") == whole
        async with house.http.get(f"/v1/sessions/{session_id}/events?tree=true&after={whole[7].id}") as response:
            assert [event async for event in sse(response)] == whole[8:]
        for place, event in enumerate(whole):
            assert await streamed(house, session_id, event.id) == whole[place + 1 :], event.event
        path, places = f"/v1/sessions/{session_id}/events?after=now", {}
        for is_tree in ("true", "false"):
            async with house.http.get(f"{path}&tree={is_tree}") as response:
                [places[is_tree]] = re.findall(r"^id: (.*)$", await response.text(), re.MULTILINE)
        assert places["false"] == str((await house.session(session_id))["head"])
        await house.say("And again.", model=session_id)
        later = await streamed(house, session_id, places["true"])
        assert [one.json for one in later] == [one.json for one in (await streamed(house, session_id))[len(whole) :]]


async def test_without_tree_the_ids_are_plain_seqs_and_sub_agents_are_not_told_of(serving: Serving) -> None:
    async with playing(serving, TWO_DEEP) as house:
        session_id = (await house.say("Go.", model="master"))["model"]
        for query in ({}, {"tree": "false"}):
            path = f"/v1/sessions/{session_id}/events"
            async with house.http.get(path, params=query) as response:
                assert [event.id async for event in sse(response)] == [str(seq) for seq in range(1, 11)]


async def test_a_place_in_a_tree_must_be_one_of_that_tree(serving: Serving) -> None:
    async with playing(serving, TWO_DEEP) as house:
        one, two = [(await house.say("Go.", model="master"))["model"] for _ in range(2)]
        ids = [event.id for event in await streamed(house, one)]
        child = await house.db.value("SELECT id FROM sessions WHERE agent = 'ann' AND parent IS NOT NULL LIMIT 1")
        other = next(event.id for event in reversed(await streamed(house, two)))
        heads = ({one: 11}, {one: 10, child: 99}, {one: 5, f"{child}x": 1})
        forged = [TreeCursor(one, seen_heads) for seen_heads in heads]
        wrong = [
            other,
            *(cursor.id for cursor in forged),
            "-1",
            "1",
            "10",
            "x",
            "W10",
            "bnVsbA",
            f"{ids[0]}!",
            "é",
            "A" * 9,
        ]
        async with leaves_no_trace(house):
            for after in (*wrong, "[" * 3_000, ids[3][:-4]):
                params = {"tree": "true", "after": after}
                async with house.http.get(f"/v1/sessions/{one}/events", params=params) as response:
                    found = await refusal(response)
                    assert (found.status, found.param) == (400, "after"), after[:100]
            async with house.http.get(f"/v1/sessions/{one}/events", params={"after": ids[3]}) as response:
                assert (await refusal(response)).param == "after"
            async with house.http.get(f"/v1/sessions/{one}/events", params={"tree": "yes"}) as response:
                assert (await refusal(response)).param == "tree"


async def test_a_stream_until_rest_stays_while_a_sub_agent_works_and_hears_how_it_ends(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        asking = asyncio.create_task(house.say("Go.", model="master"))
        pen = await model.asked()
        pen.call("agent_analytic", '{"task": "Count."}')
        pen.end()
        pen = await model.asked()
        root = await session_of(house.db, "master", "root")
        assert (await house.session(root))["state"] == "WAITING_FOR_AGENT"
        async with followed(house, root) as tree, followed(house, root, tree="false") as plain:
            assert names(await until(tree, "subagent_delegation"))[-2:] == ["Called", "subagent_delegation"]
            assert names(await until(plain, "Called")) == ["Opened", "Prompted", "Started", "Replied", "Called"]
            pen.call("finalanswertool", '{"answer": "Three."}')
            pen.end()
            pen = await model.asked()
            pen.call("finalanswertool", '{"answer": "It is three."}')
            pen.end()
            after = ["Returned", "Replied", "Called", "Returned", "Finished"]
            assert names([event async for event in tree]) == ["subagent_completion", *after]
            assert names([event async for event in plain]) == after
        await asking


async def test_a_stream_until_rest_ends_at_a_question_once_everybody_else_rests_too(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        asking = asyncio.create_task(house.say("Go.", model="master"))
        pen = await model.asked()
        pen.call("agent_ann", '{"task": "Ask."}', index=0)
        pen.call("agent_ben", '{"task": "Count."}', index=1)
        pen.end()
        pens = {str(pen.body["messages"][0]["content"])[5:8]: pen for pen in [await model.asked() for _ in range(2)]}
        pens["ann"].call("clarificationtool", '{"questions": ["Which?"]}')
        pens["ann"].end()
        root, ann = await session_of(house.db, "master", "root"), await session_of(house.db, "ann")
        await house.until(ann, "WAITING_FOR_CLARIFICATION")
        async with followed(house, root) as tree, followed(house, root, tree="false") as plain:
            assert below(await until(tree, "subagent_delegation"))
            await until(plain, "Called")
            pens["ben"].call("finalanswertool", '{"answer": "Three."}')
            pens["ben"].end()
            rest = [event async for event in tree]
            assert [(one["agent"], one["role"]) for one in below(rest)][-1] == ("ben", "subagent_completion")
            assert names([event async for event in plain])[-1] == "Returned", "of ben"
        assert (await house.session(root))["state"] == "WAITING_FOR_CLARIFICATION"
        assert (await asking)["choices"][0]["message"]["content"] == "ann: Which?"


async def test_an_answered_question_goes_on_where_the_stream_had_ended(serving: Serving) -> None:
    first = in_steps(call("clocktool"), question("Which?"))
    roles = {
        "master": in_turn(ask("analytic", "Count."), last_result),
        "analytic": lambda body: answer("Three.") if "That." in str(body.messages) else first(body),
    }
    async with playing(serving, roles) as house:
        session_id = (await house.say("Go.", model="master"))["model"]
        before = await streamed(house, session_id)
        assert before[-1].event == "subagent_tool_result"
        assert await streamed(house, session_id, before[-1].id) == []
    async with playing(serving, roles) as house:
        async with house.http.post(f"/v1/sessions/{session_id}/clarification", json={"answer": "That."}) as response:
            assert response.status == 202
        after = await streamed(house, session_id, before[-1].id)
        assert names(after) == ["subagent_completion", "Returned", "Replied", "Called", "Returned", "Finished"]
        assert [*before, *after] == await streamed(house, session_id)
        assert "That." not in str(below(after)), "an answer is what a person said, not the result of a tool"


async def test_an_agent_that_nobody_waits_for_is_followed_to_its_end(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        asking = asyncio.create_task(house.say("Go.", model="master"))
        pen = await model.asked()
        pen.call("agent_analytic", '{"task": "Count.", "wait": false}')
        pen.end()
        pens = {str(pen.body["messages"][0]["content"])[5:8]: pen for pen in [await model.asked() for _ in range(2)]}
        pens["mas"].call("finalanswertool", '{"answer": "It is under way."}')
        pens["mas"].end()
        session_id = (await asking)["model"]
        assert names(await streamed(house, session_id, tree="false"))[-1] == "Finished", "the session itself rests"
        async with followed(house, session_id) as tree:
            assert "subagent_delegation" in names(await until(tree, "Finished"))
            pens["ana"].call("finalanswertool", '{"answer": "Three."}')
            pens["ana"].end()
            assert names([event async for event in tree]) == ["subagent_completion"]


async def test_one_stream_follows_turn_after_turn_at_any_gateway(serving: Serving) -> None:
    roles = {"master": in_turn(ask("ann", "Check."), last_result), "ann": in_steps(answer("Right."))}
    async with playing(serving, roles) as house, playing(serving, roles) as other:
        session_id = (await house.say("Go.", model="master"))["model"]
        async with (
            followed(house, session_id, until="never") as here,
            followed(other, session_id, until="never") as there,
        ):
            first = [await until(stream, "Finished") for stream in (here, there)]
            await house.say("Again.", model=session_id)
            again = [await until(stream, "Finished") for stream in (here, there)]
        assert first[0] == first[1]
        assert sorted(map(str, below(again[0]))) == sorted(map(str, below(again[1])))
        assert [len(below(events)) for events in (first[0], again[0])] == [2, 2]
        whole = await streamed(house, session_id)
        assert names(whole) == [*names(first[0]), *names(again[0])]


async def test_what_a_shared_agent_does_for_another_session_is_not_told(serving: Serving) -> None:
    roles = {
        "master": in_turn(ask("analytic", "For the master."), last_result),
        "ben": in_turn(ask("analytic", "For Ben."), last_result),
        "analytic": in_steps(answer("Done.")),
    }
    async with playing(serving, roles) as house:
        ben = (await house.say("Go.", model="ben", chat_id="c"))["model"]
        master = (await house.say("Go.", model="master", chat_id="c"))["model"]
        await house.say("Go.", model="ben", chat_id="c")
        assert await session_of(house.db, "analytic")
        tasks = [one["task"] for one in below(await streamed(house, master)) if one["role"] == "subagent_delegation"]
        assert tasks == ["For the master."]
        events = await streamed(house, ben)
        assert [one["task"] for one in below(events) if "task" in one] == ["For Ben.", "For Ben."]
        assert await streamed(house, ben, events[-8].id) == events[-7:]


async def test_what_is_being_written_is_read_between_the_facts(serving: Serving) -> None:
    last = Say(calls=answer("It is three, and it was counted with care.").calls, chunk=6, delay=0.01)
    roles = {**TWO_DEEP, "master": in_steps(ask("analytic", "Count."), last)}
    async with playing(serving, roles) as house:
        asking = asyncio.create_task(house.say("Go.", model="master"))
        root = await appears(house.db, "SELECT id FROM sessions WHERE agent = 'master'")
        events = await streamed(house, root, deltas="true")
        await asking
        fragments = [(place, event) for place, event in enumerate(events) if event.event == "delta"]
        assert "".join(event.json["text"] for _, event in fragments) == "It is three, and it was counted with care."
        seqs = [event.json.get("seq", 0) for event in events]
        for place, event in fragments:
            assert event.id == ""
            assert max(seqs[:place]) == event.json["after"], (
                "after what its step was decided at, before what came of it"
            )
