"""A Redis server for each test that asks for one; it starts in a few milliseconds."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from redis_server import RedisServer, redis_server

from longhouse.memory.redis import open_redis


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server() as started:
        yield started


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    async with open_redis(server.url) as client:
        yield client
