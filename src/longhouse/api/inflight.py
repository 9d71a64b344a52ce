"""Requests in flight: drained when the server stops, ended when their key is revoked, with an error that says why."""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longhouse.api import errors, wire
from longhouse.api.rate_limits import Meter
from longhouse.errors import CallerError

VISIT: Final = "longhouse.visit"
"""The key under which a request's scope holds its `InflightRequest`."""
FAREWELL_WITHIN: Final = 2.0
"""Seconds to send the last error; a client that does not read is not waited for."""


@dataclass(eq=False, slots=True)
class InflightRequest:
    """One request, from its arrival to the last byte of its response."""

    task: asyncio.Task[object] | None
    key: str = ""
    meter: Meter | None = None
    is_revoked: bool = False
    session: str = ""
    """The session of the request, once it is known: the session goes on without the request."""
    in_stream: Callable[[CallerError], bytes] | None = None
    """Encodes an error for the stream that was begun, if there is one."""
    opened: ExitStack = field(default_factory=ExitStack)
    """Resources that were opened for this request and are closed at its end."""

    def end(self) -> None:
        assert self.task is not None
        self.is_revoked = True
        self.task.cancel()

    @property
    def farewell(self) -> CallerError:
        """The error for a request that is ended before its response is complete."""
        if self.is_revoked:
            return CallerError("This API key was revoked.", status=401, code="invalid_api_key")
        return errors.stopping(self.session)


class InflightRequests:
    """The requests in flight, by key."""

    def __init__(self) -> None:
        self._inside: defaultdict[str, set[InflightRequest]] = defaultdict(set)
        self.some = asyncio.Event()
        """Set while there are requests in flight."""

    @property
    def keys(self) -> list[str]:
        return list(self._inside)

    def of(self, key: str) -> list[InflightRequest]:
        return list(self._inside.get(key, ()))

    def enter(self, visit: InflightRequest, key: str, meter: Meter) -> None:
        """Counts a request for its key; raises if the key is over its limit."""
        visit.meter = meter  # also for a refused request: its response carries the rate limit headers
        meter.enter()
        visit.key = key
        self._inside[key].add(visit)
        self.some.set()

    def leave(self, visit: InflightRequest) -> None:
        """Removes the request; one that never entered is ignored."""
        inside = self._inside.get(visit.key)
        if inside is None or visit not in inside:
            return
        assert visit.meter is not None
        visit.meter.leave()
        inside.remove(visit)
        if not inside:
            del self._inside[visit.key]
        if not self._inside:
            self.some.clear()

    def end(self, key: str) -> None:
        """Ends all requests of this key, except the current one."""
        for visit in self.of(key):
            if visit.task is not asyncio.current_task() and not visit.is_revoked:
                visit.end()


class DrainMiddleware:
    """Middleware around all routes: tracks each request, and sends an error to those that are ended early."""

    def __init__(self, app: ASGIApp, visits: InflightRequests) -> None:
        self.app = app
        self._visits = visits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        visit = scope[VISIT] = InflightRequest(asyncio.current_task())
        answer = _Response(send, visit)
        try:
            await self.app(scope, receive, answer.send)
        except asyncio.CancelledError:
            if visit.task is None:
                raise
            visit.task.uncancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_WITHIN):
                    await answer.end(scope, receive)
        finally:
            visit.opened.close()
            self._visits.leave(visit)


class _Response:
    """The state of a response, so that it can be ended in a form that the client understands."""

    def __init__(self, send: Send, visit: InflightRequest) -> None:
        self._send = send
        self._visit = visit
        self._began = False
        self._is_over = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._began = True
            if self._visit.meter:
                message["headers"] = [*message["headers"], *self._visit.meter.headers]
        elif not message.get("more_body", False):
            self._is_over = True
        await self._send(message)

    async def end(self, scope: Scope, receive: Receive) -> None:
        """Before the first byte: an error response. In a stream: an error event. Any other response is cut."""
        farewell, in_stream = self._visit.farewell, self._visit.in_stream
        if not self._began:
            await wire.refused(farewell)(scope, receive, self.send)
        elif in_stream and not self._is_over:
            await self._send({"type": "http.response.body", "body": in_stream(farewell), "more_body": False})
