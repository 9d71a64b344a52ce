"""How much of its past an agent is shown: so many messages of earlier turns, plain, and no call without its result."""

from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from delegating_server import CAST, agent, answer, ask, in_steps, playing, requests_of, results
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MemoryPolicy
from longhouse.models.scripted import Say, calls
from longhouse.models.scripted import call as use
from redis_server import RedisServer
from server_helpers import Serving, assistant, user


def works(body: Body) -> Say:
    """Looks at the clock, then answers."""
    return answer("it is late") if results(body) else use("clocktool", timezone="UTC")


def roles_of(seen: str) -> Any:
    if seen == "ann":
        return {"master": lambda body: answer("ok") if results(body) else ask("ann", "Look."), "ann": works}
    return {"master": works}


@pytest.mark.parametrize("seen", ["master", "ann"], ids=["root", "sub"])
@pytest.mark.parametrize(
    ("window", "shown"), [(0, []), (1, [4]), (2, [4]), (3, [2, 3, 4]), (4, [1, 2, 3, 4]), (6, [4, 1, 2, 3, 4])]
)
async def test_a_window_counts_messages_of_earlier_turns_and_splits_no_pair(
    serving: Serving, seen: str, window: int, shown: list[int]
) -> None:
    policy = MemoryPolicy(context_window=window)
    templates = [agent(one.name, memory_policy=policy) if one.name == seen else one for one in CAST]
    async with playing(serving, roles_of(seen), templates=templates) as house:
        for _ in range(3):
            await house.say("Look.", model="master", chat_id="c")
        task = user("Look.")
        # A turn is a task, a call, its result, the answer.
        last = [one for one in requests_of(house.model, seen) if one[-1] == task][-1]
        turn = [task, "call", "result", assistant("it is late")]
        earlier = [_plain(one) for one in last[:-1]]
        assert earlier == [turn[n - 1] for n in shown]
        ids = [call["id"] for one in last for call in one.get("tool_calls", ())]
        assert ids == [one["tool_call_id"] for one in last if one["role"] == "tool"]


def _plain(message: dict[str, Any]) -> Any:
    if message.get("tool_calls"):
        return "call"
    return "result" if message["role"] == "tool" else message


async def test_a_root_without_a_window_is_shown_everything_as_it_was(serving: Serving) -> None:
    async with playing(serving, {"master": works}) as house:
        for _ in range(2):
            await house.say("Look.", model="master", chat_id="c")
        last = requests_of(house.model, "master")[-1]
        names = [call["function"]["name"] for one in last for call in one.get("tool_calls", ())]
        assert names == ["clocktool", "finalanswertool", "clocktool"]


async def test_what_the_child_answered_is_plain_also_where_it_failed_or_was_asked(serving: Serving) -> None:
    roles = {
        "master": lambda body: answer("ok") if results(body) else ask("ann", "Look."),
        "ann": in_steps(answer("I cannot see.", status="failed")),
    }
    async with playing(serving, roles) as house:
        for _ in range(2):
            await house.say("Look.", model="master", chat_id="c")
        assert requests_of(house.model, "ann")[-1] == [user("Look."), assistant("I cannot see."), user("Look.")]


async def test_redis_is_asked_once_for_the_histories_of_all_that_a_reply_calls(
    serving: Serving, server: RedisServer, redis: Redis
) -> None:
    labels = ("a", "b", "c")
    names = [f"subagent:ann:c/{label}" for label in labels]
    for name in names:
        await redis.set(name, msgspec.json.encode([user(f"I am {name}"), assistant("Noted")]))
    fan = calls(*(ask("ann", "Look.", label=label) for label in labels))
    roles = {"master": lambda body: answer("ok") if results(body) else fan, "ann": in_steps(answer("Seen."))}
    async with playing(serving, roles, redis_url=server.url) as house, redis.monitor() as monitor:
        await house.say("Look.", model="master", chat_id="c")
        shown = sorted(one[0]["content"] for one in requests_of(house.model, "ann"))
        assert shown == [f"I am {name}" for name in names], "each remembers its own"
        await redis.ping()
        asked = []
        async for command in monitor.listen():
            if command["command"] == "PING":
                break
            asked += [command["command"]] if any(name in command["command"] for name in names) else []
        assert asked[:6] == [f"{verb} {name}" for verb in ("STRLEN", "GET") for name in names]
