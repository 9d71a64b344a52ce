"""Redis client for conversation histories: one JSON array per key, read and written whole."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from longhouse.errors import SetupError
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

    async def load_history(self, key: str) -> list[dict[str, Any]]:
        """The messages under a key; items that are no messages are left out."""
        if await self._client.strlen(key) > MAX_VALUE:
            return []
        value = await self._client.get(key)
        try:
            return imported.read(msgspec.json.decode(value)) if value else []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []

    async def save_history(self, key: str, messages: Sequence[dict[str, Any]]) -> None:
        await self._client.set(key, msgspec.json.encode(messages))
