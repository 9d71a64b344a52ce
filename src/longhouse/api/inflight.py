"""Requests in flight: drained when the server stops, ended when their key is revoked, with an error that says why."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longhouse.api import errors, wire
from longhouse.api.rate_limits import Meter
from longhouse.errors import CallerError

INFLIGHT: Final = "longhouse.inflight"
"""The key under which a request's scope holds its `InflightRequest`."""
PRIVATE: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))
"""Headers of every response that needs a caller: a browser that is signed out keeps nothing of it."""
LAST_ERROR_WITHIN: Final = 2.0
"""Seconds to send the last error; a client that does not read is not waited for."""


@dataclass(eq=False, slots=True)
class InflightRequest:
    """One request, from its arrival to the last byte of its response."""

    task: asyncio.Task[object] | None
    send: Send
    """Sends a message around the layers between here and the route: they have nothing to do with what comes between
    the first and the last message of a response."""
    key: str = ""
    """The API key under which the request is counted; empty if it is not."""
    meter: Meter | None = None
    browser: str = ""
    """The signed-in browser that sent the request (the digest of its token); empty with a key in a header."""
    key_digest: str = ""
    """The digest of the key as it was sent; empty for the key of the settings, which changes only with a restart."""
    needs_caller: bool = False
    """Whether the response is for this caller alone, and nobody may keep it."""
    is_revoked: bool = False
    session: str = ""
    """The session of the request, once it is known: the session goes on without the request."""
    in_stream: Callable[[CallerError], bytes] | None = None
    """Encodes an error for the stream that was begun, if there is one."""
    opened: ExitStack = field(default_factory=ExitStack)
    """Resources that were opened for this request and are closed at its end."""

    @property
    def last_error(self) -> CallerError:
        """The error for a request that is ended before its response is complete."""
        if self.is_revoked:
            why = (
                "This browser is not signed in any more."
                if self.browser
                else "This API key was revoked or has expired."
            )
            return CallerError(why, status=401, code="invalid_api_key")
        return errors.unavailable("The server is stopping.", self.session)


class InflightRequests:
    """The requests in flight that a key is charged for."""

    def __init__(self) -> None:
        self._all: set[InflightRequest] = set()
        self.not_empty = asyncio.Event()
        """Set while there are requests in flight."""

    def of(self, **whose: str) -> list[InflightRequest]:
        """Those of a `key`, of a `browser`, or with a `key_digest`."""
        wanted = whose.items()
        return [one for one in self._all if all(getattr(one, name) == value for name, value in wanted)]

    async def enter(self, inflight: InflightRequest, key: str, meter: Meter) -> None:
        """Counts a request for its key; raises if the key is over its limit."""
        inflight.meter = meter  # also for a refused request: its response carries the rate limit headers
        await meter.enter()
        inflight.key = key
        self._all.add(inflight)
        self.not_empty.set()

    def leave(self, inflight: InflightRequest) -> None:
        """Removes the request; one that never entered is ignored."""
        if not inflight.meter or inflight not in self._all:
            return
        inflight.meter.leave()
        self._all.remove(inflight)
        if not self._all:
            self.not_empty.clear()

    def end(self, **whose: str) -> None:
        """Ends all requests of a `key`, of a `browser`, or with a `key_digest`, except the current one."""
        for inflight in self.of(**whose):
            if inflight.task and inflight.task is not asyncio.current_task() and not inflight.is_revoked:
                inflight.is_revoked = True
                inflight.task.cancel()

    def end_all(self) -> None:
        """Ends all requests; their clients are told that the server stops."""
        for inflight in self._all:
            if inflight.task:
                inflight.task.cancel()

    def named(self, what: Literal["browser", "key_digest"]) -> set[str]:
        """The signed-in browsers, or the digests of keys, that have sent some."""
        return {getattr(one, what) for one in self._all} - {""}


class DrainMiddleware:
    """Middleware around all routes: tracks each request, and sends an error to those that are ended early."""

    def __init__(self, app: ASGIApp, inflight: InflightRequests) -> None:
        self.app = app
        self._inflight = inflight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        inflight = scope[INFLIGHT] = InflightRequest(asyncio.current_task(), send)
        is_begun = is_complete = False

        def tracked(message: Message) -> Awaitable[None]:
            nonlocal is_begun, is_complete
            if message["type"] == "http.response.start":
                is_begun = True
                message["headers"] = [*message["headers"], *_own_headers(inflight, message["headers"])]
            elif not message.get("more_body", False):
                is_complete = True
            return send(message)

        try:
            await self.app(scope, receive, tracked)
        except asyncio.CancelledError:
            if inflight.task is None:
                raise
            inflight.task.uncancel()
            # Before the first byte: an error response. In a stream: an error event. Any other response is cut.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_ERROR_WITHIN):
                    if not is_begun:
                        await wire.error_response(inflight.last_error)(scope, receive, tracked)
                    elif inflight.in_stream and not is_complete:
                        body = inflight.in_stream(inflight.last_error)
                        await send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            inflight.opened.close()
            self._inflight.leave(inflight)


def _own_headers(inflight: InflightRequest, given: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The headers that a response gets beside those of its route."""
    if inflight.meter:
        yield from inflight.meter.headers
    if inflight.needs_caller:
        names = {name for name, _ in given}
        yield from (header for header in PRIVATE if header[0] not in names)
