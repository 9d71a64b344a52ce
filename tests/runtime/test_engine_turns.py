"""Whole turns under the engine: their limits, their queue, and a model in trouble."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from engine_fixture import AGENT, Echo, Gate, Room, under_way

from longhouse import clock
from longhouse.agents import rules
from longhouse.agents.rules import GRACE
from longhouse.agents.strategies.tool_calling import ToolCallingAgent
from longhouse.agents.template import Availability, ExecutionPolicy, Rules
from longhouse.agents.tool_descriptor import Allow, RateLimits, SecurityOverlay
from longhouse.journal import events
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import State
from longhouse.journal.transcript import PromptEntry
from longhouse.models.scripted import Call, Cut, Garbage, Say, ScriptedStatus, call, calls, say
from longhouse.runtime.steps.retry_limits import RetryLimits
from longhouse.store import journals, leases
from longhouse.store.database import Database
from longhouse.store.lists import session_counters
from longhouse.tools import BaseTool, ToolContext

FINISH = call("finalanswertool", answer="Done.")


class Lever(BaseTool):
    """Changes what the agent is offered, while it works."""

    act: str
    pull: ClassVar[Callable[[str], Awaitable[None]]]

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        await type(self).pull(self.act)
        return "pulled"


def told(room: Room, request: int) -> str:
    """The tools of a request, as they are sent."""
    return b"".join(map(bytes, room.model.bodies[request].tools)).decode()


async def test_at_max_iterations_an_agent_is_left_with_words(db: Database) -> None:
    room = Room(db, [call("echo"), call("echo"), FINISH], policy=ExecutionPolicy(max_iterations=2))
    session = await room.run()
    assert (session.state, session.client_text) == (State.COMPLETED, "Done.")
    assert "echo" in room.offered(1)
    assert room.offered(2) == ["finalanswertool"]
    replied = (await room.found(session.id, events.Replied))[-1]
    assert replied.withdrawn == ("clarificationtool@1", "echo@1", "broken@1")
    assert session.offered == ("finalanswertool@1",)


async def test_an_agent_that_will_not_finish_is_ended_in_words(db: Database) -> None:
    room = Room(db, lambda body: call("echo"), policy=ExecutionPolicy(max_iterations=2))
    session = await room.run()
    assert session.state is State.FAILED
    reason = "the agent did not finish within its limit of 2 steps"
    assert (await room.journal(session.id))[-1].event == events.Failed(reason=reason, code="limit_reached")
    assert len(room.model.bodies) == 2 + GRACE
    refused = (await room.outcomes(session.id))["3-action-0"]
    assert isinstance(refused, events.Fault)
    assert refused.code == "not_offered"


async def test_what_changes_in_mid_turn_is_in_the_next_request_of_the_same_run(db: Database) -> None:
    """All changes of one turn, in one process, within the time for which its tools are remembered."""
    acts = ("watch", "switch off", "swap", "publish", "allow", "retire", "watch")
    room = Room(db, [*(call("lever", act=act) for act in acts), FINISH, call("echo"), FINISH], [Lever])
    late = Availability(when="iteration >= 5", exclude=("clarificationtool",))
    room.template = replace(room.template, rules=Rules(availability=(late,)))
    tools, overlays = room.catalog.tools, room.catalog.overlays
    watched = SecurityOverlay(rate_limits=RateLimits(per_minute=60))

    async def lay(name: str, overlay: SecurityOverlay) -> None:
        await overlays.refresh()
        await overlays.set(name, overlay, seen=overlays.entry(name), by="ops")

    async def act(name: str) -> None:
        match name:
            case "watch":
                await lay("echo", watched)
            case "switch off":
                await lay("echo", replace(watched, enabled=False))
            case "swap":
                await lay("echo", SecurityOverlay())
                await lay("broken", SecurityOverlay(allow=Allow(templates=("another",))))
            case "publish":
                await tools.publish([replace(Echo.descriptor(), description_short="Говорит это же.")], by="ops")
            case "allow":
                await lay("broken", SecurityOverlay())
            case "retire":
                await tools.deactivate("echo", retire=True)

    Lever.pull = act
    session = await room.run()
    assert session.state is State.COMPLETED, session.turn
    every = {"finalanswertool", "clarificationtool", "echo", "broken", "lever"}
    assert [sorted(every.difference(room.offered(nth))) for nth in range(8)] == [
        [], [], ["echo"], ["broken"], ["broken"], ["clarificationtool"], ["clarificationtool", "echo"],
        ["clarificationtool", "echo"],
    ]  # fmt: skip
    assert (room.offered(3)[-1], room.offered(5)[-1]) == ("echo", "broken"), "what is new comes last"
    assert "Say it back." in told(room, 4), "a turn keeps the version that it was offered first"
    replies = [one for one in await room.found(session.id, events.Replied) if one.offered or one.withdrawn]
    assert [(*one.offered, "-", *one.withdrawn) for one in replies[1:]] == [
        ("-", "echo@1"), ("echo@1", "-", "broken@1"), ("broken@1", "-", "clarificationtool@1"), ("-", "echo@1")
    ]  # fmt: skip

    session_id = await room.prompt("Ещё раз", session.id)
    await tools.publish([replace(Echo.descriptor(), description_short="Говорит это же.")], by="ops")
    session = await room.advance(session_id)
    assert session.state is State.COMPLETED, session.turn
    assert "Говорит это же." in told(room, 8), "the next turn has the version that is active now"
    assert every.issubset(room.offered(8)), "rules of a turn that has just begun"


async def begun_before(room: Room, seconds: float, *, works: bool = True) -> str:
    """A session whose turn was started by a worker so long ago, and let go at once, or when it had worked until now."""
    session_id = await room.prompt()
    lease = await room.claim(session_id)
    session = await journals.load(room.db, session_id)
    started = events.Started(
        trace=session.queue[0].prompt.trace,
        prompt=2,
        version=1,
        instance="i",
        limits=room.policy.limits,
        date="2026-01-31",
    )
    at = clock.now() - timedelta(seconds=seconds)
    await journals.append(room.db, session, [started], fence=lease.fence, worker="w1", at=at, rest=None)
    if works:
        spent, session = events.Spent(usage=events.Usage()), await journals.load(room.db, session_id)
        await journals.append(room.db, session, [spent], fence=lease.fence, worker="w1", at=clock.now(), rest=None)
    await leases.let_go(room.db, lease)
    return session_id


async def test_a_turn_that_has_used_its_time_can_only_finish(db: Database) -> None:
    room = Room(db, [FINISH], policy=ExecutionPolicy(time_budget=1000))
    session = await room.advance(await begun_before(room, 1500))
    assert (session.state, session.client_text) == (State.COMPLETED, "Done.")
    assert room.offered() == ["finalanswertool"]


async def test_a_turn_that_has_used_twice_its_time_is_ended(db: Database) -> None:
    room = Room(db, [FINISH], policy=ExecutionPolicy(time_budget=1000))
    session = await room.advance(await begun_before(room, 2500))
    assert session.state is State.FAILED
    assert session.turn is not None
    assert session.turn.error == "the agent did not finish within its limit of 1000 seconds"
    assert room.model.bodies == []


async def test_time_without_a_worker_is_no_work(db: Database) -> None:
    """A deploy, a wait for a place or for a budget: nobody had the session."""
    step = call("echo", text="x")
    room = Room(db, [step, step, FINISH], policy=ExecutionPolicy(time_budget=1000))
    session = await room.advance(await begun_before(room, 2500, works=False))
    assert (session.state, len(room.offered())) == (State.COMPLETED, len(room.offered(0)))
    assert "echo" in room.offered()
    assert session.turn is not None
    assert rules.worked_seconds(session.turn) < 100
    [idle] = await room.found(session.id, events.Spent)
    assert 2490 < idle.waited < 2600, "once, with the first event of the run"


@pytest.mark.parametrize("minutes", [61, -61])
async def test_a_clock_that_is_set_while_a_tool_runs_is_no_work(
    db: Database, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    class Working(Gate):
        """Meanwhile the clock is set."""

    true, step = clock.now, call("echo", text="x")
    room = Room(db, [call("working"), step, FINISH], [Working])
    session_id = await room.prompt()
    running = await under_way(room, session_id, Working)
    monkeypatch.setattr(clock, "now", lambda: true() + timedelta(minutes=minutes))
    Working.passed.set()
    await running
    session = await journals.load(db, session_id)
    assert (session.state, room.offered()) == (State.COMPLETED, room.offered(0))
    assert session.turn is not None
    assert 0 <= rules.worked_seconds(session.turn) < 100
    [record] = (await session_counters.counted(db, {session_id: session.head})).values()
    assert 0 <= record.work_seconds < 100, "lists say the same"


async def test_after_enough_questions_no_more_are_offered(db: Database) -> None:
    ask = call("clarificationtool", questions=["Which?"])
    room = Room(db, [ask, ask, FINISH], policy=ExecutionPolicy(max_clarifications=1))
    session = await room.run()
    await room.answer(session.id, "1-action-0", "this")
    session = await room.advance(session.id)
    assert "clarificationtool" in room.offered(0)
    assert "clarificationtool" not in room.offered(1)
    assert room.results()[1] == "Error: 'clarificationtool' is not among the tools that are open now"
    assert session.state is State.COMPLETED


async def test_call_ids_go_on_counting_over_turns_while_limits_begin_again(db: Database) -> None:
    room = Room(db, [call("echo"), FINISH, call("echo"), FINISH], policy=ExecutionPolicy(max_iterations=2))
    session = await room.run()
    session = await room.advance(await room.prompt("More", session.id))
    assert list(await room.outcomes(session.id)) == ["1-action-0", "2-action-0", "3-action-0", "4-action-0"]
    assert session.state is State.COMPLETED
    assert "echo" in room.offered(2)


async def test_several_prompts_are_worked_off_in_one_claim(db: Database) -> None:
    room = Room(db, [say("one"), say("two"), say("three")])
    session_id = await room.prompt("first")
    await room.prompt("second", session_id)
    await room.prompt("third", session_id)
    session = await room.advance(session_id)
    assert [one.answer for one in await room.found(session_id, events.Finished)] == ["one", "two", "three"]
    prompts = [entry.content for entry in session.transcript if isinstance(entry, PromptEntry)]
    assert prompts == ["first", "second", "third"]
    assert {record.fence for record in await room.journal(session_id) if record.worker} == {1}
    assert (await room.row(session_id))["due"] is False


async def test_a_prompt_that_arrives_in_mid_step_waits_and_costs_nothing(db: Database) -> None:
    class Working(Gate):
        """In the middle of it."""

    room = Room(db, [call("working"), say("one"), say("two")], [Working])
    session_id = await room.prompt("first")
    running = asyncio.create_task(room.advance(session_id))
    await asyncio.wait_for(Working.begun.wait(), 10)
    await room.prompt("second", session_id)
    Working.passed.set()
    await running
    assert [one.answer for one in await room.found(session_id, events.Finished)] == ["one", "two"]
    assert (await room.kinds(session_id))[4:8] == ["Called", "Prompted", "Returned", "Replied"]
    assert len(room.model.bodies) == 3


async def test_an_answer_from_outside_while_a_tool_runs_is_taken_along(db: Database) -> None:
    class Working(Gate):
        """Beside a question."""

    room = Room(db, [calls(call("working"), call("clarificationtool", questions=["Which?"])), FINISH], [Working])
    session_id = await room.prompt()
    running = asyncio.create_task(room.advance(session_id))
    await asyncio.wait_for(Working.begun.wait(), 10)
    await room.answer(session_id, "1-action-1", "that one")
    Working.passed.set()
    session = await running
    assert session.state is State.COMPLETED
    assert [message.content for message in room.model.bodies[-1].messages[3:]] == ["passed", "Which?", "that one"]


async def test_an_outcome_that_somebody_settled_first_stands(db: Database) -> None:
    class Working(Gate):
        """Settled by hand meanwhile."""

    room = Room(db, [calls(call("working"), call("working")), FINISH], [Working])
    session_id = await room.prompt()
    running = asyncio.create_task(room.advance(session_id))
    await asyncio.wait_for(Working.begun.wait(), 10)
    await room.answer(session_id, "1-action-0", "by hand")
    Working.passed.set()
    session = await running
    assert session.state is State.COMPLETED
    assert room.results() == ["by hand", "passed"]


async def test_a_model_in_trouble_is_waited_out(db: Database) -> None:
    troubles = [
        Say(),
        say(" \n"),
        say("x", fault=ScriptedStatus(status=500)),
        say("x", fault=Garbage()),
        say("half an answer", fault=Cut(after=1)),
        Say(calls=(Call(name="echo"),), fault=Cut(after=1)),
    ]
    room = Room(db, [*troubles, FINISH])
    room.engine = room.another("w1", retry_limits=RetryLimits(first=0))
    session_id = await room.prompt()
    for attempt in range(1, len(troubles) + 1):
        session = await room.advance(session_id)
        assert session.state is State.RESEARCHING
        row = await room.row(session_id)
        assert (row["holder"], row["due"], row["attempts"]) == (None, False, attempt)
        assert (await leases.fire(db))[0] == [session_id]
    assert (await room.kinds(session_id))[2:] == ["Started", "Spent", "Spent"], "empty answers are paid for as well"
    session = await room.advance(session_id)
    assert (session.state, session.client_text) == (State.COMPLETED, "Done.")
    row = await room.row(session_id)
    assert (row["attempts"], row["troubled_at"], row["wake_at"]) == (0, None, None)
    [reply] = [one.event for one in await journals.read(db, session_id) if isinstance(one.event, events.Replied)]
    assert (reply.attempts, reply.troubled_at is None) == (len(troubles), False)


async def test_the_next_try_comes_in_time_though_the_clock_of_the_process_is_ahead(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = clock.now
    monkeypatch.setattr(clock, "now", lambda: true() + timedelta(hours=1))
    room = Room(db, [Say(), FINISH])
    session_id = await room.prompt()
    await room.advance(session_id)
    assert await db.value("SELECT wake_at < now() + interval '1 minute' FROM sessions WHERE id = :id", id=session_id)


async def test_past_all_patience_the_turn_ends_with_the_reason(db: Database) -> None:
    room = Room(db, [Say()])
    room.engine = room.another("w1", retry_limits=RetryLimits(attended=0, unattended=0))
    session = await room.run()
    last = (await room.journal(session.id))[-1].event
    assert last == events.Failed(reason="the model answered with nothing", code="provider_error")


async def test_patience_is_shorter_while_somebody_waits(db: Database) -> None:
    room = Room(db, [Say(), Say()])
    room.engine = room.another("w1", retry_limits=RetryLimits(attended=0, unattended=900))
    session = await room.run()
    assert session.state is State.RESEARCHING
    session_id = await room.prompt()
    with room.bus.subscribed(session_id):
        assert (await room.advance(session_id)).state is State.FAILED


async def test_what_a_provider_refuses_is_not_tried_again(db: Database) -> None:
    room = Room(db, [say("x", fault=ScriptedStatus(status=400, message="no such model"))])
    session = await room.run()
    assert session.state is State.FAILED
    assert session.turn is not None
    assert session.turn.code == "provider_error"
    assert "no such model" in (session.turn.error or "")


async def test_an_agent_that_is_not_known_any_more_ends_its_prompts_in_words(db: Database) -> None:
    room = Room(db, [FINISH])
    session_id = await room.prompt(version=9)
    session = await room.advance(session_id)
    assert session.state is State.FAILED
    assert (await room.kinds(session_id))[2:] == ["Started", "Failed"]
    assert session.turn is not None
    assert session.turn.error == f"the agent {AGENT!r} is not known here any more"


async def test_a_long_session_is_kept_as_a_snapshot_that_equals_its_journal(db: Database) -> None:
    many = calls(*(call("echo") for _ in range(32)))
    room = Room(db, [many, many, many, many, FINISH])
    session = await room.run()
    assert session.head > journals.SNAPSHOT_EVERY
    assert await db.value("SELECT seq FROM snapshots WHERE session_id = :session", session=session.id) == session.head
    assert await journals.load(db, session.id) == session
    await db.run("DELETE FROM snapshots")
    assert await journals.load(db, session.id) == session


async def test_every_request_can_be_composed_again_from_the_journal(db: Database) -> None:
    ask = call("clarificationtool", questions=["Which?"])
    script = [calls(say("hm"), call("echo", text="é"), call("broken")), ask, FINISH, ask, FINISH]
    room = Room(db, script, policy=ExecutionPolicy(max_clarifications=1))
    session = await room.run()
    await room.answer(session.id, "2-action-0", "this")
    await room.advance(session.id)
    await room.advance(await room.prompt("More", session.id))
    await room.answer(session.id, "4-action-0", "that")
    await room.advance(session.id)
    journal = await room.journal(session.id)
    replies = [index for index, record in enumerate(journal) if isinstance(record.event, events.Replied)]
    assert len(replies) == 5
    for index in replies:
        replied = journal[index].event
        offered = [room.toolbox.find(ref.partition("@")[0]) for ref in fold(journal[: index + 1], blank("")).offered]
        before = fold(journal[:index], blank(session.id))
        request = ToolCallingAgent().propose(before, room.template, [tool for tool in offered if tool])
        assert isinstance(replied, events.Replied)
        assert request.digest == replied.digest
