"""When stubs are not enough, the oldest turns become a summary: over a real Postgres, with a scripted model."""

from dataclasses import replace
from typing import Any

from engine_fixture import Room

from longhouse.agents.requests import tokens
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import ExecutionPolicy, LLMPolicy
from longhouse.journal import events
from longhouse.journal.messages import Message, User
from longhouse.models.scripted import Say, ScriptedStatus, call, calls, say
from longhouse.runtime.steps import condense
from longhouse.runtime.steps.retry_limits import RetryLimits
from longhouse.store import journals
from longhouse.store.database import Database

BUDGET = 2_000
SO_FAR = "Summary of the conversation so far:\n"
LONG = "words " * 800
"""Of 1,200 tokens: two such turns are too much."""


class SmallRoom(Room):
    """A template whose window is small."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.template = replace(self.template, llm_policy=LLMPolicy(model="m", context_tokens=BUDGET))
        self.engine = self.another("w1", retry_limits=RetryLimits(first=0.0))

    async def turn(self, text: str, session_id: str | None = None) -> str:
        session_id = await self.prompt(text, session_id)
        await self.advance(session_id)
        return session_id

    def seen(self, request: int = -1) -> list[Message]:
        return list(self.model.bodies[request].messages)


def answer(text: str) -> Any:
    return call("finalanswertool", answer=text)


async def test_the_oldest_turns_become_a_summary_in_an_append_of_its_own(db: Database) -> None:
    room = SmallRoom(db, [answer("One."), say("They spoke of words."), answer("Two.")])
    session_id = await room.turn(LONG)
    await room.turn(f"Second {LONG}", session_id)
    assert await room.kinds(session_id) == [
        "Opened", "Prompted", "Started", "Replied", "Called", "Returned", "Finished",
        "Prompted", "Started", "Condensed", "Replied", "Called", "Returned", "Finished",
    ]  # fmt: skip
    [fact] = await room.found(session_id, events.Condensed)
    assert (fact.upto, fact.summary) == (4, "They spoke of words.")
    replied = (await room.found(session_id, events.Replied))[-1]
    session = await journals.load(room.db, session_id)
    assert session.turn is not None
    assert (
        session.turn.usage.total_tokens
        == fact.usage.total_tokens + replied.usage.total_tokens
        > replied.usage.total_tokens
    )
    appends = "SELECT count(*) FROM journal WHERE append_id = (SELECT append_id FROM journal WHERE kind = 'Condensed')"
    assert await room.db.value(appends) == 1
    assert room.seen()[1:] == [
        User(content="Summary of the conversation so far:\nThey spoke of words."),
        User(content=f"Second {LONG}"),
    ]


async def test_the_model_is_shown_the_old_turns_as_text_and_offered_nothing(db: Database) -> None:
    room = SmallRoom(db, [call("echo", text="e" * 9_000), answer("One."), say("Summary."), answer("Two.")])
    session_id = await room.turn(f"First {LONG}")
    await room.turn(f"Second {LONG}", session_id)
    asked = room.model.bodies[-2]
    assert [type(message).__name__ for message in asked.messages] == ["System", "User"]
    assert asked.messages[0].content == condense.INSTRUCTIONS
    assert (asked.tools, asked.tool_choice) == ((), "")
    story = asked.messages[1].content
    assert isinstance(story, str)
    assert story.startswith("[user] First words")
    assert "[assistant calls echo]" in story
    assert "[tool] eeee" in story
    assert "Second" not in story
    assert tokens.total(asked.messages) <= BUDGET


async def test_a_summary_is_summarised_again_with_what_came_after_it(db: Database) -> None:
    replies = [answer("One."), say("First summary."), answer("Two."), say("Second summary."), answer("Three.")]
    room = SmallRoom(db, replies)
    session_id = await room.turn(LONG)
    await room.turn(f"Second {LONG}", session_id)
    await room.turn(f"Third {LONG}", session_id)
    assert "First summary." in str(room.model.bodies[3].messages[1].content)
    assert [message.content for message in room.seen()[1:]] == [
        "Summary of the conversation so far:\nSecond summary.", f"Third {LONG}",
    ]  # fmt: skip


async def test_turns_that_fit_stay_as_they_are(db: Database) -> None:
    room = SmallRoom(db, [answer("One."), answer("Two."), say("Summary."), answer("Three.")])
    session_id = await room.turn(LONG)
    await room.turn("A short one", session_id)
    await room.turn("Third " + "words " * 500, session_id)
    shown = [message.content for message in room.seen()]
    assert shown[1:3] == ["Summary of the conversation so far:\nSummary.", "A short one"]


async def test_a_task_is_never_condensed(db: Database) -> None:
    room = SmallRoom(db, [answer("One.")])
    session_id = await room.turn(LONG * 3)
    assert "Condensed" not in await room.kinds(session_id)
    assert (await journals.load(db, session_id)).state == "COMPLETED"


def spoken(nth: int) -> Any:
    """A step whose words alone take a fifth of the budget."""
    return calls(say(f"Thought {nth}. " + "words " * 270), call("echo", text=f"word {nth}"))


async def test_the_oldest_steps_of_a_turn_become_a_summary_and_its_task_stays(db: Database) -> None:
    steps = [spoken(nth) for nth in range(5)]
    room = SmallRoom(db, [*steps, say("Five words were said."), spoken(5), answer("Done.")])
    session_id = await room.turn("Say seven words.")
    kinds = await room.kinds(session_id)
    assert kinds.count("Condensed") == 1
    assert kinds[-1] == "Finished"
    story = str(room.model.bodies[5].messages[1].content)
    assert story.startswith("[user] Say seven words.")
    assert ("Thought 0." in story, "Thought 4." in story) == (True, False)
    task, summary = User(content="Say seven words."), User(content=f"{SO_FAR}Five words were said.")
    for request in (6, 7):
        assert room.seen(request)[1:3] == [summary, task]
        assert tokens.total(room.seen(request)) <= BUDGET
    assert room.results() == ["word 3", "word 4", "word 5"]
    session = await journals.load(db, session_id)
    assert len(session.steps) == 7, "what was done still counts in this turn"


async def test_a_turn_is_condensed_again_and_again_and_the_next_one_begins_from_there(db: Database) -> None:
    steps = iter([*(spoken(nth) for nth in range(20)), answer("Done."), answer("Next.")])

    def reply(body: Body) -> Say:
        return next(steps) if body.tools else say(f"Summary of {tokens.total(body.messages)} tokens.")

    room = SmallRoom(db, reply, policy=ExecutionPolicy(max_iterations=50))
    session_id = await room.turn("Say twenty words.")
    facts = await room.found(session_id, events.Condensed)
    assert len(facts) > 3
    assert [fact.upto for fact in facts] == sorted({fact.upto for fact in facts})
    asked = [body for body in room.model.bodies if body.tools]
    assert max(tokens.total(body.messages) for body in asked) <= BUDGET
    assert all(User(content="Say twenty words.") in body.messages for body in asked)
    await room.turn("Next", session_id)
    shown = [message.content for message in room.seen() if isinstance(message, User)]
    assert shown == [f"{SO_FAR}{facts[-1].summary}", "Say twenty words.", "Next"]


async def test_what_the_last_step_brought_is_never_condensed(db: Database) -> None:
    room = SmallRoom(db, [call("echo", text="e" * 9_000), answer("One.")])
    session_id = await room.turn("Go")
    assert "Condensed" not in await room.kinds(session_id)
    assert room.results() == ["e" * 9_000]


async def test_within_the_budget_nothing_is_condensed(db: Database) -> None:
    room = SmallRoom(db, [answer("One."), answer("Two.")])
    session_id = await room.turn("First")
    await room.turn("Second", session_id)
    assert "Condensed" not in await room.kinds(session_id)


async def test_stubs_come_before_summaries(db: Database) -> None:
    room = SmallRoom(db, [call("echo", text="e" * 7_000), answer("One."), answer("Two.")])
    session_id = await room.turn("First")
    await room.turn("Second", session_id)
    assert "Condensed" not in await room.kinds(session_id)
    assert room.results()[0].startswith("[result of echo left out")


async def test_a_summary_without_end_is_cut_to_its_part_of_the_budget(db: Database) -> None:
    room = SmallRoom(db, [answer("One."), say("слово " * 5_000), answer("Two.")])
    session_id = await room.turn(LONG)
    await room.turn(f"Second {LONG}", session_id)
    [fact] = await room.found(session_id, events.Condensed)
    assert 0 < tokens.estimate(fact.summary) <= condense.LONGEST * BUDGET
    assert fact.summary.startswith("слово слово")


async def test_provider_trouble_over_a_summary_is_waited_out(db: Database) -> None:
    trouble = say("", fault=ScriptedStatus(status=503, retry_after=0))
    room = SmallRoom(db, [answer("One."), trouble, say("Summary."), answer("Two.")])
    session_id = await room.turn(LONG)
    await room.prompt(f"Second {LONG}", session_id)
    resting = await room.advance(session_id)
    assert resting.is_running
    assert (await room.row(session_id))["attempts"] == 1
    await room.advance(session_id)
    assert [fact.summary for fact in await room.found(session_id, events.Condensed)] == ["Summary."]
    assert [fact.answer for fact in await room.found(session_id, events.Finished)] == ["One.", "Two."]


async def test_an_empty_summary_counts_as_trouble_and_a_refusal_ends_the_turn_in_words(db: Database) -> None:
    room = SmallRoom(db, [answer("One."), say(" \n"), say("", fault=ScriptedStatus(status=400, message="No."))])
    session_id = await room.turn(LONG)
    await room.prompt(f"Second {LONG}", session_id)
    resting = await room.advance(session_id)
    assert resting.is_running
    ended = await room.advance(session_id)
    assert ended.turn is not None
    assert (ended.state, ended.turn.code) == ("FAILED", "provider_error")
    assert "Condensed" not in await room.kinds(session_id)
