"""A tool's endpoint on a real socket: it answers as the test says, and remembers what it was asked."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Asked:
    path: str
    body: str
    headers: Mapping[str, str]


@dataclass
class Endpoint:
    answer: Answer
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    sent: int = 0
    """Bytes of endless bodies that went out."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/do"

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(Asked(request.path_qs, (await request.read()).decode(), dict(request.headers)))
        return await self.answer(request)

    async def endless(self, request: web.BaseRequest, piece: bytes, every: float = 0, **headers: str) -> Any:
        """Sends the same again and again until the other side has had enough."""
        response = web.StreamResponse(headers={"Content-Type": "application/json", **headers})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(piece)
                self.sent += len(piece)
                await asyncio.sleep(every)
        return response


def saying(
    text: str | bytes, status: int = 200, kind: str = "application/json", headers: Mapping[str, str] | None = None
) -> Answer:
    body = text if isinstance(text, bytes) else text.encode()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=body, status=status, headers={"Content-Type": kind, **(headers or {})})

    return answer


@asynccontextmanager
async def endpoint(answer: Answer | None = None) -> AsyncIterator[Endpoint]:
    served = Endpoint(answer or saying('"done"'))
    server = web.Server(served.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.port = runner.addresses[0][1]
        yield served
    finally:
        await runner.cleanup()
