"""What a process has in memory of a session is what its journal says, however many processes write there."""

from typing import Any

from engine_fixture import Room

from longhouse.journal.events import Started
from longhouse.journal.messages import Assistant, User
from longhouse.models.scripted import call, calls, say
from longhouse.runtime.workers.resident_sessions import ResidentSessions
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.tools import BaseTool, ToolContext

FINISH = call("finalanswertool", answer="Готово, 完成.")
PRIOR = tuple(
    one for n in range(50) for one in (User(content=f"Вопрос {n}\ud7ff"), Assistant(content=f"答案 {n}\U0001f600"))
)


async def test_a_session_goes_on_from_what_the_process_has_and_equals_its_journal(db: Database) -> None:
    odd = calls(say("Смотрю. "), call("echo", text="é \u2028"), call("broken"), call("echo", text='{"a": [2.5]}'))
    ask = call("clarificationtool", questions=["Какой город?"])
    room = Room(db, [odd, ask, FINISH, odd, FINISH, FINISH, FINISH])
    here, there = room.engine, room.another("w2")
    asked = await room.advance(await room.prompt("Go", prior=PRIOR))
    await room.answer(asked.id, "2-action-0", "Осло")
    first = await room.advance(asked.id)
    assert await journals.load(db, first.id) == first
    # The history is the same object, not one more of the same.
    assert first.transcript[0] is asked.transcript[0]
    assert await here.resident.load(db, first.id, first.head) is first

    # Another process goes on: whoever comes back to this one reads what has happened since, and nothing else.
    await room.prompt("And now?", first.id)
    elsewhere = await room.advance(first.id, there)
    assert elsewhere.transcript[0] is not first.transcript[0]
    back = await here.resident.load(db, first.id)
    assert back == elsewhere == await journals.load(db, first.id)
    assert back.transcript[0] is first.transcript[0]
    # A worker that was given a later head than is known here reads up to it.
    await room.prompt("Again", first.id)
    assert (await here.resident.load(db, first.id, back.head + 1)).queue
    again = await room.advance(first.id)
    assert again == await journals.load(db, first.id)
    assert again.transcript[0] is first.transcript[0]


async def test_what_is_kept_is_bounded_and_goes_with_time_and_with_its_session(db: Database) -> None:
    room = Room(db, [FINISH] * 4)
    one, two, large = [await room.run(), await room.run(), await room.advance(await room.prompt("x" * 100_000))]
    size = 60_000  # a prompt counts twice: in its turn and in the transcript
    resident = ResidentSessions(most_bytes=size)
    for session in (one, two, large):
        resident.keep(session)
    assert resident.ids == {one.id, two.id}  # the large one would leave no room for others
    middle = await room.advance(await room.prompt("y" * (size // 2 - 1_500)))
    resident.keep(middle)
    assert resident.ids == {middle.id}
    resident.drop(middle.id)
    assert resident.ids == set()

    brief = ResidentSessions(kept_for=-1.0)
    brief.keep(one)
    assert brief.ids == {one.id}
    brief.drop_idle()
    assert brief.ids == set()

    # Who only holds a session does not keep it: with its last holder it is gone.
    loaded = await brief.load(db, two.id)
    assert (await brief.load(db, two.id, loaded.head) is loaded, brief.ids) == (True, {two.id})
    older = await journals.load_at(db, two.id, 2)
    brief.note(older)
    assert await brief.load(db, two.id, loaded.head) is loaded
    del loaded
    assert brief.ids == set()


async def test_a_number_of_any_size_that_a_tool_keeps_does_not_end_the_run(db: Database) -> None:
    class Counting(BaseTool):
        """Counts atoms."""

        async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
            context.custom_context = {"atoms": 10**30}
            return "counted"

    room = Room(db, [call("counting"), FINISH, FINISH], tools=[Counting])
    first = await room.run()
    assert first.state == "COMPLETED"
    assert room.engine.resident.ids == {first.id}
    await room.prompt("Again", first.id)
    assert (again := await room.advance(first.id)) == await journals.load(db, first.id)
    assert again.context["custom_context"] == {"atoms": 10**30}


async def test_after_a_failover_that_lost_events_the_journal_counts_and_not_the_memory(db: Database) -> None:
    room = Room(db, [FINISH] * 3)
    first = await room.run()
    await room.prompt("Lost", first.id)
    await room.advance(first.id)
    await db.run("DELETE FROM journal WHERE session_id = :id AND seq > :head", id=first.id, head=first.head)
    await db.run("UPDATE sessions SET head = :head WHERE id = :id", id=first.id, head=first.head)
    await room.prompt("Ещё раз", first.id)
    third = await room.advance(first.id)
    assert third == await journals.load(db, first.id)
    assert (third.state, third.queue, len(await room.found(first.id, Started))) == ("COMPLETED", (), 2)


async def test_what_is_in_memory_is_read_again_when_postgres_was_away(db: Database) -> None:
    room = Room(db, [FINISH])
    known = await room.run()
    resident = room.engine.resident
    assert await resident.load(db, known.id, known.head) is known
    db.retries += 1  # as after a statement that had to be sent again
    again = await resident.load(db, known.id, known.head)
    assert again == known
    assert again is not known
