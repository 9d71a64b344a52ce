"""Uvicorn's HTTP/1.1 protocol with limits: the size of a request, the time to receive it, the number of connections.

Uvicorn keeps a head of any length in memory and waits for the rest of a request without a timeout. All limits are
about receiving. Responses have none: event streams last for hours, and clients may read slowly.
"""

import asyncio
import functools
import math
import resource
import uuid
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from longhouse.api import wire
from longhouse.api.auth import CALLER
from longhouse.errors import CallerError

log = structlog.get_logger()

FILES: Final = 65_536
"""The highest file limit that is set: programs that iterate over all descriptors become slow with a higher one."""
RESERVED: Final = 384
"""File descriptors that connections must not use: Postgres, models, MCP servers and tools need some 100, and the whole
backlog is accepted at once before it can be counted."""
BACKLOG: Final = 256
"""Connections that the kernel queues until they are accepted."""
WARN_EVERY: Final = 60.0
DRAINED: Final = 256 * 1024
"""Bytes that are still read and discarded after a refusal."""
TOO_LARGE: Final = CallerError("The headers of the request are too large.", status=431, code="headers_too_large")
TOO_SLOW: Final = CallerError("The rest of the request did not arrive in time.", status=408, code="request_timeout")

Phase = Literal["awaiting", "head", "body", "answering", "refused"]
"""Before a request, in its head, in its body, after it; or after a refusal, when no further request is read."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a request, which hold before its caller is known."""

    head: int = 32 * 1024
    """Bytes of a request line and its headers: twice the limit of Node, the same as nginx."""
    header: int = 16 * 1024
    """Bytes of one header; browsers send all cookies of a host in one."""
    headers: int = 100
    pipelined: int = 16
    """Pipelined requests on one connection; hardly any client pipelines."""
    head_within: float = 10.0
    """Seconds for a head, from its first byte on; also the seconds to wait for that byte."""
    idle: float = 75.0
    """Seconds that a connection is kept after a response: longer than proxies and clients keep theirs (nginx 60,
    aiohttp 15), since a request that meets the close is lost, and clients do not repeat a POST."""
    pause_within: float = 30.0
    """Seconds without a byte while a body is awaited."""
    request_within: float = 300.0
    """Seconds for a whole request: the largest accepted body at a quarter of a megabit per second."""
    linger: float = 2.0
    """Seconds for a refused client to read the response: closing the connection at once would discard it."""
    check_every: float = 1.0
    """Seconds between checks of all timeouts."""
    waiting: int = 1_000
    """Connections without a complete request at once."""
    grace: float = 1.0
    """Seconds that a connection may wait, however many there are: its first bytes may not have been read yet."""
    connections: int = 10_000
    """Connections at once; fewer if the limit of open files is lower."""


