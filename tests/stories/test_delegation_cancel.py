"""A cancel goes down the tree, and no further: agents that work for others go on; those above are told."""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from delegating_server import (
    NAMES,
    PLAIN,
    SignTool,
    agent,
    answer,
    appears,
    ask,
    in_steps,
    last_result,
    playing,
    question,
    requests_of,
    session_of,
    task_of,
)
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import ExecutionPolicy
from longhouse.journal import events
from longhouse.journal.events import Effect
from longhouse.models.scripted import Hang, Say, calls, say, step_of
from longhouse.models.scripted import call as use
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving, content


class HoldTool(BaseTool):
    """Does something once, and ends when the test says so."""

    effect: ClassVar[Effect] = "once"
    keys: ClassVar[list[str]] = []
    go: ClassVar[asyncio.Event]

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.keys.append(context.key)
        await self.go.wait()
        return "held"


@pytest.fixture(autouse=True)
def held() -> Iterator[list[str]]:
    """The idempotency keys of each time that something was done."""
    HoldTool.keys, HoldTool.go = [], asyncio.Event()
    yield HoldTool.keys
    HoldTool.go.set()


HOUSE: dict[str, Any] = {
    "templates": [agent(name, tools=(*PLAIN, "holdtool")) for name in NAMES],
    "tools": [SignTool, HoldTool],
}


def passes_on(name: str) -> Any:
    return lambda body: last_result(body) if step_of(body.messages) else ask(name, "Go on.")


async def cancel(house: House, session_id: str) -> int:
    async with house.http.post(f"/v1/sessions/{session_id}/cancel") as response:
        return response.status


async def until_held(keys: list[str], times: int = 1) -> None:
    async with asyncio.timeout(10):
        while len(keys) < times:
            await asyncio.sleep(0.005)


async def root_of(house: House, name: str = "master") -> str:
    return str(await appears(house.db, "SELECT id FROM sessions WHERE agent = :agent AND side = 'root'", agent=name))


async def outcomes(house: House, session_id: str) -> list[Any]:
    journal = await house.journal(session_id)
    return [one.event.outcome for one in journal if isinstance(one.event, events.Returned)]


async def test_a_cancel_at_the_top_ends_everybody_beneath(serving: Serving, held: list[str]) -> None:
    chain = {"master": passes_on("ann"), "ann": passes_on("ben"), "ben": passes_on("cem")}
    roles = {**chain, "cem": in_steps(use("holdtool"))}
    async with playing(serving, roles, **HOUSE) as house:
        saying = asyncio.create_task(house.say("Go", model="master"))
        await until_held(held)
        root = await root_of(house)
        assert await cancel(house, root) == 202
        assert (await saying)["error"]["code"] == "cancelled"
        for session_id in (root, *[await session_of(house.db, name) for name in ("ann", "ben", "cem")]):
            session = await house.folded(session_id)
            assert (session.state, session.open, session.queue) == ("CANCELLED", {}, ())
            assert [one.code for one in await outcomes(house, session_id)] == ["cancelled"]
        assert await house.db.value("SELECT count(*) FROM delegations WHERE outcome IS NULL") == 0
        assert await house.db.value("SELECT count(*) FROM awaits") == 0
        assert await house.db.value("SELECT count(*) FROM sessions WHERE due") == 0
        HoldTool.go.set()


async def test_a_cancel_reaches_whom_somebody_left_at_work_below(serving: Serving, held: list[str]) -> None:
    roles = {
        "master": in_steps(ask("ann", "Go on."), use("clarificationtool", questions=["And now?"])),
        "ann": in_steps(ask("ben", "Take your time.", wait=False), answer("ben is at it")),
        "ben": in_steps(use("holdtool")),
    }
    async with playing(serving, roles, **HOUSE) as house:
        said = await house.say("Go", model="master")
        assert content(said) == "And now?"
        await until_held(held)
        assert await cancel(house, said["model"]) == 202
        assert (await house.folded(await session_of(house.db, "ben"))).state == "CANCELLED"
        assert (await house.folded(await session_of(house.db, "ann"))).state == "COMPLETED"
        HoldTool.go.set()


