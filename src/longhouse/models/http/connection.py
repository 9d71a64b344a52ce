"""One connection of the HTTP client (HTTP/1.1): it sends a request and hands over the response as it arrives.

llhttp parses (by httptools). What arrives faster than it is read is held back: the connection stops reading above a
bound. One coarse timer per connection watches all of its exchanges, instead of one per read.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final, cast

import httptools
import msgspec
from yarl import URL

from longhouse.models.http.failure import HttpFailure, late

CONNECT: Final = 10.0
"""Seconds for the DNS lookup and the connect."""
KEEP_ALIVE: Final = 30.0
"""Seconds that an idle connection, and the checked addresses of a name, are kept."""
MOST_HELD: Final = 256 * 2**10
"""Bytes of a body that wait for their reader; above it, no more are received."""
MOST_HEAD: Final = 64 * 2**10
"""Bytes without one of a body among them: the head, interim responses, trailers, chunk extensions."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds after which a request has failed."""

    connect: float = CONNECT
    hang: float = math.inf
    """Without a byte of the response."""
    within: float = math.inf
    """For everything: the wait for a connection, the request, the response."""


class Response:
    """The response to one request, while it arrives."""

    __slots__ = ("_connection", "failure", "headers", "held", "is_complete", "pieces", "reason", "status", "waiter")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self.status = 0
        self.reason = b""
        self.headers: dict[bytes, bytes] = {}
        """By name in lower case; of a repeated one the first. Those after the body are dropped."""
        self.is_complete = False
        self.pieces: list[bytes] = []
        self.held = 0
        """Bytes of the pieces."""
        self.failure: HttpFailure | None = None
        self.waiter: asyncio.Future[None] | None = None

    async def started(self) -> None:
        """Waits for status and headers."""
        while not self.status:
            await self._arrival()

    async def read(self) -> bytes:
        """The bytes of the body that arrived since the last read; empty at the end."""
        while not self.pieces:
            if self.is_complete:
                return b""
            await self._arrival()
        piece = self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
        self.pieces, self.held = [], 0
        if self._connection.is_paused:
            self._connection.resume()
        return piece

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing but the end of the connection tells the end of the body."""
        # The parser takes a name with a space after it for the name.
        headers = {name.strip(): value.lower() for name, value in self.headers.items()}
        if not self.status or b"content-length" in headers:
            return False
        return b"chunked" not in headers.get(b"transfer-encoding", b"")

    def wake(self) -> None:
        if self.waiter and not self.waiter.done():
            self.waiter.set_result(None)

    def _arrival(self) -> "asyncio.Future[None]":
        if self.failure:
            raise self.failure
        self.waiter = self._connection.loop.create_future()
        return self.waiter


class Connection(asyncio.Protocol):
    """A connection to `origin`, for one request after another."""

    def __init__(self, origin: URL, timeouts: Timeouts, on_lost: "Callable[[Connection], None]") -> None:
        self.loop = asyncio.get_running_loop()
        self.origin = origin
        self._on_lost = on_lost
        self._timeouts = timeouts
        self._parser = httptools.HttpResponseParser(self)
        # As other clients do: nobody reads a response after us, so nobody can split it in another way.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        self._response: Response | None = None
        self._headers: dict[bytes, bytes] = {}
        self._reason = b""
        self._bodiless = 0
        """Bytes since the last one of a body."""
        self._is_last = False
        """No further request can follow the present one."""
        self.is_paused = False
        self._unsent = 0
        """Bytes of the request, at the last check."""
        self._active_at = self.loop.time()
        self.deadline = math.inf
        """When the present exchange has failed, by the clock of the event loop."""
        self._timer: asyncio.TimerHandle | None = None
        self._check_at = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    def send(self, head: bytes, *body: bytes) -> Response:
        """Sends a request. It is in memory anyway, so the transport keeps what the server does not read at once."""
        self._response = response = Response(self)
        if self.transport.is_closing():  # its end was told before this request
            response.failure = _cut_off(response, None)
            return response
        self._bodiless, self._active_at = 0, self.loop.time()
        self.transport.writelines((head, *body))
        self._check_by(min(self._active_at + self._timeouts.hang, self.deadline))
        return response

    def rest(self) -> bool:
        """Ends the exchange; False if the connection cannot be kept for another one."""
        response, self._response = self._response, None
        if response is None or not response.is_complete or self._is_last or self.transport.is_closing():
            return False
        if self.is_paused or self.transport.get_write_buffer_size():  # the response came before the whole request went
            return False
        self._active_at = self.loop.time()
        self._check_by(self._active_at + KEEP_ALIVE)
        return True

    def close(self) -> None:
        """At once: nothing that still waits to be sent or received is wanted."""
        if (response := self._response) and not response.is_complete:
            self._fail(response, _cut_off(response, None))
        self.transport.abort()

    def leave(self) -> None:
        """The transport has another protocol from now on."""
        self._response = None
        if self._timer:
            self._timer.cancel()

    def resume(self) -> None:
        if self.is_open:
            self.is_paused = False
            self._active_at = self.loop.time()
            self.transport.resume_reading()

    # --- called by the event loop

    def data_received(self, data: bytes) -> None:
        response = self._response
        if response is None or response.failure:  # nobody asked
            self.close()
            return
        self._active_at = self.loop.time()
        self._bodiless += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._broken(response)
        if self._bodiless > MOST_HEAD:
            self._broken(response)
        response.wake()
        if response.held > MOST_HELD and not self.is_paused and not response.is_complete:
            self.is_paused = True
            self.transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        response = self._response
        self.leave()
        if response and not response.is_complete and not response.failure:
            if error is None and response.ends_with_connection:
                response.is_complete = True
                response.wake()
            else:
                self._fail(response, _cut_off(response, error))
        self._on_lost(self)

    def resume_writing(self) -> None:
        """Nearly all of a large request has been sent."""
        self._active_at = self.loop.time()

    # --- called by the parser

    def on_message_begin(self) -> None:
        self._headers, self._reason = {}, b""
        if self._response and self._response.is_complete:  # a second response, which nobody asked for
            self._is_last = True

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        name, value = name.lower(), value.strip(b" \t")
        if self._headers.setdefault(name, value) is not value and name.startswith(b"transfer-encoding"):
            self._headers[name] += b", " + value  # the last of several tells whether the body is in chunks

    def on_headers_complete(self) -> None:
        response, status = self._response, self._parser.get_status_code()
        if response and not response.is_complete and status >= 200:
            response.status, response.reason, response.headers = status, self._reason, self._headers
            self._headers = {}

    def on_body(self, piece: bytes) -> None:
        response = self._response
        if response and response.status and not response.is_complete:  # not of an interim response
            self._bodiless = 0
            response.pieces.append(piece)
            response.held += len(piece)

    def on_message_complete(self) -> None:
        response = self._response
        if response and response.status:
            self._is_last = self._is_last or not self._parser.should_keep_alive()
            response.is_complete = True

    # --- failures

    def _broken(self, response: Response) -> None:
        """What came is no HTTP; a response that is whole already stays so, but nothing more is received."""
        self._is_last = True
        if response.is_complete:
            self.transport.abort()
        elif response.status:
            self._fail(response, _cut_off(response, None))
        else:
            kind = "ClientResponseError"
            self._fail(response, HttpFailure("did not complete the request", kind, kind=kind))

    def _fail(self, response: Response, failure: HttpFailure) -> None:
        response.failure = response.failure or failure
        response.wake()
        self.transport.abort()

    def _check_by(self, moment: float) -> None:
        """Has the times checked at this moment at the latest; a check that comes earlier sets the next one."""
        if moment < self._check_at:
            if self._timer:
                self._timer.cancel()
            self._check_at, self._timer = moment, self.loop.call_at(moment, self._check)

    def _check(self) -> None:
        now, response = self.loop.time(), self._response
        self._check_at = math.inf
        if response is None:
            if now >= self._active_at + KEEP_ALIVE:
                self.close()
            else:
                self._check_by(self._active_at + KEEP_ALIVE)
            return
        unsent = self.transport.get_write_buffer_size()
        if self.is_paused or response.is_complete or (unsent and unsent != self._unsent):
            self._active_at, self._unsent = now, unsent
        silent_at = self._active_at + self._timeouts.hang
        if now >= self.deadline and not response.is_complete:
            self._fail(response, late(self._timeouts.within))
        elif now >= silent_at:
            what = f"sent nothing for {self._timeouts.hang:g} s"
            self._fail(response, HttpFailure(what, kind="SocketTimeoutError"))
        else:
            self._check_by(silent_at if response.is_complete else min(silent_at, self.deadline))


def _cut_off(response: Response, error: Exception | None) -> HttpFailure:
    """The connection ended before the response did."""
    is_os_error = isinstance(error, OSError)
    if response.status:
        return HttpFailure("broke off its answer", kind="ClientOSError" if is_os_error else "ClientPayloadError")
    kind = "ClientOSError" if is_os_error else "ServerDisconnectedError"
    return HttpFailure("closed the connection without an answer", kind=kind)
