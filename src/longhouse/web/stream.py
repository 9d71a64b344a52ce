"""Server-sent events: framing, and a response that ends when its client leaves."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEARTBEAT: Final = b": keep-alive\n\n"
HEARTBEAT_EVERY: Final = 15.0
DONE: Final = b"data: [DONE]\n\n"


def data(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named(event: str, value: Any, event_id: int | str | None = None) -> bytes:
    """An event with a name and, if it is a fact, the id to continue from."""
    head = b"" if event_id is None else f"id: {event_id}\n".encode()
    return head + b"event: " + event.encode() + b"\n" + data(value)


class EventStream(Response):
    """Writes each piece as it comes, and closes its source at once when the client is gone."""

    media_type = "text/event-stream"

    def __init__(self, pieces: AsyncGenerator[bytes, None], headers: dict[str, str] | None = None) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        writing = asyncio.create_task(self._write(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            writing.cancel() if not writing.done() else None
            done = await asyncio.gather(writing, leaving, return_exceptions=True)
        if isinstance(done[0], Exception) and not isinstance(done[0], OSError):
            raise done[0]

    async def _write(self, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