async def test_a_child_that_is_cancelled_is_a_fault_to_its_parent(serving: Serving) -> None:
    roles = {"master": passes_on("ann"), "ann": in_steps(question("Are you sure?"))}
    async with playing(serving, roles) as house:
        said = await house.say("Go", model="master")
        child = await session_of(house.db, "ann")
        assert await cancel(house, child) == 202
        shown = await house.until(said["model"], "COMPLETED")
        assert shown["result"] == "Error: the turn was cancelled"
        assert (await house.session(child))["state"] == "CANCELLED"
        assert await cancel(house, child) == 202
        assert [one.code for one in (await outcomes(house, said["model"]))[:1]] == ["cancelled"]


async def test_a_cancelled_child_does_not_stop_what_its_parent_does_beside(serving: Serving, held: list[str]) -> None:
    both = in_steps(calls(ask("ann", "Go on."), use("holdtool")), answer("both are back"))
    async with playing(serving, {"master": both, "ann": in_steps(question("Sure?"))}, **HOUSE) as house:
        saying = asyncio.create_task(house.say("Go", model="master"))
        await until_held(held)
        child = await appears(house.db, "SELECT id FROM sessions WHERE state = 'WAITING_FOR_CLARIFICATION'")
        assert await cancel(house, child) == 202
        HoldTool.go.set()
        async with asyncio.timeout(10):
            assert content(await saying) == "both are back"
        assert len(held) == 1
        assert "Resumed" not in await house.kinds(await root_of(house))


def shared(body: Body) -> Say:
    """The child of two roots: it does something once for each."""
    return answer(f"for {task_of(body)}") if step_of(body.messages) else use("holdtool")


def asks_ann(name: str) -> Any:
    return lambda body: last_result(body) if step_of(body.messages) else ask("ann", name)


async def two_roots(house: House, held: list[str]) -> tuple[Any, Any]:
    """The child is at work for the master; what `dia` wants of it is in its queue."""
    first = asyncio.create_task(house.say("Go", model="master", chat_id="c"))
    await until_held(held)
    second = asyncio.create_task(house.say("Go", model="dia", chat_id="c"))
    await appears(house.db, "SELECT count(*) = 2 FROM delegations WHERE outcome IS NULL")
    return first, second


SHARED = {"master": asks_ann("master"), "dia": asks_ann("dia"), "ann": shared}


async def test_a_child_goes_on_for_others_when_one_that_waits_for_it_is_cancelled(
    serving: Serving, held: list[str]
) -> None:
    async with playing(serving, SHARED, **HOUSE) as house:
        first, second = await two_roots(house, held)
        assert await cancel(house, await root_of(house, "dia")) == 202
        assert (await second)["error"]["code"] == "cancelled"
        HoldTool.go.set()
        async with asyncio.timeout(10):
            assert content(await first) == "for master"
        child = await session_of(house.db, "ann")
        # It was done once: nobody took the child from its holder.
        assert len(held) == 1
        kinds = await house.kinds(child)
        assert kinds.count("Started") == 1
        assert "Resumed" not in kinds
        assert (await house.folded(child)).queue == ()


async def test_a_child_goes_on_to_the_next_when_what_it_works_on_is_cancelled(
    serving: Serving, held: list[str]
) -> None:
    async with playing(serving, SHARED, **HOUSE) as house:
        first, second = await two_roots(house, held)
        assert await cancel(house, await root_of(house)) == 202
        assert (await first)["error"]["code"] == "cancelled"
        await until_held(held, 2)
        HoldTool.go.set()
        async with asyncio.timeout(10):
            assert content(await second) == "for dia"


async def test_queued_prompts_of_the_trace_go_with_it(serving: Serving, held: list[str]) -> None:
    twice = in_steps(calls(ask("ann", "one"), ask("ann", "two"), ask("ann", "three")))
    async with playing(serving, {"master": twice, "ann": shared}, **HOUSE) as house:
        saying = asyncio.create_task(house.say("Go", model="master"))
        await until_held(held)
        assert await cancel(house, await root_of(house)) == 202
        assert (await saying)["error"]["code"] == "cancelled"
        session = await house.folded(await session_of(house.db, "ann"))
        assert (session.state, session.queue) == ("CANCELLED", ())
        assert await house.db.value("SELECT count(*) FROM delegations WHERE outcome IS NULL") == 0
        assert len(held) == 1
        HoldTool.go.set()


