"""When stubs are not enough, the oldest turns become a summary: over a real Postgres, with a scripted model."""

from dataclasses import replace
from typing import Any

from engine_room import Room

from longhouse.agents import tokens
from longhouse.agents.template import LLMPolicy
from longhouse.journal import events
from longhouse.journal.messages import Message, User
from longhouse.models.scripted import Status, call, say
from longhouse.runtime import condense
from longhouse.runtime.engine import Patience
from longhouse.store import journals
from longhouse.store.database import Database

BUDGET = 2_000
LONG = "words " * 800
"""Of 1,200 tokens: two such turns are too much."""


class SmallRoom(Room):
    """A template whose window is small."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.template = replace(self.template, llm_policy=LLMPolicy(model="m", context_tokens=BUDGET))
        self.engine = self.another("w1", patience=Patience(first=0.0))

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


async def test_the_present_turn_is_never_condensed(db: Database) -> None:
    room = SmallRoom(db, [answer("One.")])
    session_id = await room.turn(LONG * 3)
    assert "Condensed" not in await room.kinds(session_id)
    assert (await journals.load(db, session_id)).state == "COMPLETED"


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
    trouble = say("", fault=Status(status=503, retry_after=0))
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
    room = SmallRoom(db, [answer("One."), say(" \n"), say("", fault=Status(status=400, message="No."))])
    session_id = await room.turn(LONG)
    await room.prompt(f"Second {LONG}", session_id)
    resting = await room.advance(session_id)
    assert resting.is_running
    ended = await room.advance(session_id)
    assert ended.turn is not None
    assert (ended.state, ended.turn.code) == ("FAILED", "provider_error")
    assert "Condensed" not in await room.kinds(session_id)
