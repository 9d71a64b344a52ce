"""An agent that is not waited for: its call returns a handle at once, and what became of it is collected later."""

import asyncio
import json
from typing import Any

import pytest

from delegating_server import answer, appears, ask, in_steps, playing, question, results, session_of, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.models.scripted import Say, calls, step_of
from longhouse.models.scripted import call as use
from longhouse.store.delegation import cancel, tree
from server_helpers import House, Serving, chat, content, user


def collect(handle: str) -> Say:
    return use("collecttool", handle=handle)


def handle_in(body: Body) -> str:
    return str(json.loads(results(body)[0])["handle"])


async def returned(house: House, session_id: str) -> list[events.Returned]:
    return [one.event for one in await house.journal(session_id) if isinstance(one.event, events.Returned)]


def hands_out(*then: Any) -> Any:
    """Calls ann without waiting; then these steps, given the handle."""

    def role(body: Body) -> Say:
        step = step_of(body.messages)
        if step == 0:
            return ask("ann", "Take your time.", wait=False)
        reply: Say = then[min(step, len(then)) - 1](handle_in(body), body)
        return reply

    return role


async def test_a_result_is_collected_before_the_agent_has_ended(serving: Serving) -> None:
    master = hands_out(lambda handle, body: collect(handle), lambda handle, body: answer(results(body)[-1]))

    def slow(body: Body) -> Say:
        return answer("done") if task_of(body) == "yes" else question("Shall I?")

    async with playing(serving, {"master": master, "ann": slow}) as house:
        said = await house.say("Go", model="master")
        # The master waits for what it collects, and so the question of the sub-agent is asked at the top.
        assert content(said) == "ann: Shall I?"
        assert (await house.folded(said["model"])).state == "WAITING_FOR_AGENT"
        assert content(await house.say("yes", model=said["model"])) == "done"
        first, second, _ = await returned(house, said["model"])
        assert isinstance(first.outcome, events.Output)
        assert json.loads(first.outcome.content) == {"handle": "1-action-0", "collect_with": "collecttool"}
        assert (second.call, second.by, second.outcome) == ("2-action-0", "agent", events.Output(content="done"))
        assert second.spent is not None


async def test_a_result_is_collected_after_the_agent_has_ended_and_again(serving: Serving) -> None:
    def master(body: Body) -> Say:
        match task_of(body):
            case "begin":
                return answer("begun") if step_of(body.messages) else ask("ann", "Take your time.", wait=False)
            case _:
                if step_of(body.messages):
                    return answer(" ".join(results(body)))
                return calls(collect("1-action-0"), collect("1-action-0"))

    async with playing(serving, {"master": master, "ann": in_steps(answer("done"))}) as house:
        said = await house.say("begin", model="master", chat_id="c")
        assert content(said) == "begun"
        child = str(await appears(house.db, "SELECT id FROM sessions WHERE agent = 'ann' AND state = 'COMPLETED'"))
        assert content(await house.say("collect", model="master", chat_id="c")) == "done done"
        assert content(await house.say("collect", model="master", chat_id="c")) == "done done"
        # What it cost is counted once.
        spent = [one.spent for one in await returned(house, said["model"]) if one.spent]
        turn = (await house.folded(child)).turn
        assert turn is not None
        assert spent == [turn.usage]


@pytest.mark.parametrize("times", [1, 2])
async def test_several_calls_may_wait_for_one_result(serving: Serving, times: int) -> None:
    master = hands_out(
        lambda handle, body: calls(*[collect(handle)] * times), lambda handle, body: answer(" ".join(results(body)[1:]))
    )

    def slow(body: Body) -> Say:
        return answer("done") if task_of(body) == "yes" else question("Shall I?")

    async with playing(serving, {"master": master, "ann": slow}) as house:
        said = await house.say("Go", model="master")
        assert content(await house.say("yes", model=said["model"])) == " ".join(["done"] * times)
        told = [one for one in await returned(house, said["model"]) if one.by == "agent"]
        assert [one.spent is not None for one in told] == [True, False][:times]


async def test_a_result_of_an_earlier_turn_is_waited_for_with_its_questions(serving: Serving) -> None:
    def master(body: Body) -> Say:
        if task_of(body) == "begin":
            return answer("begun") if step_of(body.messages) else ask("ann", "Take your time.", wait=False)
        return answer(results(body)[-1]) if results(body) else collect("1-action-0")

    def slow(body: Body) -> Say:
        if task_of(body) != "yes":
            return question("Shall I?")
        return answer("done") if results(body) else use("signtool")

    async with playing(serving, {"master": master, "ann": slow}) as house:
        said = await house.say("begin", model="master", chat_id="c")
        assert content(said).startswith("begun")  # and what she asks, if she has by then
        async with asyncio.timeout(10):
            assert content(await house.say("collect", model="master", chat_id="c")) == "ann: Shall I?"
        assert (await house.session(said["model"]))["state"] == "WAITING_FOR_CLARIFICATION"
        # Ann works for the turn that began her; who answers or decides follows the one that collects.
        asks = "ann: May signtool run?"
        for key, told in (("answer", asks), ("answer", asks), ("decision", "done"), ("decision", "done")):
            said = await chat(house, [user("yes")], model="master", chat_id="c", headers={"Idempotency-Key": key})
            assert content(said).startswith(told), key
        # What she was told belongs to the tree of that turn, although another has begun her.
        top, ann = await house.folded(said["model"]), await session_of(house.db, "ann")
        for call in ("1-action-0", "2-action-0"):
            assert [one.id for one in await tree.closed_questions(house.db, top, call)] == [ann]


