"""The HTTP application: all routes, error handlers with one envelope, and an access log."""

import time
import uuid
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Literal, TypedDict

import structlog
from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import longhouse
from longhouse.api import (
    addresses,
    auth,
    erasing,
    errors,
    interactions,
    memory_files,
    openapi,
    origins,
    questions,
    statistics,
    usage,
    wire,
)
from longhouse.api import documents as document_routes
from longhouse.api.a2a import routes as a2a_routes
from longhouse.api.admin import catalog as admin_catalog
from longhouse.api.admin import keys, models, operations, retention, search, security, trying
from longhouse.api.admin import routes as admin_routes
from longhouse.api.admin import sessions as admin_sessions
from longhouse.api.admin.models import ConfiguredModel
from longhouse.api.admin.operations import Operations
from longhouse.api.admin.retention import RetainDays
from longhouse.api.auth import Authenticator
from longhouse.api.caller import Caller
from longhouse.api.console import pages
from longhouse.api.console import session as browser_session
from longhouse.api.inflight import INFLIGHT, DrainMiddleware
from longhouse.api.interactions import Interactions
from longhouse.api.mcp import endpoint as mcp_endpoint
from longhouse.api.mcp.endpoint import McpEndpoint
from longhouse.api.metrics import Metrics
from longhouse.api.openai import routes as openai_routes
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.questions import QuestionFeed
from longhouse.api.sessions import artifacts, capsules, effects, replay, sse, timeline
from longhouse.api.sessions import memory as session_memory
from longhouse.api.sessions import routes as sessions_routes
from longhouse.api.sessions.routes import Sessions
from longhouse.api.sgr import routes as sgr_routes
from longhouse.api.statistics import Statistics
from longhouse.api.turns import Turns
from longhouse.api.usage import Prices
from longhouse.catalog.service import CatalogService
from longhouse.catalog.validation import CatalogValidator
from longhouse.errors import CallerError, SetupError
from longhouse.memory.parts import MemoryParts
from longhouse.memory.session_memory import SessionMemory
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.delegation import PriorOf
from longhouse.runtime.eraser import Eraser
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.instances import ModelFor
from longhouse.search.directory import AgentDirectory
from longhouse.search.finder import Finder
from longhouse.search.router import Router
from longhouse.store import leases
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import PASSING, Database, within
from longhouse.store.memory_files import Memories
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

LOGGED_PATH: Final = 300
"""Characters of a path in a log record."""
NAMED: Final = ("{owner}", "{user:path}", "{path:path}")
"""Parameters of paths that are names of people or of what they keep: of such a path, its pattern is logged."""
WATCHED: Final = ("/health", "/ready", "/metrics")
READY_WITHIN: Final = 2.0
"""Seconds; a readiness check does not wait for Postgres to come back."""

SESSION_ROUTERS: Final = (
    sessions_routes.router,
    sse.router,
    artifacts.router,
    replay.router,
    timeline.router,
    effects.router,
    capsules.router,
    session_memory.router,
    sgr_routes.log_router,
    questions.router,
)
OF_ADMINS: Final = admin_sessions.routes(SESSION_ROUTERS)
"""The same once more, for every owner's sessions; built once."""


def build(
    db: Database,
    bus: Bus,
    catalog: Catalog,
    metrics: Metrics,
    *,
    authenticator: Authenticator,
    toolbox: Toolbox,
    validator: CatalogValidator,
    finder: Finder,
    default_template: str = "",
    prior: PriorOf | None = None,
    memory: MemoryParts | None = None,
    model_for: ModelFor | None = None,
    model: ConfiguredModel | None = None,
    is_mirrored: bool = False,
    retain_days: int | None = None,
    prices: Prices | None = None,
    root_path: str = "",
    mcp: McpEndpoint | None = None,
) -> ASGIApp:
    # FastAPI's own documentation pages would be public: ours are in `openapi`.
    app = FastAPI(
        title="Longhouse", version=longhouse.__version__, openapi_url=None, docs_url=None, redirect_slashes=False
    )
    inbox, router = Inbox(db, bus), Router(AgentDirectory(finder), default_template)
    resolver = SessionResolver(db, catalog, inbox, router, prior)
    mcp, turns = mcp or McpEndpoint(), Turns(db, bus, catalog, resolver)
    mcp.turns, mcp.library = turns, memory.documents if memory else None
    # The routes look these up by name: see `json_route.of_app`.
    counts = Statistics(db)
    parts = {
        "db": db,
        "catalog": catalog,
        "tools": CatalogService(catalog, "tool", validator),
        "templates": CatalogService(catalog, "template", validator),
        "finder": finder,
        "toolbox": toolbox,
        "model": model or ConfiguredModel(),
        "questions": QuestionFeed(db, bus),
        "statistics": counts,
        "prices": prices or Prices(),
        "operations": Operations(db, counts, toolbox, is_mirrored=is_mirrored),
        "eraser": Eraser(inbox),
        "retain_days": RetainDays(retain_days),
        "turns": turns,
        "mcp": mcp,
    }
    remembering = _memory_parts(inbox, catalog, memory, model_for)
    app.state = State({**parts, **remembering, "authenticator": authenticator})
    routers = (
        openai_routes.routes(db, bus, catalog, resolver),
        mcp_endpoint.router,
        a2a_routes.router,
        *SESSION_ROUTERS,
        interactions.router,
        erasing.router,
        erasing.admin_router,
        retention.router,
        memory_files.router,
        sgr_routes.router,
        document_routes.uploads,
        document_routes.router,
        keys.router,
        search.router,
        security.router,
        trying.router,
        statistics.router,
        statistics.admin_router,
        usage.router,
        usage.admin_router,
        operations.router,
        admin_catalog.TOOLS,
        admin_catalog.TEMPLATES,
        admin_routes.router,
        models.router,
        OF_ADMINS,
        questions.admin_router,
        openapi.router,
        browser_session.router,
        pages.router,
    )
    for one in routers:
        app.router.routes += one.routes  # not `include_router`, which would build each route a second time
    _add_monitoring(app, db, metrics)
    _add_error_handlers(app)
    whole = AccessLogMiddleware(DrainMiddleware(app, authenticator.inflight), metrics, authenticator)
    return addresses.SubPathMiddleware(whole, _free(root_path, app)) if root_path else whole


