"""Redis as a place for histories: a JSON array under a key, read and written whole."""

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
"""What calls to Redis may end in; a timeout is an OSError too."""
REPLY_WITHIN: Final = 2.0
CONNECT_WITHIN: Final = 1.0
MAX_VALUE: Final = 16 * 1024 * 1024
"""Bytes; a longer value is no history of ours, and is not read."""


@asynccontextmanager
async def open_redis(url: str) -> AsyncIterator[Redis]:
    """A pool of connections; nothing is connected before it is needed."""
    try:
        client = Redis.from_url(
            url,
            socket_timeout=REPLY_WITHIN,
            socket_connect_timeout=CONNECT_WITHIN,
            # Once more at once, since a pooled connection may be one that the server has closed meanwhile.
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError:
        raise SetupError("LONGHOUSE_REDIS_URL is not an address such as redis://127.0.0.1:6379") from None
    try:
        yield client
    finally:
        await client.aclose()


class RedisHistory:
    """Histories in Redis."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    async def load_history(self, key: str) -> list[dict[str, Any]]:
        """The messages under a key; whatever there is no message is left out."""
        if await self._client.strlen(key) > MAX_VALUE:
            return []
        value = await self._client.get(key)
        try:
            return imported.read(msgspec.json.decode(value)) if value else []
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []

    async def save_history(self, key: str, messages: Sequence[dict[str, Any]]) -> None:
        await self._client.set(key, msgspec.json.encode(messages))
