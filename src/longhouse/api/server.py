"""The HTTP application: all routes, error handlers with one envelope, and an access log."""

import asyncio
import time
import uuid
from typing import Final

import structlog
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import longhouse
from longhouse.api import auth, errors, metrics, openapi, origins, wire
from longhouse.api.admin import catalog as admin_catalog
from longhouse.api.admin import keys, search, security
from longhouse.api.admin import routes as admin_routes
from longhouse.api.auth import Authenticator, Caller
from longhouse.api.inflight import VISIT, DrainMiddleware
from longhouse.api.metrics import Metrics
from longhouse.api.openai import routes as openai_routes
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.sessions import artifacts, event_routes, replay
from longhouse.api.sessions import routes as sessions_routes
from longhouse.api.sessions.routes import Sessions
from longhouse.api.sgr import agent_log
from longhouse.api.sgr import routes as sgr_routes
from longhouse.catalog.validation import CatalogValidator
from longhouse.errors import CallerError
from longhouse.runtime.bus import Bus
from longhouse.runtime.delegation import PriorOf
from longhouse.runtime.inbox import Inbox
from longhouse.search.directory import AgentDirectory
from longhouse.search.finder import Finder
from longhouse.search.router import Router
from longhouse.store import leases
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import PASSING, Database
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

LOGGED_PATH: Final = 300
"""Characters of a path in a log record."""
READY_WITHIN: Final = 2.0
"""Seconds; a readiness check does not wait for Postgres to come back."""


def build(
    db: Database,
    bus: Bus,
    catalog: Catalog,
    numbers: Metrics,
    *,
    door: Authenticator,
    toolbox: Toolbox,
    admission: CatalogValidator,
    finder: Finder,
    default_template: str = "",
    prior: PriorOf | None = None,
) -> ASGIApp:
    # FastAPI's own documentation pages would be public: ours are in `openapi`.
    app = FastAPI(
        title="Longhouse", version=longhouse.__version__, openapi_url=None, docs_url=None, redirect_slashes=False
    )
    inbox = Inbox(db, bus)
    turns = SessionResolver(db, catalog, inbox, Router(AgentDirectory(finder), default_template), prior)
    held = Sessions(inbox, catalog, turns)
    # The routes look these up by name: see `json_route.of_app`.
    parts = {"db": db, "door": door, "catalog": catalog, "admission": admission, "finder": finder, "toolbox": toolbox}
    app.state = State({**parts, "sessions": held})
    routers = (
        openai_routes.routes(db, bus, catalog, turns),
        sessions_routes.router,
        event_routes.router,
        artifacts.router,
        replay.router,
        agent_log.router,
        sgr_routes.routes(db, bus, held),
        keys.router,
        search.router,
        security.router,
        admin_catalog.routes(catalog.tools, admission, catalog.overlays),
        admin_catalog.routes(catalog.templates, admission),
        admin_routes.router,
        openapi.router,
    )
    for router in routers:
        app.router.routes += router.routes  # not `include_router`, which would build each route a second time
    _add_watching(app, db, numbers)
    _add_refusals(app)
    return Border(DrainMiddleware(app, door.visits), numbers, door)


def _add_watching(app: FastAPI, db: Database, numbers: Metrics) -> None:
    @app.get("/health", tags=["Watching"])
    async def health() -> Response:
        """Liveness: the process is running."""
        return wire.Json({"status": "ok"})

    @app.get("/ready", tags=["Watching"])
    async def ready() -> Response:
        """Readiness: Postgres is reachable, and a worker is alive."""
        try:
            async with asyncio.timeout(READY_WITHIN):
                workers = await leases.alive(db)
        except PASSING as error:
            raise errors.of(error) from None
        if not workers:
            raise CallerError("No worker is there.", status=503, kind="server_error")
        return wire.Json({"status": "ready", "workers": workers})

    @app.get("/metrics", tags=["Watching"], dependencies=[Depends(auth.admin)])
    async def show_metrics() -> Response:
        """Prometheus metrics."""
        return Response(numbers.page(), media_type=metrics.CONTENT_TYPE)


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(CallerError)
    async def refuse(request: Request, error: CallerError) -> Response:
        return wire.refused(error)

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        message = "There is no such route." if error.status_code == 404 else f"{error.detail}."
        answer = wire.refused(CallerError(message, status=error.status_code, code=code))
        answer.headers.update(error.headers or {})  # a 405 names the allowed methods
        return answer

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> Response:
        return wire.refused(wire.refusal(error))

    async def ask_for_patience(request: Request, error: Exception) -> Response:
        path = request.url.path[:LOGGED_PATH]
        log.warning(errors.named(error), message="A request was refused.", path=path, error=repr(error))
        return wire.refused(errors.of(error, request.scope[VISIT].session))

    for kind in PASSING:
        app.add_exception_handler(kind, ask_for_patience)

    @app.exception_handler(Exception)
    async def confess(request: Request, error: Exception) -> Response:
        return wire.refused(errors.defect(request.scope[VISIT].session))


class Border:
    """The outermost middleware: a request id, the headers that clients expect, metrics, and one access log record."""

    def __init__(self, app: ASGIApp, numbers: Metrics, door: Authenticator) -> None:
        self.app = app
        self._numbers = numbers
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, began, status = f"req_{uuid.uuid4().hex}", time.perf_counter(), 0
        refusal = await origins.refusal(scope, self._door)
        app = wire.refused(refusal) if refusal else self.app

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                took = time.perf_counter() - began
                message["headers"] = [*message["headers"], *_headers(request_id, took)]
                self._numbers.answered(scope["method"], _route(scope), status, took)
            await send(message)

        try:
            await app(scope, receive, send_with_headers)
        except Exception:
            # The handler above has already sent the error response; here the error is logged.
            log.exception("request_failed", request_id=request_id, path=scope["path"][:LOGGED_PATH])
            if not status:
                raise
        finally:
            log.info(
                "request",
                request_id=request_id,
                method=scope["method"],
                path=scope["path"][:LOGGED_PATH],
                status=status,
                key=_key(scope),
                seconds=round(time.perf_counter() - began, 4),
            )


def _key(scope: Scope) -> str | None:
    """The id of the request's API key; None: the request was not authenticated."""
    caller: Caller | None = scope.get(auth.CALLER)
    return caller.key if caller else None


def _headers(request_id: str, seconds: float) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-request-id", request_id.encode()),
        (b"openai-processing-ms", str(round(seconds * 1000)).encode()),
        (b"openai-version", b"2020-10-01"),
    ]


def _route(scope: Scope) -> str:
    """The route pattern that matched, never the path: paths hold ids, and would make an unbounded number of metrics."""
    route = scope.get("route")
    return str(getattr(route, "path", "unknown"))
