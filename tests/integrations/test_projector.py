"""Carrying journals elsewhere: hints may be lost, pages are many, and what cannot be read stands in nobody's way."""

import pytest
from journal_writer import Scribe
from redis.asyncio import Redis
from redis_helpers import CHAT, assistant, get, mirrored, until, user

from longhouse import clock
from longhouse.integrations import projector
from longhouse.journal import events
from longhouse.store import projections
from longhouse.store.database import Database
from longhouse.store.erasing import erasure
from server_helpers import prompted, started

MANY = 2 * projector.PAGE + 10

SESSIONS = """
    INSERT INTO sessions (id, owner, conversation_id, side, agent, version, head, due, created_at, updated_at)
    SELECT 'master_' || n, 'local', n::text, 'root', 'master', 1, 3, false, :at, :at
    FROM generate_series(1, :many::int) AS n
"""
JOURNALS = """
    INSERT INTO journal (session_id, seq, conversation_id, kind, append_id, nth, body, at)
    SELECT 'master_' || n, new.seq, n::text, new.kind, gen_random_uuid(), 1, new.body, :at
    FROM generate_series(1, :many::int) AS n,
         unnest(:kinds::text[], :bodies::json[]) WITH ORDINALITY AS new (kind, body, seq)
"""


async def write_many(db: Database) -> None:
    """As many conversations, each with one message."""
    about = events.Opened(agent="master", version=1, owner="local", conversation="c")
    new: list[events.Event] = [about, prompted("Hello"), started(2)]
    bodies, kinds = [events.encode(event) for event in new], [events.kind_of(event) for event in new]
    await db.run(SESSIONS, many=MANY, at=clock.now())
    await db.run(JOURNALS, many=MANY, at=clock.now(), kinds=kinds, bodies=bodies)


async def test_a_rebuild_goes_page_by_page_and_leaves_nobody_out(
    db: Database, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a house so large that it is swept every few minutes, what is lost and what is erased is noticed at once."""
    monkeypatch.setattr(projector, "SHARE", 1e6)
    await write_many(db)

    async def count() -> int:
        return len(await redis.keys("chat_history:*"))

    async with mirrored(db, redis):
        await until(count, MANY)
        await redis.flushall()
        await until(count, MANY)
        assert await get(redis, "chat_history:7") == [user("Hello")]
        assert await erasure.forget(db, "master_7", "local")
        await until(count, MANY - 1)
        assert await get(redis, "chat_history:7") is None


async def test_hints_past_all_measure_are_dropped_and_the_sweep_finds_what_they_named(
    db: Database, redis: Redis
) -> None:
    scribe, before = Scribe(db), [user("Hello"), assistant("Hi")]
    session = await scribe.turn("master", "Hello", "Hi")
    async with mirrored(db, redis, sweep_every=3600) as busy:
        await until(lambda: get(redis, CHAT), before)  # the next sweep is an hour away
        await scribe.turn("master", "More", "Less")
        other = await scribe.turn("master", "And I?", "You too", conversation="9")
        busy.nudge(session)
        for number in range(projector.MOST_HINTS):
            busy.nudge(f"master_{number}")
        busy.nudge(other)
        assert [*busy._hints][-1] == other
        assert len(busy._hints) < projector.MOST_HINTS
        await until(lambda: get(redis, "chat_history:9"), [user("And I?"), assistant("You too")])
        await until(lambda: get(redis, CHAT), [*before, user("More"), assistant("Less")])


async def test_a_journal_that_a_newer_process_wrote_is_left_to_it_and_the_others_are_carried(
    db: Database, redis: Redis
) -> None:
    """And so is one that does not add up: its turn was started by a prompt that is not there."""
    scribe = Scribe(db)
    odd = await scribe.turn("master", "Where from?", "Hi", conversation="0")
    await db.run(
        "UPDATE journal SET body = :body WHERE session_id = :session AND kind = 'Started'",
        session=odd,
        body=events.encode(started(99)),
    )
    unknown = await scribe.turn("master", "From the future", "Hi", conversation="1")
    await db.run(
        """UPDATE journal SET body = '{"v":99,"kind":"Prompted"}' WHERE session_id = :session AND seq = 2""",
        session=unknown,
    )
    async with mirrored(db, redis) as running:
        running.nudge(odd)
        running.nudge(unknown)
        await scribe.turn("master", "Hello", "Hi")
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Hi")])
        # Looked at again by every sweep, and still nobody else has to wait.
        await scribe.turn("master", "More", "Less")
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Hi"), user("More"), assistant("Less")])
    for conversation, session in (("0", odd), ("1", unknown)):
        assert await get(redis, f"chat_history:{conversation}") is None
        assert await projections.cursor(db, "redis", session) == 0


async def test_a_projection_ends_with_its_block_whatever_it_is_doing(db: Database, redis: Redis) -> None:
    await write_many(db)
    for _ in range(5):
        async with mirrored(db, redis):
            pass
    async with mirrored(db, redis):
        await until(lambda: get(redis, "chat_history:1"), [user("Hello")])
