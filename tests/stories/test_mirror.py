"""People talk, and Redis tells the same as the journal afterwards; whatever happens to it, no turn waits for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from redis.asyncio import Redis

from longhouse.integrations.mirror import Mirror
from longhouse.integrations.redis.client import open_redis
from longhouse.journal import conversation
from longhouse.models.scripted import call
from redis_server import RedisServer, redis_server
from server_helpers import House, Serving, content

CHAT = "chat_history:12345"
SCRIPT = [
    call("clarificationtool", questions=["Which city?"]),
    call("finalanswertool", answer="Rain in Oslo."),
    call("finalanswertool", answer="Take an umbrella."),
]


@asynccontextmanager
async def watched(serving: Serving, script: Any) -> AsyncIterator[tuple[House, RedisServer, Redis]]:
    """A Longhouse with its mirror in a Redis of its own."""
    async with (
        redis_server() as server,
        open_redis(server.url) as redis,
        serving(script) as house,
        Mirror(house.db, redis, sweep_every=0.1).running(),
    ):
        yield house, server, redis


async def kept(redis: Redis) -> Any:
    value = await redis.get(CHAT)
    return msgspec.json.decode(value) if value else None


async def equal(redis: Redis, house: House, session_id: str, *, count: int, within: float = 30.0) -> None:
    """Waits until Redis says what the journal says, which is so many messages."""
    expected = conversation.dialogue_of(await house.folded(session_id))
    assert len(expected) == count
    async with asyncio.timeout(within):
        while await kept(redis) != expected:
            await asyncio.sleep(0.02)


async def say(house: House, text: str) -> tuple[str, str]:
    """What is answered in this conversation, and by which session; however Redis is, in time."""
    async with asyncio.timeout(20):
        answer = await house.say(text, chat_id=12345)
    return content(answer), answer["model"]


async def test_what_was_said_is_in_redis(serving: Serving) -> None:
    async with watched(serving, SCRIPT) as (house, _, redis):
        assert (await say(house, "Will it rain?"))[0] == "Which city?"
        said, session = await say(house, "Oslo")
        assert said == "Rain in Oslo."
        await equal(redis, house, session, count=4)
        await say(house, "What shall I do?")
        await equal(redis, house, session, count=6)
        assert [message["content"] for message in await kept(redis)] == [
            "Will it rain?", "Which city?", "Oslo", "Rain in Oslo.", "What shall I do?", "Take an umbrella.",
        ]  # fmt: skip


async def test_redis_is_killed_in_the_middle_and_nothing_is_lost_or_doubled(serving: Serving) -> None:
    async with watched(serving, SCRIPT) as (house, server, redis):
        _, session = await say(house, "Will it rain?")
        await equal(redis, house, session, count=2)
        await server.kill()
        assert (await say(house, "Oslo"))[0] == "Rain in Oslo."
        await server.start()
        await equal(redis, house, session, count=4)
        await say(house, "What shall I do?")
        await equal(redis, house, session, count=6)


async def test_redis_hangs_and_nobody_waits_for_it(serving: Serving) -> None:
    async with watched(serving, SCRIPT) as (house, server, redis):
        _, session = await say(house, "Will it rain?")
        server.hang()
        try:
            assert (await say(house, "Oslo"))[0] == "Rain in Oslo."
            assert (await say(house, "What shall I do?"))[0] == "Take an umbrella."
        finally:
            server.go_on()
        await equal(redis, house, session, count=6)


async def test_redis_is_flushed_and_filled_again(serving: Serving) -> None:
    async with watched(serving, SCRIPT) as (house, _, redis):
        _, session = await say(house, "Will it rain?")
        await equal(redis, house, session, count=2)
        await redis.flushall()
        await equal(redis, house, session, count=2)
        await redis.flushall()
        await say(house, "Oslo")
        await equal(redis, house, session, count=4)


async def test_what_redis_knew_is_told_once_however_many_speak_first(serving: Serving) -> None:
    old = [{"role": "user", "content": "I am Aliya"}, {"role": "assistant", "content": "Noted"}]
    async with redis_server() as server, open_redis(server.url) as redis:
        await redis.set(CHAT, msgspec.json.encode(old))
        async with serving(lambda body: call("finalanswertool", answer="Yes"), redis_url=server.url) as house:
            said = await asyncio.gather(*(say(house, f"Question {number}") for number in range(4)))
            [session] = {session_id for _, session_id in said}
            texts = [message["content"] for message in conversation.dialogue_of(await house.folded(session))]
        assert texts[:2] == ["I am Aliya", "Noted"]
        assert sorted(texts[2:]) == [*(f"Question {number}" for number in range(4)), *["Yes"] * 4]
