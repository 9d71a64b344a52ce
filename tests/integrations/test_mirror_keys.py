"""The mirror in Redis: what people look for under the keys they know, whatever becomes of Redis."""

import uuid
from typing import Any

import pytest
from journal_writer import Scribe
from redis.asyncio import Redis
from redis_helpers import CHAT, SUB, assistant, get, mirrored, names, until, user

from longhouse.integrations.mirror import Mirror
from longhouse.integrations.redis.client import open_redis
from longhouse.journal import events
from longhouse.journal.messages import Assistant, User
from longhouse.store.database import Database
from redis_server import RedisServer, text
from server_helpers import returned, used


@pytest.fixture
def scribe(db: Database) -> Scribe:
    return Scribe(db)


async def test_user_and_assistant_are_under_the_key_of_the_chat(db: Database, redis: Redis, scribe: Scribe) -> None:
    async with mirrored(db, redis):
        master = await scribe.prompt("master", "Hello")
        await scribe.start(master)
        await until(lambda: get(redis, CHAT), [user("Hello")])
        await scribe.use(master, "clocktool", "17:00")
        await scribe.answer(master, "Good evening")
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Good evening")])
        await scribe.turn("master", "Bye", "See you")
        said = [user("Hello"), assistant("Good evening"), user("Bye"), assistant("See you")]
        await until(lambda: get(redis, CHAT), said)
        assert await redis.ttl(CHAT) == -1


async def test_a_sub_agents_history_has_its_tasks_its_work_and_its_answers(
    db: Database, redis: Redis, scribe: Scribe
) -> None:
    async with mirrored(db, redis):
        await scribe.task("analytic", "The user is called Алия", "Noted")
        await until(lambda: get(redis, SUB), [user("The user is called Алия"), assistant("Noted")])
        again = await scribe.prompt("analytic", "What time is it?", side="sub", sender="master")
        await scribe.start(again)
        await scribe.use(again, "clocktool", "17:00")
        await scribe.answer(again, "Five")

        async def roles() -> list[str]:
            return [message["role"] for message in await get(redis, SUB)]

        await until(roles, ["user", "assistant", "user", "assistant", "tool", "assistant"])
        call, result = (await get(redis, SUB))[3:5]
        assert call["tool_calls"][0]["function"] == {"name": "clocktool", "arguments": "{}"}
        assert result == {
            "role": "tool", "content": "17:00", "tool_call_id": call["tool_calls"][0]["id"], "name": "clocktool",
        }  # fmt: skip
        assert "Алия" in text(await redis.get(SUB))
        assert await redis.exists(CHAT) == 0


async def test_labels_and_owners_have_keys_of_their_own(db: Database, redis: Redis, scribe: Scribe) -> None:
    await scribe.turn("master", "mine", "yours truly")
    await scribe.turn("master", "theirs", "ok", owner="acme")
    await scribe.task("analytic", "plain", "ok")
    await scribe.task("analytic", "second opinion", "ok", label="b")
    await scribe.task("analytic", "secret", "ok", owner="acme", label="b")
    await scribe.task("analytic", "odd", "ok", owner="a/../b")
    async with mirrored(db, redis):
        await until(lambda: get(redis, CHAT), [user("mine"), assistant("yours truly")])
        await until(lambda: get(redis, f"acme/{CHAT}"), [user("theirs"), assistant("ok")])
        await until(lambda: get(redis, SUB), [user("plain"), assistant("ok")])
        await until(lambda: get(redis, f"{SUB}/b"), [user("second opinion"), assistant("ok")])
        await until(lambda: get(redis, f"acme/{SUB}/b"), [user("secret"), assistant("ok")])
        await until(lambda: get(redis, f"a%2F..%2Fb/{SUB}"), [user("odd"), assistant("ok")])
        ours = {CHAT, f"acme/{CHAT}", SUB, f"{SUB}/b", f"acme/{SUB}/b", f"a%2F..%2Fb/{SUB}"}
        assert {name for name in await names(redis) if not name.startswith("longhouse:")} == ours


