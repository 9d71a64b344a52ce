"""What one reply of a model leads to: calls are made, refused, awaited; and every one of them is answered."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import msgspec
import pydantic
from engine_fixture import Gate, Room

from longhouse.journal import events
from longhouse.journal.events import Fault, Output
from longhouse.journal.messages import Assistant
from longhouse.journal.session import Open, State
from longhouse.models.scripted import Call, Say, call, calls, say
from longhouse.runtime.bus.items import Fragment
from longhouse.runtime.engine import _is_spent
from longhouse.runtime.steps.reply_handler import MAX_CALLS
from longhouse.runtime.workers.instances import InstanceStatus
from longhouse.store.database import Database
from longhouse.tools import BaseTool, ToolContext
from longhouse.tools.bindings.base import class_binding
from server_helpers import folded, opened, prompted, turn_of

FINISH = call("finalanswertool", answer="Done.")


async def commits(db: Database, session_id: str, kind: str) -> int:
    """In how many appends the events of a kind were written."""
    query = "SELECT count(DISTINCT append_id) FROM journal WHERE session_id = :session AND kind = :kind"
    return int(await db.value(query, session=session_id, kind=kind))


async def test_a_turn_from_the_prompt_to_its_answer(db: Database) -> None:
    room = Room(db, [calls(say("Let me see."), call("echo", text="hi")), FINISH])
    session = await room.run()
    assert (session.state, session.client_text) == (State.COMPLETED, "Let me see.\n\nDone.")
    assert await room.kinds(session.id) == [
        "Opened", "Prompted", "Started", "Replied", "Called", "Returned", "Replied", "Called", "Returned", "Finished",
    ]  # fmt: skip
    replied = (await room.found(session.id, events.Replied))[0]
    assert (replied.text, replied.streamed_chars) == ("Let me see.", len("Let me see."))
    assert replied.offered == ("clarificationtool@1", "finalanswertool@1", "echo@1", "broken@1")
    assert len(replied.digest) == 64
    called = (await room.found(session.id, events.Called))[0]
    assert (called.call, called.provider_id, called.tool) == ("1-action-0", "call_1", "echo")
    row = await room.row(session.id)
    assert (row["state"], row["holder"], row["due"], row["head"]) == ("COMPLETED", None, False, 10)
    assert [one.status for one in room.engine.pool.instances] == [InstanceStatus.IDLE]


async def test_a_step_costs_two_commits_and_the_end_one(db: Database) -> None:
    room = Room(db, [call("echo"), FINISH])
    session = await room.run()
    query = "SELECT count(DISTINCT append_id) FROM journal WHERE session_id = :session AND seq > 3"
    assert await db.value(query, session=session.id) == 3


async def test_the_models_arguments_keep_their_order(db: Database) -> None:
    written = '{"z": 1,  "text": "hi", "a": {"y": 2, "b": 3}}'
    room = Room(db, [Say(calls=(Call(name="echo", arguments=written),)), FINISH])
    session = await room.run()
    assert (await room.found(session.id, events.Called))[0].arguments == written
    shown = room.model.bodies[-1].messages[2]
    assert isinstance(shown, Assistant)
    assert shown.tool_calls[0].function.arguments == written


async def test_arguments_are_parsed_once_although_they_are_checked_before_the_call_is_recorded(db: Database) -> None:
    class Counted(BaseTool):
        """Says it back."""

        parsed: ClassVar[list[str]] = []
        text: str

        @pydantic.model_validator(mode="after")
        def note(self) -> Self:
            self.parsed.append(self.text)
            return self

        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            return self.text

    two = calls(call("counted", text="a"), call("counted", text="b"))
    room = Room(db, [two, call("counted", text="c"), FINISH], [Counted])
    session = await room.run()
    assert (session.state, Counted.parsed) == (State.COMPLETED, ["a", "b", "c"])
    assert room.toolbox._checked == {}  # what was said does not stay where nothing erases it
    # Another process, or a tool that has changed meanwhile, parses them itself.
    tool = await room.toolbox.resolve("counted", 1)
    assert tool is not None
    again = Open(call="9-action-0", tool="counted", arguments='{"text": "d"}', seq=0)
    changes: list[Callable[[], None]] = [lambda: None, lambda: room.toolbox.add(class_binding(Counted))]
    for change in (*changes, room.toolbox._bound.clear):
        assert await room.toolbox.check(tool, again.arguments, before=(session.id, again.call)) is None
        change()
        result = await room.toolbox.perform(again, session, turn_of(session))
        assert result.outcome == Output(content="d")
    other = msgspec.structs.replace(again, arguments='{"text": "e"}')
    assert await room.toolbox.check(tool, again.arguments, before=(session.id, again.call)) is None
    assert (await room.toolbox.perform(other, session, turn_of(session))).outcome == Output(content="e")
    assert Counted.parsed[3:] == [*["d"] * 6, "e"]


async def test_parallel_calls_are_all_answered_and_shown_in_the_order_of_the_calls(db: Database) -> None:
    class First(Gate):
        """Comes last."""

    room = Room(db, [calls(call("first"), call("broken"), call("echo", text="third")), FINISH], [First])
    session_id = await room.prompt()
    running = asyncio.create_task(room.advance(session_id))
    await room.until(session_id, events.Returned, 2)
    First.passed.set()
    session = await running
    assert session.state is State.COMPLETED
    order = [one.call for one in await room.found(session_id, events.Returned)][:3]
    assert order[2] == "1-action-0"
    assert room.results() == ["passed", "Error: ValueError: it is broken", "third"]


async def test_outcomes_that_arrive_together_are_one_commit(db: Database) -> None:
    class One(Gate):
        """Waits."""

    room = Room(db, [calls(call("one"), call("one"), call("one")), FINISH], [One])
    session_id = await room.prompt()
    running = asyncio.create_task(room.advance(session_id))
    async with asyncio.timeout(10):
        while len(One.times) < 3:
            await asyncio.sleep(0.005)
    One.passed.set()
    await running
    assert len(await room.found(session_id, events.Returned)) == 4
    assert await commits(db, session_id, "Returned") == 2, "three outcomes in one append, the answer in another"
    assert sorted(One.times) == [f"{session_id}:1-action-{n}" for n in range(3)]


async def test_a_raising_tool_is_an_outcome_that_the_model_reads(db: Database) -> None:
    room = Room(db, [call("broken"), FINISH])
    session = await room.run()
    fault = Fault(code="tool_failed", message="ValueError: it is broken")
    assert (await room.outcomes(session.id))["1-action-0"] == fault
    assert room.results() == ["Error: ValueError: it is broken"]
    assert session.state is State.COMPLETED


async def test_a_tool_that_tries_to_leave_ends_only_its_call(db: Database) -> None:
    class Leaving(BaseTool):
        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            raise asyncio.CancelledError

    class Exiting(BaseTool):
        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            raise SystemExit

    room = Room(db, [calls(call("leaving"), call("exiting"), call("echo")), FINISH], [Leaving, Exiting])
    session = await room.run()
    assert room.results() == ["Error: CancelledError: ", "Error: SystemExit: ", "echo"]
    assert session.state is State.COMPLETED


async def test_each_call_has_its_own_time(db: Database) -> None:
    class Sleepy(Gate):
        """Never wakes."""

        timeout: ClassVar[float] = 0.05

    room = Room(db, [calls(call("sleepy"), call("echo")), FINISH], [Sleepy])
    session = await room.run()
    assert room.results() == ["Error: sleepy did not answer within 0.05 seconds", "echo"]
    outcome = (await room.outcomes(session.id))["1-action-0"]
    assert isinstance(outcome, Fault)
    assert outcome.code == "timeout"


async def test_a_call_that_cannot_be_made_is_refused_and_journaled(db: Database) -> None:
    refusals = [
        ("invented", "{}", "not_offered", "'invented' is not among the tools that are open now"),
        ("clocktool", "{}", "not_offered", "'clocktool' is not among the tools that are open now"),
        ("", "{}", "not_offered", "'' is not among the tools that are open now"),
        ("echo", '{"text": 7}', "bad_arguments", "text: Input should be a valid string"),
        ("echo", '{"text": ', "bad_arguments", "Invalid JSON"),
        ("clarificationtool", '{"questions": []}', "bad_arguments", "questions: List should have at least 1 item"),
        ("finalanswertool", "{}", "bad_arguments", "answer: Field required"),
    ]
    room = Room(db, [Say(calls=tuple(Call(name=one[0], arguments=one[1]) for one in refusals)), FINISH])
    session = await room.run()
    called, outcomes = await room.found(session.id, events.Called), await room.outcomes(session.id)
    for made, shown, (name, arguments, code, words) in zip(called, room.results(), refusals, strict=False):
        assert (made.tool, made.arguments) == (name, arguments)
        outcome = outcomes[made.call]
        assert isinstance(outcome, Fault)
        assert outcome.code == code
        assert words in outcome.message
        assert words in shown
    assert (len(called), len(room.results())) == (len(refusals) + 1, len(refusals))
    assert session.state is State.COMPLETED


async def test_of_too_many_calls_the_first_are_made_and_the_others_refused(db: Database) -> None:
    room = Room(db, [calls(*(call("echo", text=str(n)) for n in range(MAX_CALLS + 8))), FINISH])
    session = await room.run()
    refused = f"Error: only {MAX_CALLS} calls of one reply are made"
    assert room.results() == [*(str(n) for n in range(MAX_CALLS)), *[refused] * 8]
    assert session.state is State.COMPLETED


async def test_the_final_answer_waits_for_the_calls_beside_it(db: Database) -> None:
    class Last(Gate):
        """Still running."""

    room = Room(db, [calls(FINISH, call("last"))], [Last])
    session_id = await room.prompt()
    running = asyncio.create_task(room.advance(session_id))
    await asyncio.wait_for(Last.begun.wait(), 10)
    assert (await room.outcomes(session_id)) == {"1-action-0": Output(content="Done.")}
    Last.passed.set()
    session = await running
    assert (session.state, session.client_text) == (State.COMPLETED, "Done.")
    assert (await room.kinds(session_id))[3:] == ["Replied", "Called", "Returned", "Called", "Returned", "Finished"]
    assert len(room.model.bodies) == 1


async def test_a_question_beside_the_final_answer_is_refused_since_nobody_would_wait_for_it(db: Database) -> None:
    room = Room(db, [calls(call("clarificationtool", questions=["Sure?"]), FINISH)])
    session = await room.run()
    assert (session.state, session.client_text) == (State.COMPLETED, "Done.")
    outcome = (await room.outcomes(session.id))["1-action-0"]
    assert isinstance(outcome, Fault)
    assert outcome.code == "answered"
    assert len(room.model.bodies) == 1


async def test_of_two_final_answers_the_first_stands_and_only_it_is_shown(db: Database) -> None:
    room = Room(db, [calls(FINISH, call("finalanswertool", answer="Something else."))])
    session_id = await room.prompt()
    with room.bus.subscribed(session_id) as subscription:
        session = await room.advance(session_id)
        items = await subscription.take()
    assert session.client_text == "Done."
    assert "".join(one.text for one in items if isinstance(one, Fragment) and one.kind == "content") == "Done."


async def test_an_agent_that_says_it_failed_has_failed_in_its_own_words(db: Database) -> None:
    room = Room(db, [call("finalanswertool", answer="I could not.", status="failed")])
    session = await room.run()
    assert (session.state, session.client_text) == (State.FAILED, "I could not.")
    assert (await room.journal(session.id))[-1].event == events.Failed(reason="I could not.", code="agent_failed")


async def test_text_without_a_call_is_the_answer(db: Database) -> None:
    room = Room(db, [say("Just so.")])
    session = await room.run()
    assert (session.state, session.client_text) == (State.COMPLETED, "Just so.")
    assert (await room.kinds(session.id))[2:] == ["Started", "Replied", "Finished"]


async def test_an_answer_is_shown_while_it_is_written_and_thoughts_apart_from_it(db: Database) -> None:
    answer = Say(
        text="hm", reasoning="deep", calls=(Call(name="finalanswertool", arguments={"answer": "Hello"}),), chunk=4
    )
    room = Room(db, [answer])
    session_id = await room.prompt()
    with room.bus.subscribed(session_id) as subscription:
        await room.advance(session_id)
        fragments = [one for one in await subscription.take() if isinstance(one, Fragment)]
    assert "".join(one.text for one in fragments if one.kind == "content") == "hm\n\nHello"
    assert "".join(one.text for one in fragments if one.kind == "reasoning") == "deep"
    assert {(one.after, one.fence) for one in fragments} == {(3, 1)}
    assert room.bus.draft(session_id) is None


async def test_a_question_rests_without_a_holder_and_its_answer_goes_on(db: Database) -> None:
    ask = calls(call("clarificationtool", questions=["Which city?", "When?"]), call("echo"))
    room = Room(db, [ask, FINISH])
    session = await room.run()
    assert (session.state, session.client_text) == (State.WAITING_FOR_CLARIFICATION, "Which city?\nWhen?")
    row = await room.row(session.id)
    assert (row["holder"], row["due"], row["state"]) == (None, False, "WAITING_FOR_CLARIFICATION")
    await room.answer(session.id, "1-action-0", "Oslo, today")
    session = await room.advance(session.id)
    assert session.state is State.COMPLETED
    assert [message.content for message in room.model.bodies[-1].messages[3:]] == [
        "Which city?\nWhen?", "echo", "Oslo, today",
    ]  # fmt: skip


async def test_what_a_tool_wrote_is_journaled_and_reaches_the_next_one(db: Database) -> None:
    class Counting(BaseTool):
        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            context.searches_used += 1
            context.sources[f"u{context.searches_used}"] = {"title": "T"}
            return str(sorted(context.sources))

    room = Room(db, [call("counting"), call("counting"), FINISH], [Counting])
    session = await room.run()
    assert room.results() == ["['u1']", "['u1', 'u2']"]
    assert session.context == {"sources": {"u1": {"title": "T"}, "u2": {"title": "T"}}}
    assert session.turn is not None
    assert session.turn.searches_used == 2
    first = (await room.found(session.id, events.Returned))[0]
    assert first.adds == {"searches_used": 1, "sources": {"u1": {"title": "T"}}}


async def test_what_must_not_happen_twice_is_written_down_before_it_happens_even_where_it_is_part_of_the_reply(
    db: Database,
) -> None:
    class Stamp(BaseTool):
        """Put a stamp on it."""

        inline: ClassVar[bool] = True
        effect: ClassVar[events.Effect] = "once"
        known: ClassVar[list[int]] = []

        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            self.known.append(await db.value("SELECT count(*) FROM journal WHERE kind = 'Called'"))
            return "stamped"

    room = Room(db, [call("stamp"), FINISH], tools=[Stamp])
    session = await room.run()
    assert session.state is State.COMPLETED
    assert Stamp.known == [1]
    assert room.results() == ["stamped"]


async def test_a_description_that_says_once_is_kept_where_its_class_is_part_of_the_reply(db: Database) -> None:
    class Seal(BaseTool):
        """Put a seal on it; the class does not say that it must not happen twice."""

        inline: ClassVar[bool] = True
        known: ClassVar[list[int]] = []

        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            self.known.append(await db.value("SELECT count(*) FROM journal WHERE kind = 'Called'"))
            return "sealed"

    room = Room(db, [call("seal"), FINISH], tools=[Seal])
    session_id = await room.prompt()
    await room.catalog.tools.publish([replace(Seal.descriptor(), effect="once")], by="a file")
    assert (await room.advance(session_id)).state is State.COMPLETED
    assert Seal.known == [1]


def test_a_budget_of_turns_keeps_back_what_a_client_asked_for_also_in_a_branch_of_a_sub_agent() -> None:
    for side, root, is_kept_back in (("root", "", True), ("sub", "", True), ("sub", "above", False)):
        branch: Any = msgspec.structs.replace(opened(), side=side)
        session = folded(branch, prompted("x", root=root))
        run: Any = SimpleNamespace(session=session, spent="turns_per_day")
        assert _is_spent(run) == is_kept_back
        run.spent = "tokens_per_day"
        assert _is_spent(run)
