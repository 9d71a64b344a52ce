"""A master delegates, and its sub-agents remember: within a request, across requests, after a kill."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from strategy_replies import WRITE, written

from delegating_server import (
    CAST,
    PLAIN,
    SignTool,
    agent,
    answer,
    ask,
    cast,
    cast_house,
    in_steps,
    last_result,
    name_of,
    playing,
    requests_of,
    results,
    session_of,
    task_of,
)
from longhouse.agents.strategies.protocol import Body
from longhouse.journal import events
from longhouse.journal.messages import User, text_of
from longhouse.models.scripted import Say, calls, step_of
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import House, Serving, assistant, content, user

TOLD, ASKED = "The user's name is Алия.", "What is the user's name?"
NOTED, KNOWN = "Noted: Алия.", "The name is Алия."


def analytic(body: Body) -> Say:
    """Knows a name only if it was told before, in its own history."""
    if task_of(body) != ASKED:
        return answer(NOTED)
    before = [text_of(one.content) for one in body.messages[:-1] if isinstance(one, User)]
    return answer(KNOWN if TOLD in before else "I was never told.")


def master(body: Body) -> Say:
    """Does what the user says: tells, asks, or both."""
    match task_of(body), step_of(body.messages):
        case (("tell" | "tell, then ask"), 0):
            return ask("analytic", TOLD)
        case ("ask", 0) | ("tell, then ask", 1):
            return ask("analytic", ASKED)
        case _:
            return answer(" ".join(results(body)))


async def test_what_a_sub_agent_is_told_by_one_call_it_knows_in_the_next(serving: Serving) -> None:
    async with playing(serving, {"master": master, "analytic": analytic}) as house:
        said = await house.say("tell, then ask", model="master", chat_id=12345)
        assert content(said) == f"{NOTED} {KNOWN}"
        assert content(await house.say("ask", model="master", chat_id=12345)) == KNOWN

        first, second, third = requests_of(house.model, "analytic")
        assert first == [user(TOLD)]
        assert second == [user(TOLD), assistant(NOTED), user(ASKED)]
        assert third == [user(TOLD), assistant(NOTED), user(ASKED), assistant(KNOWN), user(ASKED)]


async def test_a_sub_agent_is_asked_once_and_answers_once(serving: Serving) -> None:
    async with playing(serving, {"master": master, "analytic": analytic}) as house:
        said = await house.say("tell", model="master")
        root, child = said["model"], await session_of(house.db, "analytic")
        assert await house.kinds(root) == [
            "Opened", "Prompted", "Started", "Replied", "Called", "Returned",
            "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip
        assert await house.kinds(child) == [
            "Opened", "Prompted", "Started", "Replied", "Called", "Returned", "Finished",
        ]  # fmt: skip
        prompted = next(one.event for one in await house.journal(child) if isinstance(one.event, events.Prompted))
        assert (prompted.sender, prompted.depth, prompted.root) == ("master", 1, root)
        traces = {one.trace for one in (*await house.journal(root), *await house.journal(child))}
        assert traces == {prompted.trace}
        shown = await house.session(child)
        assert (shown["state"], shown["result"]) == ("COMPLETED", NOTED)
        replies = [one.event for one in (*await house.journal(root), *await house.journal(child))]
        spent = [one.usage.total_tokens for one in replies if isinstance(one, events.Replied) and one.usage]
        assert (len(spent), said["usage"]["total_tokens"]) == (3, sum(spent))


async def test_it_still_knows_after_server_and_postgres_were_killed(folder: Path) -> None:
    async with serve_model(cast(master=master, analytic=analytic)) as model:
        settings = {"data_dir": str(folder), "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with cast_house(**settings) as first:
            assert content(await first.say("tell", model="master", chat_id=12345)) == NOTED
            first.kill()
            await first.ended()
        async with cast_house(**settings) as second:
            assert content(await second.say("ask", model="master", chat_id=12345)) == KNOWN
        assert requests_of(model, "analytic")[-1] == [user(TOLD), assistant(NOTED), user(ASKED)]


async def test_another_conversation_has_another_sub_agent(serving: Serving) -> None:
    async with playing(serving, {"master": master, "analytic": analytic}) as house:
        await house.say("tell", model="master", chat_id=1)
        assert content(await house.say("ask", model="master", chat_id=2)) == "I was never told."


CHAIN = ("master", "ann", "ben", "cem", "dia", "eva")


def passes_on(body: Body) -> Say:
    """Asks the next in the chain; the last one answers."""
    place = CHAIN.index(name_of(body))
    if step_of(body.messages):
        return answer(f"{name_of(body)} {results(body)[-1]}")
    return ask(CHAIN[place + 1], task_of(body)) if place + 1 < len(CHAIN) else answer("eva")


async def test_a_chain_of_six_agents_needs_one_worker_slot(serving: Serving) -> None:
    roles = dict.fromkeys(CHAIN, passes_on)
    async with playing(serving, roles, worker_slots=1) as house:
        said = await house.say("Go", model="master")
        assert content(said) == "master ann ben cem dia eva"
        session = await house.folded(await session_of(house.db, "eva"))
        assert session.turn is not None
        assert (session.turn.prompted.depth, session.turn.prompted.root) == (5, said["model"])


async def test_a_fan_of_ten_children_needs_one_worker_slot(serving: Serving) -> None:
    def fan(body: Body) -> Say:
        if step_of(body.messages):
            return answer(" ".join(results(body)))
        return calls(*(ask("ann", f"part {n}", label=f"n{n}") for n in range(10)))

    roles = {"master": fan, "ann": lambda body: answer(task_of(body).removeprefix("part "))}
    async with playing(serving, roles, worker_slots=1) as house:
        assert content(await house.say("Go", model="master")) == "0 1 2 3 4 5 6 7 8 9"
        labels = await house.db.rows("SELECT label FROM sessions WHERE agent = 'ann' ORDER BY label")
        assert [row["label"] for row in labels] == [f"n{n}" for n in range(10)]


class Meeting:
    """Replies only once so many requests are there at the same time."""

    def __init__(self, size: int) -> None:
        self.missing = size
        self.complete = asyncio.Event()

    async def pass_through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        host, port = target.removeprefix("http://").removesuffix("/v1").split(":")
        inner, outer = await asyncio.open_connection(host, int(port))
        request = await _message(reader)
        if b"I am ann." in request or b"I am ben." in request:
            self.missing -= 1
            if not self.missing:
                self.complete.set()
            async with asyncio.timeout(10):
                await self.complete.wait()
        outer.write(request)
        writer.write(await _message(inner))
        await writer.drain()
        writer.close()
        outer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """One HTTP message with a known length."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head + await reader.readexactly(int(length.partition(b":")[2]))


