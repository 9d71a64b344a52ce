"""What bounds agents that call agents: depth, budget, circles, rights; and what a failure is to the one above."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from delegating_server import (
    CAST,
    SignTool,
    agent,
    answer,
    ask,
    in_steps,
    last_result,
    name_of,
    playing,
    requests_of,
    results,
    session_of,
    sessions_of,
    task_of,
)
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import ExecutionPolicy, MemoryPolicy
from longhouse.agents.tool_descriptor import Allow
from longhouse.journal import events
from longhouse.models.scripted import Hang, Say, ScriptedStatus, call, calls, say, step_of
from longhouse.store import journals
from server_helpers import House, Serving, content, dictated, sse


async def faults(house: House, session_id: str) -> list[tuple[str, str]]:
    """(call, code) of each call that failed."""
    returned = [one.event for one in await house.journal(session_id) if isinstance(one.event, events.Returned)]
    return [(one.call, one.outcome.code) for one in returned if isinstance(one.outcome, events.Fault)]


def asks_then_tells(name: str, task: str = "Go on.", **extra: Any) -> Any:
    """Asks another agent, then ends with what it got."""
    return lambda body: last_result(body) if step_of(body.messages) else ask(name, task, **extra)


async def test_nobody_calls_anybody_below_the_depth_of_its_template(serving: Serving) -> None:
    shallow = [agent(name, execution_policy=ExecutionPolicy(max_depth=2)) for name in ("master", "ann", "ben", "cem")]
    roles = {
        "master": asks_then_tells("ann"),
        "ann": asks_then_tells("ben"),
        "ben": asks_then_tells("cem"),
        "cem": in_steps(answer("deep down")),
    }
    templates = [*shallow, *(one for one in CAST if one.name not in roles)]
    async with playing(serving, roles, templates=templates) as house:
        said = await house.say("Go", model="master")
        assert "one below the other" in content(said)
        assert await faults(house, await session_of(house.db, "ben")) == [("1-action-0", "too_deep")]
        assert await sessions_of(house.db, "cem") == []


async def test_a_call_too_deep_to_be_made_gives_no_handle_either(serving: Serving) -> None:
    policy = ExecutionPolicy(max_depth=0)
    roles = {
        "master": lambda body: last_result(body) if step_of(body.messages) else ask("ann", "Go", wait=False),
        "ann": in_steps(answer("never")),
    }
    templates = [agent("master", execution_policy=policy), *CAST[1:]]
    async with playing(serving, roles, templates=templates) as house:
        said = await house.say("Go", model="master")
        assert "one below the other" in content(said)
        assert await faults(house, said["model"]) == [("1-action-0", "too_deep")]


async def test_an_agent_that_calls_itself_is_told_of_the_circle(serving: Serving) -> None:
    roles = {"master": asks_then_tells("ann"), "ann": asks_then_tells("ann")}
    async with playing(serving, roles) as house:
        assert "cycle" in content(await house.say("Go", model="master"))
        assert await faults(house, await session_of(house.db, "ann")) == [("1-action-0", "cycle")]


async def test_an_agent_under_another_label_is_another_agent_until_it_is_too_deep(serving: Serving) -> None:
    def again(body: Body) -> Say:
        if step_of(body.messages):
            return last_result(body)
        n = int(task_of(body))
        return ask("ann", str(n + 1), label=f"n{n}")

    async with playing(serving, {"master": asks_then_tells("ann", "0"), "ann": again}) as house:
        assert "one below the other" in content(await house.say("Go", model="master"))
        assert len(await sessions_of(house.db, "ann")) == 8


async def test_two_agents_that_call_each_other_end_with_a_circle(serving: Serving) -> None:
    roles = {"master": asks_then_tells("ann"), "ann": asks_then_tells("ben"), "ben": asks_then_tells("ann")}
    async with playing(serving, roles) as house:
        assert "cycle" in content(await house.say("Go", model="master"))
        assert await faults(house, await session_of(house.db, "ben")) == [("1-action-0", "cycle")]


async def test_siblings_that_wait_for_each_other_through_their_queues_end_with_a_circle(serving: Serving) -> None:
    def both(body: Body) -> Say:
        if step_of(body.messages):
            return answer(" | ".join(results(body)))
        return calls(ask("ann", "from master"), ask("ben", "from master"))

    def sibling(body: Body) -> Say:
        other = {"ann": "ben", "ben": "ann"}[name_of(body)]
        if task_of(body) != "from master":
            return answer(f"{name_of(body)} delegated_seconds")
        return last_result(body) if step_of(body.messages) else ask(other, f"from {name_of(body)}")

    async with playing(serving, {"master": both, "ann": sibling, "ben": sibling}) as house:
        async with asyncio.timeout(15):
            said = content(await house.say("Go", model="master"))
        # Whoever asks second is told of the circle; the first is delegated_seconds once the second has ended.
        first, second = sorted(said.split(" | "), key=lambda one: "cycle" in one)
        assert "delegated_seconds" in first
        assert "cycle" in second
        codes = [await faults(house, await session_of(house.db, name)) for name in ("ann", "ben")]
        assert sorted(len(one) for one in codes) == [0, 1]


async def test_a_task_for_an_agent_whose_queue_is_full_is_refused(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MOST_WAITING", 0)

    def master(body: Body) -> Say:
        step = step_of(body.messages)
        return last_result(body) if step > 1 else ask("ann", f"Task {step}", wait=step > 0)

    roles = {"master": master, "ann": lambda body: Say(fault=Hang(seconds=60))}
    async with playing(serving, roles) as house:
        said = await house.say("Go", model="master")
        assert "too many tasks wait for that agent already" in content(said)
        assert await faults(house, said["model"]) == [("2-action-0", "too_many_waiting")]
        assert len(await sessions_of(house.db, "ann")) == 1


async def test_agents_that_do_not_wait_for_each_other_are_bounded_by_depth(serving: Serving) -> None:
    def plays_on(body: Body) -> Say:
        other = {"ann": "ben", "ben": "ann", "master": "ann"}[name_of(body)]
        return answer("passed on") if step_of(body.messages) else ask(other, "Your turn.", wait=False)

    async with playing(serving, dict.fromkeys(("master", "ann", "ben"), plays_on)) as house:
        await house.say("Go", model="master")
        sql = "SELECT count(*) FROM journal WHERE kind = 'Finished'"
        async with asyncio.timeout(10):
            while await house.db.value(sql) < 9:
                await asyncio.sleep(0.01)
        assert await house.db.value("SELECT count(*) FROM sessions WHERE due") == 0
        codes = [code for name in ("ann", "ben") for _, code in await faults(house, await session_of(house.db, name))]
        assert codes == ["too_deep"]


async def test_a_child_has_no_more_tokens_than_its_parent_has_left(serving: Serving) -> None:
    budget = ExecutionPolicy(token_budget=400)
    templates = [agent("master", calls=["ann"], tools=["finalanswertool"], execution_policy=budget), *CAST[1:]]
    roles = {
        "master": lambda body: answer(results(body)[-1]) if results(body) else ask("ann", "Talk."),
        "ann": lambda body: answer("enough") if len(body.tools) == 1 else call("clocktool", timezone="UTC"),
    }
    async with playing(serving, roles, templates=templates) as house:
        said = await house.say("Go", model="master")
        root, child = await house.folded(said["model"]), await house.folded(await session_of(house.db, "ann"))
        assert root.turn is not None
        assert child.turn is not None
        replied = [one.event for one in await house.journal(root.id) if isinstance(one.event, events.Replied)]
        assert replied[0].usage is not None
        assert child.turn.limits.token_budget == 400 - replied[0].usage.total_tokens
        own = sum(one.usage.total_tokens for one in replied if one.usage)
        assert root.turn.usage.total_tokens == own + child.turn.usage.total_tokens
        assert child.turn.usage.total_tokens >= child.turn.limits.token_budget


async def test_a_parent_without_tokens_cannot_buy_any_by_delegating(serving: Serving) -> None:
    budget = ExecutionPolicy(token_budget=3)
    templates = [agent("master", calls=["ann"], execution_policy=budget), *CAST[1:]]
    roles = {"master": asks_then_tells("ann"), "ann": in_steps(answer("for nothing"))}
    async with playing(serving, roles, templates=templates) as house:
        said = await house.say("Go", model="master")
        assert said["error"]["code"] == "limit_reached"
        assert requests_of(house.model, "ann") == []
        child = await house.session(await session_of(house.db, "ann"))
        assert (child["state"], "limit of 0 tokens" in child["error"]) == ("FAILED", True)


def uses_sign(body: Body) -> Say:
    return last_result(body) if step_of(body.messages) else call("signtool")


@pytest.mark.parametrize(
    "narrowed", [{"denylist": ("signtool",)}, {"max_risk_level": "low"}, {"denylist": ("signtool", "clocktool")}]
)
async def test_what_the_parent_may_not_use_the_child_may_not_either(serving: Serving, narrowed: dict[str, Any]) -> None:
    templates = [agent("master", narrowed=narrowed), *CAST[1:]]
    roles = {"master": asks_then_tells("ann"), "ann": asks_then_tells("ben"), "ben": uses_sign}
    async with playing(serving, roles, templates=templates) as house:
        if "max_risk_level" in narrowed:
            await raise_risk(house, "signtool")
        assert "not among the tools" in content(await house.say("Go", model="master"))
        child = await session_of(house.db, "ben")
        assert await faults(house, child) == [("1-action-0", "not_offered")]
        started = next(one.event for one in await house.journal(child) if isinstance(one.event, events.Started))
        assert started.rights is not None
        assert (started.rights.denied, started.rights.max_risk) == (
            narrowed.get("denylist", ()),
            narrowed.get("max_risk_level", "high"),
        )


async def raise_risk(house: House, name: str) -> None:
    """Publishes the tool once more, as a dangerous one."""
    descriptor = await house.app.catalog.tools.find(name)
    assert descriptor is not None
    dangerous = replace(descriptor, security_policy=replace(descriptor.security_policy, risk_level="high"))
    await house.app.catalog.tools.publish([dangerous], by="test")


async def test_a_tool_that_is_not_for_sub_agents_is_offered_to_a_root_only(serving: Serving) -> None:
    roles = {"master": asks_then_tells("ann"), "ann": in_steps(answer("seen"))}
    async with playing(serving, roles) as house:
        descriptor = await house.app.catalog.tools.find("clocktool")
        assert descriptor is not None
        policy = replace(descriptor.security_policy, allow=Allow(sub_agents=False))
        await house.app.catalog.tools.publish([replace(descriptor, security_policy=policy)], by="test")
        await house.say("Go", model="master")
        assert house.model is not None
        offered = {
            request["messages"][0]["content"].splitlines()[0]: {tool["function"]["name"] for tool in request["tools"]}
            for request in house.model.requests
        }
        assert "clocktool" in offered["I am master."]
        assert "clocktool" not in offered["I am ann."]


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (in_steps(answer("I cannot do it.", status="failed")), "I cannot do it."),
        (in_steps(say("", fault=ScriptedStatus(status=400))), "400"),
        (in_steps(call("clocktool", timezone="UTC")), "limit of 2 steps"),
    ],
    ids=["it says so", "its model fails", "a limit"],
)
async def test_a_childs_failure_is_a_fault_that_its_parent_reads(serving: Serving, role: Any, words: str) -> None:
    templates = [*CAST[:2], agent("ann", execution_policy=ExecutionPolicy(max_iterations=2)), *CAST[3:]]
    async with playing(serving, {"master": asks_then_tells("ann"), "ann": role}, templates=templates) as house:
        said = await house.say("Go", model="master")
        assert content(said).startswith("Error: ")
        assert words in content(said)
        assert (await house.session(said["model"]))["state"] == "COMPLETED"
        assert (await house.session(await session_of(house.db, "ann")))["state"] == "FAILED"


async def test_provider_trouble_of_a_child_is_waited_out_no_longer_than_the_client_of_its_root_waits(
    serving: Serving,
) -> None:
    roles = {"master": asks_then_tells("ann"), "ann": in_steps(say("", fault=ScriptedStatus(status=503)))}
    async with playing(serving, roles, patience=0.6) as house:
        async with asyncio.timeout(8):
            assert "503" in content(await house.say("Go", model="master"))


@pytest.mark.parametrize("wait", ["true", "false"])
async def test_an_agent_that_was_retired_since_it_was_offered_is_a_fault(serving: Serving, wait: str) -> None:
    async with dictated() as model, serving(llm_base_url=model.url, templates=CAST, tools=[SignTool]) as house:
        saying = asyncio.create_task(house.say("Go", model="master"))
        pen = await model.asked()
        await house.app.catalog.templates.deactivate("ann", retire=True)
        pen.call("agent_ann")
        pen.end(f'{{"task": "Look.", "wait": {wait}}}')
        pen = await model.asked()
        assert "agent_ann" not in [tool["function"]["name"] for tool in pen.body["tools"]]
        pen.call("finalanswertool")
        pen.end('{"answer": "Nobody is there."}')
        said = await saying
        assert content(said) == "Nobody is there."
        assert await faults(house, said["model"]) == [("1-action-0", "unknown_agent")]
        assert await sessions_of(house.db, "ann") == []


async def test_bad_arguments_are_told_and_nobody_is_asked(serving: Serving) -> None:
    roles = {
        "master": lambda body: last_result(body) if step_of(body.messages) else call("agent_ann", label="a/b"),
        "ann": in_steps(answer("never")),
    }
    async with playing(serving, roles) as house:
        said = content(await house.say("Go", model="master"))
        assert "task" in said
        assert "label" in said
        assert await sessions_of(house.db, "ann") == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("first", [say("I know it myself."), answer("I know it myself.")], ids=["text", "tool"])
async def test_an_orchestrator_that_answers_without_asking_is_sent_back_once(
    serving: Serving, first: Say, stream: bool
) -> None:
    policy = ExecutionPolicy(must_delegate=True)
    templates = [agent("master", execution_policy=policy), *CAST[1:]]

    def master(body: Body) -> Say:
        if results(body) and "seen" in results(body)[-1]:
            return answer("ann has seen it")
        return ask("ann", "Look.") if step_of(body.messages) or "ask one of the agents" in str(body.messages) else first

    async with playing(serving, {"master": master, "ann": in_steps(answer("seen"))}, templates=templates) as house:
        assert await said_to(house, stream=stream) == "ann has seen it"
        assert "ask one of the agents" in str(requests_of(house.model, "master")[1])


async def said_to(house: House, *, stream: bool) -> str:
    if not stream:
        return content(await house.say("Go", model="master"))
    body = {"model": "master", "messages": [{"role": "user", "content": "Go"}], "stream": True}
    async with asyncio.timeout(15), house.http.post("/v1/chat/completions", json=body) as response:
        chunks = [one.json for one in [one async for one in sse(response)] if one.data != "[DONE]"]
    assert not [one for one in chunks if "error" in one]
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in chunks if one["choices"])


async def test_an_orchestrator_that_insists_is_heard_the_second_time(serving: Serving) -> None:
    policy = ExecutionPolicy(must_delegate=True)
    templates = [agent("master", execution_policy=policy), *CAST[1:]]
    for stubborn in (say("I know it myself."), answer("I know it myself.")):
        async with playing(serving, {"master": in_steps(stubborn)}, templates=templates) as house:
            assert content(await house.say("Go", model="master")) == "I know it myself."
            assert len(requests_of(house.model, "master")) == 2


async def test_a_call_that_was_never_made_is_not_asking(serving: Serving) -> None:
    policy = ExecutionPolicy(must_delegate=True)
    templates = [agent("master", execution_policy=policy), *CAST[1:]]
    roles = {"master": in_steps(ask("nobody", "Look."), answer("alone"), answer("alone"))}
    async with playing(serving, roles, templates=templates) as house:
        said = await house.say("Go", model="master")
        assert [code for _, code in await faults(house, said["model"])] == ["not_offered", "delegate_first"]


async def test_a_child_reads_as_much_of_its_parents_talk_as_that_shares(serving: Serving) -> None:
    for share, shown in ((0, []), (1, ["user: two"]), (3, ["user: one", "assistant: heard", "user: two"])):
        templates = [agent("master", memory_policy=MemoryPolicy(share_context=share)), *CAST[1:]]
        roles = {
            "master": lambda body: answer("heard") if results(body) else ask("ann", "Look."),
            "ann": in_steps(answer("seen")),
        }
        async with playing(serving, roles, templates=templates) as house:
            chat = f"shares-{share}"
            await house.say("one", model="master", chat_id=chat)
            await house.say("two", model="master", chat_id=chat)
            assert house.model is not None
            systems = [request["messages"][0]["content"] for request in house.model.requests]
            last = [one for one in systems if one.startswith("I am ann.")][-1]
            assert [line for line in last.splitlines() if line.startswith(("user: ", "assistant: "))] == shown