def _free(root_path: str, app: FastAPI) -> str:
    """The root path; refuses one that our own paths begin with, which could not be told from them."""
    first = root_path.split("/")[1]
    if any(getattr(route, "path", "").split("/")[1:2] == [first] for route in app.router.routes):
        raise SetupError(f"LONGHOUSE_ROOT_PATH: /{first} is a path of Longhouse itself; choose another.")
    return root_path


def _memory_parts(
    inbox: Inbox, catalog: Catalog, memory: MemoryParts | None, model_for: ModelFor | None
) -> dict[str, Any]:
    """What the routes of sessions, documents, memory files and the ledger look up."""
    sessions = Sessions(inbox, catalog, memory.sessions if memory else SessionMemory())
    parts: dict[str, Any] = {"sessions": sessions, "memories": Memories(catalog.db)}
    if memory:
        parts["documents"] = memory.documents
    if memory and model_for:
        parts["interactions"] = Interactions(memory.ledger, inbox, catalog, model_for)
    return parts


class Health(TypedDict):
    status: Literal["healthy"]
    service: str


class Readiness(TypedDict):
    status: Literal["ready"]
    workers: int
    """Those that are alive."""


class MetricsPage(Response):
    media_type = CONTENT_TYPE_LATEST


def _add_monitoring(app: FastAPI, db: Database, metrics: Metrics) -> None:
    # Without a response model: FastAPI does not know our types of responses.
    @app.get("/health", tags=["Watching"], response_model=None)
    async def health() -> wire.Json[Health]:
        """Liveness: the process is running."""
        return wire.Json({"status": "healthy", "service": "Longhouse"})

    @app.get("/ready", tags=["Watching"], response_model=None)
    async def ready() -> wire.Json[Readiness]:
        """Readiness: Postgres is reachable, and a worker is alive."""
        try:
            workers = await within(READY_WITHIN, leases.alive(db))
        except PASSING as error:
            raise errors.error_for(error) from None
        if not workers:
            raise CallerError("No worker is running.", status=503, kind="server_error")
        return wire.Json({"status": "ready", "workers": workers})

    @app.get("/metrics", tags=["Watching"], dependencies=[Depends(auth.watcher)], response_model=None)
    async def show_metrics() -> MetricsPage:
        """Prometheus metrics."""
        return MetricsPage(await metrics.page())


def watching(app: ASGIApp, is_leaving: Callable[[], bool]) -> ASGIApp:
    """The routes that tell how a process is, and no others: for workers, which serve nobody."""

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        answer = app
        if scope["type"] == "http" and scope["path"] not in WATCHED:
            answer = wire.error_response(wire.not_found("This process works; it serves no API."))
        elif scope["type"] == "http" and scope["path"] == "/ready" and is_leaving():
            answer = wire.error_response(CallerError("The worker is leaving.", status=503, kind="server_error"))
        await answer(scope, receive, send)

    return watched


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(CallerError)
    async def refuse(request: Request, error: CallerError) -> Response:
        return wire.error_response(error)

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        message = "There is no such route." if error.status_code == 404 else f"{error.detail}."
        answer = wire.error_response(CallerError(message, status=error.status_code, code=code))
        answer.headers.update(error.headers or {})  # a 405 names the allowed methods
        return answer

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> Response:
        return wire.error_response(wire.validation_error(error))

    async def server_error(request: Request, error: Exception) -> Response:
        if isinstance(error, PASSING):
            path = _logged_path(request.scope)
            log.warning(errors.log_key(error), message="A request was refused.", path=path, error=repr(error))
        return wire.error_response(errors.error_for(error, request.scope[INFLIGHT].session))

    for kind in (*PASSING, Exception):
        app.add_exception_handler(kind, server_error)


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

        async def send_with_headers(message: Message) -> None:
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
            await send(message)

        try:
            await app(scope, receive, send_with_headers)
        except Exception:
            # The handler above has already sent the error response; here the error is logged.
            log.exception("request_failed", request_id=request_id, path=_logged_path(scope))
            if not status:
                raise
        finally:
            caller: Caller | None = scope.get(auth.CALLER)
            key, seconds = caller.key if caller else None, round(time.perf_counter() - began, 4)
            # A page of the console is forty files: they say nothing of what is done here.
            # Those who watch ask every few seconds, and nothing is worth a record but a refusal.
            is_dull = getattr(scope.get("route"), "path", None) in (pages.STATIC, *WATCHED)
            tell = log.debug if is_dull and status < HTTPStatus.BAD_REQUEST else log.info
            about = {"status": status, "key": key, "seconds": seconds}
            tell("request", request_id=request_id, method=method, path=_logged_path(scope), **about)


def _logged_path(scope: Scope) -> str:
    """The path, or its pattern: what is erased must not stay in a log."""
    pattern: str = getattr(scope.get("route"), "path", "")
    return pattern if any(name in pattern for name in NAMED) else str(scope["path"])[:LOGGED_PATH]
