"""A remote tool that pays when a test lets it: where a story needs a call that has begun and not ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class Till:
    """A remote tool that pays when the test lets it."""

    def __init__(self) -> None:
        self.place = ""
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.payments = 0

    async def pay(self, request: web.Request) -> web.Response:
        self.payments += 1
        self.begun.set()
        await self.may_end.wait()
        return web.json_response("paid")

    @property
    def tool(self) -> dict[str, Any]:
        return {
            "name": "pay",
            "description_short": "Pay a bill.",
            "input_schema": {"type": "object", "properties": {}},
            "runtime_binding": {"remote_endpoint": f"http://{self.place}/pay"},
            "effect": "once",
        }


@asynccontextmanager
async def open_till() -> AsyncIterator[Till]:
    till, app = Till(), web.Application()
    app.router.add_post("/pay", till.pay)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        till.place = f"127.0.0.1:{runner.addresses[0][1]}"
        yield till
    finally:
        await runner.cleanup()