async def test_a_child_that_thinks_is_stopped_by_a_cancel_above(serving: Serving) -> None:
    roles = {"master": passes_on("ann"), "ann": in_steps(say("", fault=Hang()))}
    async with playing(serving, roles) as house:
        saying = asyncio.create_task(house.say("Go", model="master"))
        async with asyncio.timeout(10):
            while not requests_of(house.model, "ann"):
                await asyncio.sleep(0.005)
        assert await cancel(house, await root_of(house)) == 202
        assert (await saying)["error"]["code"] == "cancelled"
        async with asyncio.timeout(20):
            while house.app.worker.busy:
                await asyncio.sleep(0.01)


async def test_a_tree_that_never_stands_still_is_cancelled_at_once(serving: Serving) -> None:
    tireless = ExecutionPolicy(max_iterations=5_000)
    roles = {
        "master": in_steps(calls(*(ask("ann", "Go on.", label=f"n{nth}") for nth in range(4)))),
        "ann": in_steps(use("clocktool", timezone="UTC")),
    }
    templates = [agent(name, execution_policy=tireless) for name in NAMES]
    async with playing(serving, roles, templates=templates) as house:
        saying = asyncio.create_task(house.say("Go", model="master"))
        busy = "SELECT count(*) = 4 FROM sessions WHERE agent = 'ann' AND head > 10"
        await appears(house.db, busy)
        assert await cancel(house, await root_of(house)) == 202
        assert (await saying)["error"]["code"] == "cancelled"
        assert await house.db.value("SELECT count(*) FROM sessions WHERE state <> 'CANCELLED'") == 0
        assert await house.db.value("SELECT count(*) FROM delegations WHERE outcome IS NULL") == 0


async def test_a_cancel_of_a_session_that_rests_ends_what_it_left_at_work(serving: Serving, held: list[str]) -> None:
    roles = {
        "master": in_steps(ask("ann", "Take your time.", wait=False), answer("off it goes")),
        "ann": in_steps(use("holdtool")),
    }
    async with playing(serving, roles, **HOUSE) as house:
        said = await house.say("Go", model="master")
        await until_held(held)
        assert await cancel(house, said["model"]) == 202
        assert (await house.folded(await session_of(house.db, "ann"))).state == "CANCELLED"
        assert (await house.folded(said["model"])).state == "COMPLETED"
        assert await house.db.value("SELECT count(*) FROM delegations WHERE outcome IS NULL") == 0
        HoldTool.go.set()


async def test_a_cancel_of_a_session_that_rests_reaches_past_those_who_have_ended(
    serving: Serving, held: list[str]
) -> None:
    roles = {
        "master": in_steps(ask("ann", "Go on.", wait=False), answer("off it goes")),
        "ann": in_steps(calls(ask("ben", "one", wait=False), ask("cem", "two", wait=False)), answer("they are at it")),
        "ben": in_steps(use("holdtool")),
        "cem": in_steps(question("Which?")),
    }
    async with playing(serving, roles, **HOUSE) as house:
        said = await house.say("Go", model="master")
        await until_held(held)
        await appears(house.db, "SELECT id FROM sessions WHERE agent = 'cem' AND state = 'WAITING_FOR_CLARIFICATION'")
        await appears(house.db, "SELECT id FROM sessions WHERE agent = 'ann' AND state = 'COMPLETED'")
        assert await cancel(house, said["model"]) == 202
        for name, state in (("ann", "COMPLETED"), ("ben", "CANCELLED"), ("cem", "CANCELLED")):
            assert (await house.folded(await session_of(house.db, name))).state == state
        HoldTool.go.set()


async def test_a_cancel_of_a_session_that_rests_leaves_the_work_of_others_alone(
    serving: Serving, held: list[str]
) -> None:
    roles = {
        "master": in_steps(ask("ann", "Take your time.", wait=False), answer("off it goes")),
        "dia": asks_ann("dia"),
        "ann": shared,
    }
    async with playing(serving, roles, **HOUSE) as house:
        said = await house.say("Go", model="master", chat_id="c")
        await until_held(held)
        second = asyncio.create_task(house.say("Go", model="dia", chat_id="c"))
        await appears(house.db, "SELECT count(*) = 2 FROM delegations WHERE outcome IS NULL")
        assert await cancel(house, said["model"]) == 202
        await until_held(held, 2)
        HoldTool.go.set()
        async with asyncio.timeout(10):
            assert content(await second) == "for dia"