async def test_a_handle_of_somebody_else_is_none(serving: Serving) -> None:
    def ann(body: Body) -> Say:
        return answer(results(body)[-1]) if results(body) else collect("1-action-0")

    def master(body: Body) -> Say:
        match step_of(body.messages):
            case 0:
                return ask("ben", "Take your time.", wait=False)
            case 1:
                return calls(ask("ann", "Collect what is mine."), collect("9-action-9"), collect("x" * 300))
            case _:
                return answer(" | ".join(results(body)[1:]))

    async with playing(serving, {"master": master, "ann": ann, "ben": in_steps(answer("secret"))}) as house:
        said = content(await house.say("Go", model="master"))
        assert "secret" not in said
        assert said.count("there is no handle") == 3


async def test_a_cancel_while_a_result_is_awaited_ends_both(serving: Serving) -> None:
    master = hands_out(lambda handle, body: collect(handle))
    async with playing(serving, {"master": master, "ann": in_steps(question("Shall I?"))}) as house:
        said = await house.say("Go", model="master")
        async with house.http.post(f"/v1/sessions/{said['model']}/cancel") as response:
            assert response.status == 202
        assert (await house.folded(said["model"])).state == "CANCELLED"
        assert (await house.folded(await session_of(house.db, "ann"))).state == "CANCELLED"
        assert await house.db.value("SELECT count(*) FROM awaits") == 0


async def test_a_cancel_of_who_collects_leaves_the_work_of_an_earlier_turn_alone(serving: Serving) -> None:
    def master(body: Body) -> Say:
        if task_of(body) == "begin":
            return answer("begun") if step_of(body.messages) else ask("ann", "Take your time.", wait=False)
        return answer(results(body)[-1]) if results(body) else collect("1-action-0")

    def slow(body: Body) -> Say:
        return answer("done") if task_of(body) == "yes" else question("Shall I?")

    async with playing(serving, {"master": master, "ann": slow}) as house:
        said = await house.say("begin", model="master", chat_id="c")
        await house.say("collect", model="master", chat_id="c")
        async with house.http.post(f"/v1/sessions/{said['model']}/cancel") as response:
            assert response.status == 202
        child = await session_of(house.db, "ann")
        assert (await house.session(child))["state"] == "WAITING_FOR_CLARIFICATION"
        async with house.http.post(f"/v1/sessions/{child}/clarification", json={"answer": "yes"}) as response:
            assert response.status == 202
        await house.until(child, "COMPLETED")
        assert content(await house.say("collect", model="master", chat_id="c")) == "done"


async def test_who_collects_what_is_cancelled_reads_the_fault(serving: Serving) -> None:
    def master(body: Body) -> Say:
        if task_of(body) == "begin":
            return answer("begun") if step_of(body.messages) else ask("ann", "Go on.", wait=False)
        return answer(results(body)[-1]) if results(body) else collect("1-action-0")

    def ann(body: Body) -> Say:
        return answer("ben is at it") if results(body) else ask("ben", "Take your time.")

    async with playing(serving, {"master": master, "ann": ann, "ben": in_steps(question("Shall I?"))}) as house:
        said = await house.say("begin", model="master", chat_id="c")
        await house.say("collect", model="master", chat_id="c")
        trace = await house.db.value("SELECT trace FROM delegations WHERE parent = :parent", parent=said["model"])
        # As where the session went on between the look at it and the cancel: it is at another turn, and waits.
        await cancel.cancel(house.db, await house.folded(said["model"]), trace, by="user")
        house.app.bus.wake(said["model"])
        assert (await house.until(said["model"], "COMPLETED"))["result"] == "Error: the turn was cancelled"
        assert (await house.folded(await session_of(house.db, "ben"))).state == "CANCELLED"


async def test_collecting_from_who_waits_for_the_collector_is_a_circle(serving: Serving) -> None:
    def ann(body: Body) -> Say:
        if task_of(body) != "Begin.":
            return answer("delegated_seconds")
        match step_of(body.messages):
            case 0:
                return ask("ben", "Ask me.", wait=False)
            case 1:
                return use("clarificationtool", questions=["Now?"])
            case _:
                return answer("?")

    def late(body: Body) -> Say:
        if task_of(body) == "now":
            return answer(results(body)[-1]) if results(body) else collect("1-action-0")
        return ann(body)

    roles = {
        "master": lambda body: answer(results(body)[-1]) if results(body) else ask("ann", "Begin."),
        "ann": late,
        "ben": lambda body: answer(results(body)[-1]) if results(body) else ask("ann", "Help me."),
    }
    async with playing(serving, roles) as house:
        said = await house.say("Go", model="master")
        assert content(said) == "ann: Now?"
        await appears(house.db, "SELECT count(*) = 3 FROM delegations WHERE outcome IS NULL")
        async with asyncio.timeout(10):
            assert "cycle" in content(await house.say("now", model=said["model"]))
        assert (await house.until(await session_of(house.db, "ben"), "COMPLETED"))["result"] == "delegated_seconds"
