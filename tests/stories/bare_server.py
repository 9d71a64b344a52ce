"""A Longhouse with parts of its own, for a program that does nothing else; it prints its address."""

import asyncio
from typing import Any

import uvicorn

from longhouse.api.http_protocol import config_of
from longhouse.app import open_app
from longhouse.settings import Settings


async def serve(**parts: Any) -> None:
    async with open_app(Settings(port=0), **parts) as app:
        server = uvicorn.Server(config_of(app.asgi, port=0))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(f"serves on http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
        await serving