class Connections:
    """All connections of a server; idle ones can be closed to make room, the longest waiting first."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.waiting: dict[BoundedProtocol, None] = {}
        """Connections without a complete request, in the order in which they began to wait."""
        self._open: set[BoundedProtocol] = set()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = FILES if soft == resource.RLIM_INFINITY else max(soft - RESERVED, soft // 3)
        self._most = min(self.bounds.connections, free)
        self._timer: asyncio.TimerHandle | None = None
        self._warned_at = -WARN_EVERY

    def enter(self, one: "BoundedProtocol") -> None:
        """Adds a connection; at the limit, closes the longest waiting one, or else the new one."""
        self._open.add(one)
        self.wait(one)
        is_full = len(self._open) > self._most
        if not is_full and len(self.waiting) <= self.bounds.waiting:
            return
        # Only if there is no other, an authenticated client is dropped. The new connection is not authenticated yet.
        longest = next(each for each in self.waiting if not each.is_authenticated)
        longest = next(iter(self.waiting)) if is_full and longest is one else longest
        if is_full and longest is one:
            self._warn(one, "connection_turned_away", "Every connection is in use; a new one was turned away.")
            one.turn_away()
        elif is_full or longest.since < one.since - self.bounds.grace:
            self._drop(longest)

    def leave(self, one: "BoundedProtocol") -> None:
        self._open.discard(one)
        self.waiting.pop(one, None)

    def wait(self, one: "BoundedProtocol") -> None:
        """The connection now waits for its next request, or for the rest of one."""
        self.waiting[one] = None
        if self._timer is None:
            self._timer = one.loop.call_later(self.bounds.check_every, self._check_timeouts, one.loop)

    def _drop(self, one: "BoundedProtocol") -> None:
        self._warn(one, "connection_dropped", "Connections without a request were dropped to make room.")
        self.leave(one)
        one.transport.abort()

    def _check_timeouts(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for one in list(self.waiting):
            one.check_timeout(now)
        self._timer = loop.call_later(self.bounds.check_every, self._check_timeouts, loop) if self.waiting else None

    def _warn(self, one: "BoundedProtocol", event: str, message: str) -> None:
        now = one.loop.time()
        if now > self._warned_at + WARN_EVERY:
            self._warned_at = now
            log.warning(event, message=message, connections=len(self._open), waiting=len(self.waiting), most=self._most)


class Excess(Exception):  # noqa: N818 - never leaves this module
    """A head exceeded its limits."""


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.phase: Phase = "awaiting"
        self.since = 0.0
        """When the server began to wait for the client's next bytes."""
        self._connections = connections
        self._bounds = connections.bounds
        self._began = 0.0
        self._unparsed = 0
        """Bytes since the last complete head or piece of a body: the most that the parser can have buffered."""
        self._excess: CallerError | None = None

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self._connections.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unparsed += len(data)
        if self.phase == "refused":
            if self._unparsed > DRAINED:
                self.transport.abort()
            return
        super().data_received(data)
        if self._unparsed > self._bounds.head:
            self._refuse((self.phase == "head" and self._excess_of_head()) or TOO_LARGE)

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._began = self.since = self.loop.time()
        if self.phase == "answering":
            self._connections.wait(self)  # a pipelined request, sent before the previous response
        self.phase = "head"

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value.strip(b" \t"))  # RFC 9110, 5.5: white space around a value is no part of it

    def on_headers_complete(self) -> None:
        self._excess = self._excess_of_head()
        if self._excess:
            raise Excess
        self._unparsed = 0
        self.phase = "body"
        super().on_headers_complete()
        # A trailer after the body would be appended to this list: it must not be taken for a header.
        self.headers = []

    def _excess_of_head(self) -> CallerError | None:
        """The error of a complete head that exceeds the limits; `_unparsed` bounds an incomplete one."""
        bounds = self._bounds
        if len(self.url) > bounds.header:
            return CallerError("The address of the request is too long.", status=414, code="uri_too_long")
        sizes = [len(name) + len(value) for name, value in self.headers]
        is_large = max(sizes, default=0) > bounds.header or len(self.url) + sum(sizes) > bounds.head
        is_long = len(sizes) > bounds.headers or len(self.pipeline) >= bounds.pipelined
        return TOO_LARGE if is_large or is_long else None

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        self.since = self.loop.time()
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:
            self._await("awaiting")  # the response was complete before its request
        else:
            self.phase = "answering"
            self._connections.waiting.pop(self, None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.phase == "answering" and self.cycle.response_complete and not self.transport.is_closing():
            self._await("awaiting")

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn for a request that cannot be parsed."""
        self._refuse(self._excess or CallerError("This is not a valid HTTP request."))

    # Callbacks of `Connections`

    @property
    def is_authenticated(self) -> bool:
        """Is the caller of the awaited request authenticated?"""
        return self.phase == "body" and CALLER in self.scope

    def check_timeout(self, now: float) -> None:
        """Closes the connection if one of its timeouts has passed."""
        waited, bounds = now - self.since, self._bounds
        match self.phase:
            case "awaiting" if waited > (bounds.idle if self.cycle else bounds.head_within):
                self.transport.close()
            case "head" if waited > bounds.head_within:
                self._refuse(TOO_SLOW)
            case "body" if self.flow.read_paused or self.cycle.waiting_for_100_continue:
                self.since = now  # the server has not asked for more yet
            case "body" if waited > bounds.pause_within or now - self._began > bounds.request_within:
                self._refuse(TOO_SLOW)
            case "refused" if waited > bounds.linger:
                self.transport.abort()

    def turn_away(self) -> None:
        """Closes the connection with a 503: the server has too many connections."""
        message = "The server has reached its limit of connections; try again."
        self._refuse(CallerError(message, status=503, kind="server_error", code="unavailable", retry_after=1))

    def _await(self, phase: Phase) -> None:
        self.phase = phase
        self.since = self.loop.time()
        self._connections.wait(self)

    def _refuse(self, error: CallerError) -> None:
        """Sends the error, reads no further request, and lets the client read the response before the close."""
        if self.transport.is_closing():
            return
        request_id = f"req_{uuid.uuid4().hex}"
        log.info("connection_refused", request_id=request_id, status=error.status, phase=self.phase)
        self._unparsed = 0
        self._await("refused")
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if self.pipeline or (is_answering and self.cycle.response_started):
            self.transport.abort()  # the client would take a second response for a part of the first
            return
        if is_answering:
            # The application sees a disconnected client, and its response is discarded.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        response = wire.error_response(error)
        headers = [*response.raw_headers, (b"x-request-id", request_id.encode()), (b"connection", b"close")]
        lines = (b"%b: %b\r\n" % header for header in headers)
        self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", bytes(response.body)]))
        self.transport.write_eof()
        self.flow.resume_reading()


def raise_file_limit() -> None:
    """Raises the limit of open files for this process: each connection is a file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def config_of(
    app: ASGIApp, connections: Connections | None = None, *, trusts: Sequence[str] = (), **options: Any
) -> uvicorn.Config:
    """The uvicorn configuration of the server; `trusts`: addresses of proxies that may say for whom they ask."""
    connections = connections or Connections()
    bounded = functools.partial(BoundedProtocol, connections=connections)
    return uvicorn.Config(
        app,
        http=bounded,  # type: ignore[arg-type]  # uvicorn only calls it, like a class
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusts),
        forwarded_allow_ips=list(trusts),
        backlog=BACKLOG,
        timeout_keep_alive=math.ceil(connections.bounds.idle),
        **options,
    )