async def test_several_children_think_at_the_same_time(serving: Serving) -> None:
    both = in_steps(calls(ask("ann", "one"), ask("ben", "two")), answer("both are back"))
    roles = {"master": both, "ann": in_steps(answer("1")), "ben": in_steps(answer("2"))}
    meeting = Meeting(2)
    async with serve_model(cast(**roles)) as model:
        proxy = await asyncio.start_server(
            lambda reader, writer: meeting.pass_through(reader, writer, model.url), "127.0.0.1", 0
        )
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/v1"
        async with proxy, serving(llm_base_url=url, templates=CAST, tools=[SignTool], worker_slots=2) as house:
            assert content(await house.say("Go", model="master")) == "both are back"
            assert meeting.complete.is_set()


async def test_the_same_child_called_twice_in_one_reply_takes_one_after_the_other(serving: Serving) -> None:
    def count(body: Body) -> Say:
        return answer(f"{task_of(body)} after {len(body.messages) - 2} messages")

    def twice(body: Body) -> Say:
        if step_of(body.messages):
            return answer(", ".join(results(body)))
        return calls(ask("ann", "first"), ask("ann", "second"), ask("ann", "third", label="other"))

    async with playing(serving, {"master": twice, "ann": count}) as house:
        said = content(await house.say("Go", model="master"))
        assert said == "first after 0 messages, second after 2 messages, third after 0 messages"


async def test_constraints_are_part_of_what_the_child_reads(serving: Serving) -> None:
    roles = {
        "master": in_steps(ask("ann", "Write.", constraints={"length": "one line"}), answer("done")),
        "ann": lambda body: answer(task_of(body)),
    }
    async with playing(serving, roles) as house:
        said = await house.say("Go", model="master")
        told = await outcome_of_first(house, said["model"], "agent.ann")
        assert told.content == 'Write.\nConstraints:\n{"length": "one line"}'


async def test_an_answer_beside_a_call_waits_for_the_call(serving: Serving) -> None:
    roles = {
        "master": in_steps(calls(ask("ann", "Look."), answer("ann was asked"))),
        "ann": in_steps(answer("seen")),
    }
    async with playing(serving, roles) as house:
        said = await house.say("Go", model="master")
        assert content(said) == "ann was asked"
        kinds = await house.kinds(said["model"])
        assert kinds[3:] == ["Replied", "Called", "Called", "Returned", "Returned", "Finished"]
        assert (await house.folded(await session_of(house.db, "ann"))).state == "COMPLETED"


async def test_a_child_that_ends_in_the_reply_in_which_it_calls_somebody_is_heard(serving: Serving) -> None:
    roles = {
        "master": lambda body: last_result(body) if step_of(body.messages) else ask("ann", "Look."),
        "ann": in_steps(calls(ask("ben", "Go on with it.", wait=False), answer("ben is at it"))),
        "ben": in_steps(answer("done")),
    }
    async with playing(serving, roles) as house:
        async with asyncio.timeout(10):
            assert content(await house.say("Go", model="master")) == "ben is at it"


async def test_a_child_whose_only_other_call_was_refused_is_heard(serving: Serving) -> None:
    roles = {
        "master": lambda body: last_result(body) if step_of(body.messages) else ask("ann", "Look."),
        "ann": in_steps(calls(ask("ann", "Do it yourself."), answer("there is only me"))),
    }
    async with playing(serving, roles) as house:
        async with asyncio.timeout(10):
            assert content(await house.say("Go", model="master")) == "there is only me"


@pytest.mark.parametrize("way", list(WRITE))
async def test_agents_call_each_other_in_every_way_to_think(serving: Serving, way: str) -> None:
    tools = ("reasoningtool", *PLAIN)
    templates = [agent(name, calls=["ann"], tools=tools, base_agent_class=way) for name in ("master", "ann")]
    name = "agent.ann" if way == "SGRAgent" else "agent_ann"
    asks = (name, {"task": "Look.", "constraints": None, "label": None, "wait": None})
    acts = [written(way, asks), written(way, ("finalanswertool", {"answer": "seen", "status": "completed"}))]
    script = [*acts[0], *acts[1], *written(way, ("finalanswertool", {"answer": "ann has", "status": "completed"}))]
    async with serving(script, templates=templates, tools=[SignTool]) as house:
        said = await house.say("Go", model="master")
        assert content(said) == "ann has"
        assert await outcome_of_first(house, said["model"], "agent.ann") == events.Output(content="seen")


async def outcome_of_first(house: House, session_id: str, tool: str) -> Any:
    journal = [one.event for one in await house.journal(session_id)]
    call = next(one.call for one in journal if isinstance(one, events.Called) and one.tool == tool)
    return next(one.outcome for one in journal if isinstance(one, events.Returned) and one.call == call)
