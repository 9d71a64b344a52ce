"""What is noted of each request: a request id, metrics, and one record in the log."""

import time
import uuid
from collections.abc import Awaitable
from http import HTTPStatus
from typing import Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longhouse.api import auth, wire
from longhouse.api.auth import Authenticator
from longhouse.api.caller import Caller
from longhouse.api.console import pages
from longhouse.api.http import origins
from longhouse.api.watching import monitoring
from longhouse.api.watching.metrics import Metrics

log = structlog.get_logger()

LOGGED_PATH: Final = 300
"""Characters of a path in a log record."""
NAMED: Final = ("{owner}", "{user:path}", "{path:path}")
"""Parameters of paths that are names of people or of what they keep: of such a path, its pattern is logged."""


class AccessLogMiddleware:
    """The outermost middleware: a request id, the headers that clients expect, metrics, and one access log record."""

    def __init__(self, app: ASGIApp, metrics: Metrics, authenticator: Authenticator) -> None:
        self.app = app
        self._metrics = metrics
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, began, status = f"req_{uuid.uuid4().hex}", time.perf_counter(), 0
        method = scope["method"]
        error = await origins.origin_error(scope, self._authenticator.is_open)
        app = wire.error_response(error) if error else self.app

        def send_with_headers(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status, took = message["status"], time.perf_counter() - began
                message["headers"] = [
                    *message["headers"],
                    (b"x-request-id", request_id.encode()),
                    (b"openai-processing-ms", b"%d" % round(took * 1000)),
                    (b"openai-version", b"2020-10-01"),
                ]
                # The route pattern, never the path: paths hold ids, and would make an unbounded number of metrics.
                route = getattr(scope.get("route"), "path", "unknown")
                self._metrics.answered(method, route, status, took)
            return send(message)

        try:
            await app(scope, receive, send_with_headers)
        except Exception:
            # The handler above has already sent the error response; here the error is logged.
            log.exception("request_failed", request_id=request_id, path=logged_path(scope))
            if not status:
                raise
        finally:
            caller: Caller | None = scope.get(auth.CALLER)
            key, seconds = caller.key if caller else None, round(time.perf_counter() - began, 4)
            # A page of the console is forty requests for files: not worth a record.
            # Monitors ask every few seconds: only a refusal is worth one.
            is_dull = getattr(scope.get("route"), "path", None) in (pages.STATIC, *monitoring.PATHS)
            write = log.debug if is_dull and status < HTTPStatus.BAD_REQUEST else log.info
            about = {"status": status, "key": key, "seconds": seconds}
            write("request", request_id=request_id, method=method, path=logged_path(scope), **about)


def logged_path(scope: Scope) -> str:
    """The path, or its pattern: what is erased must not stay in a log."""
    pattern: str = getattr(scope.get("route"), "path", "")
    return pattern if any(name in pattern for name in NAMED) else str(scope["path"])[:LOGGED_PATH]