async def test_all_root_sessions_of_a_conversation_are_told_in_order_of_time(
    db: Database, redis: Redis, scribe: Scribe
) -> None:
    await scribe.turn("master", "one", "1")
    await scribe.turn("researcher", "two", "2")
    await scribe.turn("master", "three", "3")
    was_said = (User(content="one"), Assistant(content="1"))
    await scribe.turn("master", "one, but better", "1+", label="branch-1", prior=was_said)
    expected = [
        user("one"), assistant("1"), user("two"), assistant("2"), user("three"), assistant("3"),
        user("one, but better"), assistant("1+"),
    ]  # fmt: skip
    async with mirrored(db, redis):
        await until(lambda: get(redis, CHAT), expected)


async def test_no_more_than_max_history_is_kept_and_no_pair_is_split(
    db: Database, redis: Redis, scribe: Scribe
) -> None:
    child = await scribe.prompt("analytic", "Look twice", side="sub")
    await scribe.start(child)
    await scribe.use(child, "clocktool", "17:00")
    await scribe.use(child, "clocktool", "18:00")
    await scribe.answer(child, "An hour")
    async with mirrored(db, redis, max_history=4):

        async def roles() -> list[str]:
            return [message["role"] for message in await get(redis, SUB) or ()]

        await until(roles, ["assistant", "tool", "assistant"])
        call, result, answer = await get(redis, SUB)
    assert call["tool_calls"][0]["id"] == result["tool_call_id"]
    assert (result["content"], answer) == ("18:00", assistant("An hour"))


async def test_what_was_condensed_for_the_model_is_still_told(db: Database, redis: Redis, scribe: Scribe) -> None:
    master = await scribe.turn("master", "Hello", "Hi")
    async with mirrored(db, redis):
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Hi")])
        again = await scribe.prompt("master", "More")
        await scribe.start(again)
        await scribe.record(master, events.Condensed(upto=5, summary="Greetings."))
        await scribe.answer(master, "Less")
        expected = [user("Hello"), assistant("Hi"), user("More"), assistant("Less")]
        await until(lambda: get(redis, CHAT), expected)


async def test_a_question_and_its_answer_are_mirrored(db: Database, redis: Redis, scribe: Scribe) -> None:
    master = await scribe.prompt("master", "Rain?")
    await scribe.start(master)
    asked = used("1-action-0", tool="clarificationtool", call_kind="ask", question="Which city?")
    await scribe.record(master, events.Replied(), asked)
    async with mirrored(db, redis):
        await until(lambda: get(redis, CHAT), [user("Rain?"), assistant("Which city?")])
        await scribe.record(master, returned("1-action-0", "Oslo", by="user"))
        await until(lambda: get(redis, CHAT), [user("Rain?"), assistant("Which city?"), user("Oslo")])


async def test_a_hint_is_enough_and_none_is_needed(db: Database, redis: Redis, scribe: Scribe) -> None:
    await scribe.turn("master", "Earlier", "Yes", conversation="1")
    async with Mirror(db, redis, sweep_every=3600).running() as mirror:
        # Found by the only sweep there is.
        await until(lambda: get(redis, "chat_history:1"), [user("Earlier"), assistant("Yes")])
        mirror.nudge("nobody_knows_it")
        session = await scribe.turn("master", "Hello", "Hi")
        mirror.nudge(session)
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Hi")])


async def test_a_flushed_redis_is_filled_again(db: Database, redis: Redis, scribe: Scribe) -> None:
    await scribe.turn("master", "Hello", "Hi")
    await scribe.task("analytic", "Look", "Seen")
    async with mirrored(db, redis) as mirror:
        await until(lambda: get(redis, SUB), [user("Look"), assistant("Seen")])
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Hi")])
        await redis.flushall()
        # A hint that comes before the flush was noticed must not be taken for the whole.
        mirror.nudge(await scribe.task("analytic", "Again", "Yes"))
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Hi")])
        whole = [user("Look"), assistant("Seen"), user("Again"), assistant("Yes")]
        await until(lambda: get(redis, SUB), whole)


