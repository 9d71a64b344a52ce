"""Budgets hold for all sub-agents: who is waited for is counted above, and all of a request share one budget."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from delegating_server import CAST, agent, answer, appears, ask, playing, requests_of, results, session_of, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import ExecutionPolicy, Template
from longhouse.journal import events
from longhouse.models.scripted import Say, call, calls
from server_helpers import House, Serving, content


def led_by(**limits: Any) -> list[Template]:
    """The cast, its master with these limits."""
    return [agent("master", execution_policy=ExecutionPolicy(**limits)), *CAST[1:]]


def is_offered(body: Body, name: str) -> bool:
    return any(name.encode() in bytes(tool) for tool in body.tools)


def works(body: Body) -> Say:
    """Looks at the clock as often as it may."""
    return call("clocktool", timezone="UTC") if is_offered(body, "clocktool") else answer(f"{len(results(body))} looks")


async def events_of(house: House, session_id: str, kind: type[Any]) -> list[Any]:
    return [one.event for one in await house.journal(session_id) if isinstance(one.event, kind)]


def tokens_of(replied: Iterable[events.Replied]) -> int:
    return sum(one.usage.total_tokens for one in replied if one.usage)


async def quiet(house: House) -> None:
    """Until nobody is at work any more."""
    await appears(house.db, "SELECT count(*) = 0 FROM delegations WHERE outcome IS NULL", within=30)


async def test_calls_of_tools_beneath_count_above(serving: Serving) -> None:
    def master(body: Body) -> Say:
        return ask("ann", "Work.") if is_offered(body, "agent_ann") else answer(" | ".join(results(body)))

    async with playing(serving, {"master": master, "ann": works}, templates=led_by(tool_budget=4)) as house:
        said = await house.say("Go", model="master")
        assert content(said) == "3 looks"
        child = await house.folded(await session_of(house.db, "ann"))
        assert child.turn is not None
        assert child.turn.limits.tool_budget == 3
        told = next(one for one in await events_of(house, said["model"], events.Returned) if one.by == "agent")
        assert told.calls == 3
        assert told.seconds > 0


async def test_a_child_has_only_the_time_that_its_parent_has_left(serving: Serving) -> None:
    def master(body: Body) -> Say:
        return answer("enough") if len(results(body)) == 2 else ask("ann", "Look.")

    async with playing(serving, {"master": master, "ann": ends}, templates=led_by(time_budget=60)) as house:
        said = await house.say("Go", model="master")
        first, second = await events_of(house, await session_of(house.db, "ann"), events.Started)
        assert 60 > first.limits.time_budget > second.limits.time_budget
        turn = (await house.folded(said["model"])).turn
        assert turn is not None
        told = [one for one in await events_of(house, said["model"], events.Returned) if one.by == "agent"]
        assert 0 < turn.subagents.seconds <= sum(one.seconds for one in told)


async def test_tasks_in_one_queue_do_not_have_the_same_budget_twice(serving: Serving) -> None:
    def master(body: Body) -> Say:
        return answer(" | ".join(results(body))) if results(body) else calls(*(ask("ann", str(n)) for n in range(3)))

    async with playing(serving, {"master": master, "ann": works}, templates=led_by(tool_budget=5)) as house:
        assert content(await house.say("Go", model="master")) == "2 looks | 0 looks | 0 looks"
        started = await events_of(house, await session_of(house.db, "ann"), events.Started)
        assert [one.limits.tool_budget for one in started] == [2, 0, 0]


def keeps_looking(body: Body) -> Say:
    """Looks at three clocks at once, as long as it is let."""
    if not is_offered(body, "clocktool"):
        return answer("enough")
    return calls(*(call("clocktool", timezone="UTC") for _ in range(3)))


async def looks_made(house: House) -> int:
    """How many calls of the clock were made, by whomever."""
    made = 0
    for row in await house.db.rows("SELECT id FROM sessions"):
        looks = {one.call for one in await events_of(house, row["id"], events.Called) if one.tool == "clocktool"}
        returned = await events_of(house, row["id"], events.Returned)
        made += sum(isinstance(one.outcome, events.Output) for one in returned if one.call in looks)
    return made


@pytest.mark.parametrize("waits", [True, False])
async def test_agents_at_work_side_by_side_share_the_calls_of_their_request(serving: Serving, waits: bool) -> None:
    names = ("ann", "ben", "cat", "dan", "eve", "fay")

    def master(body: Body) -> Say:
        if not results(body):
            return calls(*(ask(name, "Look.", wait=waits) for name in names))
        return keeps_looking(body)

    templates = [
        agent("master", execution_policy=ExecutionPolicy(tool_budget=12), calls=names),
        *(agent(name, calls=()) for name in names),
    ]
    roles = {"master": master, **dict.fromkeys(names, keeps_looking)}
    async with playing(serving, roles, templates=templates) as house:
        assert house.model is not None
        # Another process on the same database takes some of them.
        async with serving(templates=templates, llm_base_url=house.model.url, llm_api_key="sk-test-canary"):
            said = await house.say("Go", model="master")
            assert content(said) == "enough"
            await quiet(house)
        assert await looks_made(house) == 12 - len(names)


async def test_agents_that_nobody_waits_for_share_the_tokens_of_their_request(serving: Serving) -> None:
    def ann(body: Body) -> Say:
        return answer("on it goes") if results(body) else calls(*(ask("ann", "Again.", wait=False) for _ in range(5)))

    def master(body: Body) -> Say:
        return answer("off it goes") if results(body) else ask("ann", "Go on.", wait=False)

    async with playing(serving, {"master": master, "ann": ann}, templates=led_by(token_budget=2_000)) as house:
        said = await house.say("Go", model="master")
        assert content(said) == "off it goes"
        await quiet(house)
        first = (await events_of(house, said["model"], events.Replied))[0]
        shared, used = 2_000 - tokens_of([first]), 0
        for one in await house.journal(await session_of(house.db, "ann")):
            match one.event:
                case events.Started(limits=limits):
                    assert limits.token_budget is not None
                    assert limits.token_budget <= max(0, shared - used)
                case events.Replied():
                    used += tokens_of([one.event])
        assert used >= shared
        # Those after the last token have not even asked their model.
        asked = len(requests_of(house.model, "ann"))
        assert asked < await house.db.value("SELECT count(*) FROM delegations")


async def test_a_request_without_budgets_is_not_bounded_by_a_shared_budget(serving: Serving) -> None:
    roles = {"master": lambda body: answer("seen") if results(body) else ask("ann", "Look."), "ann": ends}
    async with playing(serving, roles) as house:
        await house.say("Go", model="master")
        [prompt] = await events_of(house, await session_of(house.db, "ann"), events.Prompted)
        assert prompt.shared_budget is None
        assert prompt.budget.token_budget is None


def ends(body: Body) -> Say:
    return answer(f"seen: {task_of(body)}")


async def test_a_parent_whose_helpers_have_used_everything_may_still_answer(serving: Serving) -> None:
    def master(body: Body) -> Say:
        return answer(" | ".join(results(body))) if results(body) else calls(*(ask(n, "Go.") for n in ("ann", "ben")))

    def talks(body: Body) -> Say:
        return call("clocktool", timezone="UTC") if is_offered(body, "clocktool") else answer("enough")

    roles = {"master": master, "ann": talks, "ben": talks}
    async with playing(serving, roles, templates=led_by(token_budget=600)) as house:
        async with asyncio.timeout(20):
            said = await house.say("Go", model="master")
        turn = (await house.folded(said["model"])).turn
        assert turn is not None
        assert turn.usage.total_tokens > 600
        assert turn.usage.total_tokens - turn.subagents.tokens < 2 * 600
        assert content(said)
