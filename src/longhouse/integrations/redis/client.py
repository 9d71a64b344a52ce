"""Redis client for conversation histories: one JSON array per key, read and written whole."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from longhouse.errors import SetupError
from longhouse.integrations.redis import keys
from longhouse.journal import imported

TROUBLE: Final = (RedisError, OSError)
"""The exceptions of Redis calls; a timeout is an OSError too."""
REPLY_WITHIN: Final = 2.0
CONNECT_WITHIN: Final = 1.0
MAX_VALUE: Final = 16 * 1024 * 1024
"""Bytes; a larger value is not a history that this program wrote, and is not read."""


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[Redis]:
    """A connection pool; it connects at the first use."""
    try:
        client = Redis.from_url(
            url,
            socket_timeout=REPLY_WITHIN,
            socket_connect_timeout=CONNECT_WITHIN,
            # One immediate retry: the server may have closed a pooled connection meanwhile.
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError:
        raise SetupError("LONGHOUSE_REDIS_URL is not an address such as redis://127.0.0.1:6379") from None
    try:
        yield client
    finally:
        await client.aclose()


class RedisHistory:
    def __init__(self, client: Redis) -> None:
        self._client = client

    async def load_history(self, chat_id: int | str) -> list[dict[str, Any]]:
        """The messages under a key, or of a chat, whose id is a number; items that are no messages are left out."""
        [value] = await self.load_values([keys.history_key(chat_id)])
        return messages_in(value)

    async def load_values(self, names: Sequence[str]) -> list[bytes | None]:
        """The value under each key, asked for at once; None where there is none, or one that is no history of ours."""
        lengths = await self._each(Pipeline.strlen, names)
        fitting = [name for name, length in zip(names, lengths, strict=True) if length in range(1, MAX_VALUE + 1)]
        found = await self._each(Pipeline.get, fitting)
        values = {name: value for name, value in zip(fitting, found, strict=True) if isinstance(value, bytes)}
        return [values.get(name) for name in names]

    async def _each(self, ask: Callable[[Pipeline, str], object], names: Sequence[str]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            ask(pipeline, name)
        # An answer may be an error: a key of another type says nothing of the others.
        return await pipeline.execute(raise_on_error=False)

    async def save_history(self, chat_id: int | str, messages: Sequence[dict[str, Any]]) -> None:
        await self._client.set(keys.history_key(chat_id), msgspec.json.encode(messages))


def messages_in(value: bytes | None) -> list[dict[str, Any]]:
    """The messages of a stored history; none where it is no history."""
    try:
        return imported.read(msgspec.json.decode(value)) if value else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
