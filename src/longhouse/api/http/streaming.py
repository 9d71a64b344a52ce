"""Server-sent events: framing, and a streaming response that ends with its client, or with an error event."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from longhouse.api import errors, wire
from longhouse.api.inflight import INFLIGHT, InflightRequest
from longhouse.errors import CallerError

log = structlog.get_logger()

HEARTBEAT: Final = b": keep-alive\n\n"
HEARTBEAT_EVERY: Final = 15.0
DONE: Final = b"data: [DONE]\n\n"

Name = TypeVar("Name")
Data = TypeVar("Data")
Sent = TypeVar("Sent")


class Event(Generic[Name, Data]):
    """Says of a stream, for the OpenAPI document, that it sends events of this name with such data. A name is a
    literal, or a union of the types after which events are named; None: they have no name."""


class Last(bytes):
    """The last piece: the end of the response goes out with it, in one write."""


def data(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def named(event: str, value: Any, event_id: int | str | None = None) -> bytes:
    """An event with a name and, if it is in the journal, the id to resume from."""
    head = b"" if event_id is None else f"id: {event_id}\n".encode()
    return head + b"event: " + event.encode() + b"\n" + data(value)


def named_error(error: CallerError) -> bytes:
    return named("error", wire.envelope_of(error))


def bare_error(error: CallerError) -> bytes:
    """The same for clients of OpenAI's protocol, which has no event names."""
    return data(wire.envelope_of(error))


class EventStream(Response, Generic[Sent]):
    """Writes each piece as it comes, and closes its source as soon as the client disconnects.

    A route says what is sent: events, or for other media types the lines."""

    media_type = "text/event-stream"

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        headers: Mapping[str, str] | None = None,
        *,
        error: Callable[[CallerError], bytes] = named_error,
    ) -> None:
        """`error`: encodes an error for this stream."""
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._pieces, self._error = pieces, error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inflight: InflightRequest = scope[INFLIGHT]
        inflight.in_stream = self._error
        writing = asyncio.create_task(self._write(send, inflight))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            writing.cancel()
            done = await asyncio.gather(writing, leaving, return_exceptions=True)
        if isinstance(done[0], Exception) and not isinstance(done[0], OSError):
            raise done[0]

    async def _write(self, send: Send, inflight: InflightRequest) -> None:
        # Sent by the task that also sends the first piece: where that is there at once, both go out in one write.
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._pieces):
            while not await self._write_next(send, inflight):
                pass

    async def _write_next(self, send: Send, inflight: InflightRequest) -> bool:
        """Writes the next piece; True if it was the last. A separate call, so that no piece stays in memory."""
        try:
            piece = await anext(self._pieces)
        except StopAsyncIteration:
            piece = Last()
        except Exception as error:  # noqa: BLE001 - logged, and told: many clients take a silent end for success
            piece = Last(self._failed(error, inflight.session))
        is_last = isinstance(piece, Last)
        message = {"type": "http.response.body", "body": piece, "more_body": not is_last}
        await (send(message) if is_last else inflight.send(message))
        return is_last

    def _failed(self, error: Exception, session: str) -> bytes:
        """Logs why the source of the pieces has failed; returns the error event for the client."""
        if isinstance(error, errors.TROUBLE):
            errors.log_trouble(error, "A stream was ended.", session=session or None)
        else:
            log.exception("stream_failed", session=session or None)
        return self._error(errors.error_for(error, session))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