async def test_a_redis_that_died_and_came_back_older_is_brought_up_to_date(
    db: Database, server: RedisServer, scribe: Scribe
) -> None:
    async with open_redis(server.url) as redis, mirrored(db, redis):
        await scribe.turn("master", "Hello", "Hi")
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Hi")])
        await redis.save()
        await scribe.turn("master", "More", "Less")
        expected = [user("Hello"), assistant("Hi"), user("More"), assistant("Less")]
        await until(lambda: get(redis, CHAT), expected)
        await server.kill()
        await scribe.task("analytic", "While it was away", "Done")
        await server.start()
        assert await get(redis, CHAT) in ([user("Hello"), assistant("Hi")], expected)
        await until(lambda: get(redis, CHAT), expected)
        await until(lambda: get(redis, SUB), [user("While it was away"), assistant("Done")])


async def test_two_mirrors_of_one_database_agree(db: Database, redis: Redis, scribe: Scribe) -> None:
    async with mirrored(db, redis) as one, mirrored(db, redis) as other:
        expected: list[Any] = []
        for number in range(10):
            session = await scribe.turn("master", f"{number}?", f"{number}!")
            expected += [user(f"{number}?"), assistant(f"{number}!")]
            one.nudge(session)
            other.nudge(session)
        await until(lambda: get(redis, CHAT), expected)


async def test_an_older_copy_never_takes_the_place_of_a_newer_one(db: Database, redis: Redis, scribe: Scribe) -> None:
    late, quick = Mirror(db, redis), Mirror(db, redis)
    session = await scribe.turn("master", "Hello", "Hi")
    await late.epoch()
    old = await late._copies(await _rows(db, session))
    await scribe.turn("master", "More", "Less")
    await quick.project(await _rows(db, session))
    await late._write(old)
    assert await get(redis, CHAT) == [user("Hello"), assistant("Hi"), user("More"), assistant("Less")]


async def _rows(db: Database, *ids: str) -> Any:
    from longhouse.store import projections as mirror  # noqa: PLC0415 - the name is taken by what is tested here

    return await mirror.rows(db, ids)


async def test_histories_that_the_caller_keeps_leave_no_trace(db: Database, redis: Redis, scribe: Scribe) -> None:
    before = f"ephemeral-{uuid.uuid4().hex}"  # as such labels were once
    for label in ("ephemeral/1", before):
        await scribe.turn("master", "once", "only", label=label)
        await scribe.task("analytic", "once", "only", label=f"{label}/b")
    await scribe.turn("master", "Hello", "Hi")
    async with mirrored(db, redis):
        await until(lambda: get(redis, CHAT), [user("Hello"), assistant("Hi")])
    assert {name for name in await names(redis) if not name.startswith("longhouse:")} == {CHAT}


async def test_a_label_that_an_agent_has_chosen_is_not_taken_for_one_of_these(
    db: Database, redis: Redis, scribe: Scribe
) -> None:
    await scribe.task("analytic", "Note it.", "noted", label="ephemeral-notes")
    async with mirrored(db, redis):
        key = f"{SUB}/ephemeral-notes"
        await until(lambda: get(redis, key), [user("Note it."), assistant("noted")])


async def test_a_confirmation_comes_from_redis_or_not_at_all(
    db: Database, redis: Redis, server: RedisServer, scribe: Scribe
) -> None:
    async with mirrored(db, redis) as mirror:
        session = await scribe.turn("master", "Hello", "Hi")
        assert await mirror.confirmed(session, 3, within=10)
        assert not await mirror.confirmed(session, 99, within=0.05)
        await server.kill()
        await scribe.turn("master", "More", "Less")
        assert not await mirror.confirmed(session, 8, within=10)
