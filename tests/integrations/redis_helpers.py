"""Looking into Redis while a mirror keeps it up to date."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from redis.asyncio import Redis

from longhouse.integrations.mirror import Mirror
from longhouse.store.database import Database
from redis_server import text

CHAT, SUB = "chat_history:12345", "subagent:analytic:12345"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


OLD = [user("My name is Алия"), assistant("Noted")]
"""What another program has left in Redis."""


async def put(redis: Redis, key: str, messages: Any) -> None:
    await redis.set(key, msgspec.json.encode(messages))


async def get(redis: Redis, key: str) -> Any:
    value = await redis.get(key)
    return msgspec.json.decode(value) if value else None


async def names(redis: Redis) -> set[str]:
    return {text(key) for key in await redis.keys()}


async def until(look: Callable[[], Awaitable[Any]], expected: Any, within: float = 30.0) -> None:
    """Waits until a look gives what is expected."""
    seen: Any = None
    try:
        async with asyncio.timeout(within):
            while (seen := await look()) != expected:
                await asyncio.sleep(0.01)
    except TimeoutError:
        assert seen == expected, f"{seen} is not {expected}"


@asynccontextmanager
async def mirrored(db: Database, redis: Redis, **options: Any) -> AsyncIterator[Mirror]:
    async with Mirror(db, redis, **{"sweep_every": 0.05, "prior_within": 20, **options}).running() as mirror:
        yield mirror
