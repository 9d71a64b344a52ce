"""Uvicorn's HTTP/1.1 protocol with limits on the size of requests and the time to receive them.

Uvicorn keeps a head of any length in memory and waits for the rest of a request without a timeout. `connections`
decides which clients are dropped; this module holds the state of one connection.
"""

import asyncio
import functools
import uuid
from typing import Any, Final, Literal

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from longhouse.api import wire
from longhouse.api.auth import CALLER
from longhouse.api.connections import BACKLOG, Bounds, Connections
from longhouse.errors import CallerError

log = structlog.get_logger()

DRAINED: Final = 256 * 1024
"""Bytes that are still read and discarded after a refusal."""

Phase = Literal["awaiting", "head", "body", "answering", "refused"]
"""Before a request, in its head, in its body, after it; or after a refusal, when no further request is read."""


class Excess(Exception):  # noqa: N818 - never leaves this module
    """A head exceeded its limits."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.phase: Phase = "awaiting"
        self.since = 0.0
        """When the server began to wait for the client's next bytes."""
        self._lobby = connections
        self._bounds: Bounds = connections.bounds
        self._began = 0.0
        self._barren = 0
        """Bytes since the last complete head or piece of a body: the most that the parser can have buffered."""
        self._excess: CallerError | None = None

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self._lobby.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lobby.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._barren += len(data)
        if self.phase == "refused":
            if self._barren > DRAINED:
                self.transport.abort()
            return
        super().data_received(data)
        if self._barren > self._bounds.head:
            self._refuse((self.phase == "head" and self._judged()) or _too_large())

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._began = self.since = self.loop.time()
        if self.phase == "answering":
            self._lobby.wait(self)  # a pipelined request, sent before the previous response
        self.phase = "head"

    def on_headers_complete(self) -> None:
        self._excess = self._judged()
        if self._excess:
            raise Excess
        self._barren = 0
        self.phase = "body"
        super().on_headers_complete()
        # A trailer after the body would be appended to this list: it must not be taken for a header.
        self.headers = []

    def _judged(self) -> CallerError | None:
        """The error of a complete head that exceeds the limits; `_barren` bounds an incomplete one."""
        bounds, total = self._bounds, len(self.url)
        if total > bounds.header:
            return CallerError("The address of the request is too long.", status=414, code="uri_too_long")
        for name, value in self.headers:
            size = len(name) + len(value)
            total += size
            if size > bounds.header:
                return _too_large()
        is_large = total > bounds.head or len(self.headers) > bounds.headers
        return _too_large() if is_large or len(self.pipeline) >= bounds.pipelined else None

    def on_body(self, body: bytes) -> None:
        self._barren = 0
        self.since = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:
            self._await("awaiting")  # the response was complete before its request
        else:
            self.phase = "answering"
            self._lobby.served(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.phase == "answering" and self.cycle.response_complete and not self.transport.is_closing():
            self._await("awaiting")

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for a request that cannot be parsed."""
        self._refuse(self._excess or CallerError("This is no valid HTTP request."))

    # The interface of `connections.ClientConnection`

    @property
    def is_known(self) -> bool:
        return self.phase == "body" and CALLER in self.scope

    def look(self, now: float) -> None:
        waited, bounds = now - self.since, self._bounds
        match self.phase:
            case "awaiting" if waited > bounds.head_within:
                self.transport.close()
            case "head" if waited > bounds.head_within:
                self._refuse(_too_slow())
            case "body" if self.flow.read_paused or self.cycle.waiting_for_100_continue:
                self.since = now  # the server has not asked for more yet
            case "body" if waited > bounds.pause_within or now - self._began > bounds.request_within:
                self._refuse(_too_slow())
            case "refused" if waited > bounds.linger:
                self.transport.abort()

    def drop(self) -> None:
        self.transport.abort()

    def turn_away(self) -> None:
        message = "The server has as many connections as it can hold; try again."
        self._refuse(CallerError(message, status=503, kind="server_error", code="unavailable", retry_after=1))

    def _await(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self.loop.time()
        self._lobby.wait(self)

    def _refuse(self, error: CallerError) -> None:
        """Sends the error, reads no further request, and lets the client read the response before the close."""
        if self.transport.is_closing():
            return
        request_id = f"req_{uuid.uuid4().hex}"
        log.info("connection_refused", request_id=request_id, status=error.status, phase=self.phase)
        self._barren = 0
        self._await("refused")
        if self._is_answering:
            self.transport.abort()
            return
        if self.cycle and not self.cycle.response_complete:
            # The application sees a disconnected client, and its response is discarded.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(_written(error, request_id))
        self.transport.write_eof()
        self.flow.resume_reading()

    @property
    def _is_answering(self) -> bool:
        """Has a response begun? The client would take a second one for a part of it."""
        if self.pipeline:
            return True
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete


def config_of(app: ASGIApp, connections: Connections | None = None, **options: Any) -> uvicorn.Config:
    """The uvicorn configuration of the server."""
    bounded = functools.partial(BoundedProtocol, connections=connections or Connections())
    return uvicorn.Config(
        app,
        http=bounded,  # type: ignore[arg-type]  # uvicorn only calls it, like a class
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        **options,
    )


def _written(error: CallerError, request_id: str) -> bytes:
    response = wire.refused(error)
    headers = [*response.raw_headers, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
    return b"".join(
        [STATUS_LINE[error.status], *(b"%b: %b\r\n" % header for header in headers), b"\r\n", bytes(response.body)]
    )


def _too_large() -> CallerError:
    return CallerError("The headers of the request are too large.", status=431, code="headers_too_large")


def _too_slow() -> CallerError:
    return CallerError("The rest of the request did not come in time.", status=408, code="request_timeout")
