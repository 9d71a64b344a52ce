"""`python -m examples.web_memory_service`: serves on 127.0.0.1:8500."""

import asyncio
import os
from contextlib import AsyncExitStack

import aiohttp
from aiohttp import web
from examples.web_memory_service.app import WebMemoryService, language_of, routes

from longhouse.integrations.redis.client import RedisHistory, open_redis
from longhouse.memory import MemoryService


async def main() -> None:
    longhouse = os.environ.get("LONGHOUSE_URL", "http://127.0.0.1:8400")
    redis, port = os.environ.get("REDIS_URL"), int(os.environ.get("PORT", "8500"))
    async with AsyncExitStack() as stack:
        histories = RedisHistory(await stack.enter_async_context(open_redis(redis))) if redis else None
        http = await stack.enter_async_context(aiohttp.ClientSession(longhouse))
        service = WebMemoryService(MemoryService(redis=histories), http, language=language_of(os.environ))
        runner = web.AppRunner(routes(service), access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        kept = "in Redis" if histories else "in this process only; set REDIS_URL to keep it"
        print(f"serves on http://127.0.0.1:{runner.addresses[0][1]}; memory is kept {kept}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
