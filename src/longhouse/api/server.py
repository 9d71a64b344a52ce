"""The HTTP application: all routes, and error handlers with one envelope."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Scope

import longhouse
from longhouse.activity import ActivityCounts
from longhouse.api import erasing, errors, questions, webhooks, wire
from longhouse.api.a2a import routes as a2a_routes
from longhouse.api.admin import catalog as admin_catalog
from longhouse.api.admin import keys, models, operations, retention, search, security, trying
from longhouse.api.admin import routes as admin_routes
from longhouse.api.admin import sessions as admin_sessions
from longhouse.api.admin.models import ConfiguredModel
from longhouse.api.admin.operations import Operations
from longhouse.api.auth import Authenticator
from longhouse.api.console import pages
from longhouse.api.console import session as browser_session
from longhouse.api.http import addresses, openapi, origins
from longhouse.api.http.access_log import AccessLogMiddleware, logged_path
from longhouse.api.inflight import INFLIGHT, DrainMiddleware
from longhouse.api.mcp import endpoint as mcp_endpoint
from longhouse.api.mcp.endpoint import McpEndpoint
from longhouse.api.memory import documents as document_routes
from longhouse.api.memory import interactions, memory_files
from longhouse.api.memory.interactions import Interactions
from longhouse.api.openai import routes as openai_routes
from longhouse.api.openai.background_jobs import BackgroundJobs
from longhouse.api.openai.responses import conversations as conversation_routes
from longhouse.api.openai.responses import routes as response_routes
from longhouse.api.openai.responses.service import ResponseService
from longhouse.api.openai.session_resolver import SessionResolver
from longhouse.api.questions import QuestionFeed
from longhouse.api.schedules import routes as schedule_routes
from longhouse.api.schedules.firing import Scheduler
from longhouse.api.sessions import artifacts, capsules, effects, forks, replay, sse, step_replay, timeline
from longhouse.api.sessions import memory as session_memory
from longhouse.api.sessions import routes as sessions_routes
from longhouse.api.sessions.routes import Sessions
from longhouse.api.sessions.step_replay import StepReplays
from longhouse.api.sgr import routes as sgr_routes
from longhouse.api.turns import Turns
from longhouse.api.watching import monitoring, statistics, usage
from longhouse.api.watching.metrics import Metrics
from longhouse.api.watching.statistics import Statistics
from longhouse.api.watching.usage import Prices
from longhouse.api.webhooks import WebhookService
from longhouse.catalog.service import CatalogService
from longhouse.catalog.validation import CatalogValidator
from longhouse.egress import Egress
from longhouse.errors import CallerError, SetupError
from longhouse.memory.parts import MemoryParts
from longhouse.memory.session_memory import SessionMemory
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.cleanup.eraser import Eraser
from longhouse.runtime.inbox import Inbox
from longhouse.runtime.steps.delegation import PriorOf
from longhouse.runtime.workers.instances import ModelFor
from longhouse.runtime.workers.resident_sessions import ResidentSessions
from longhouse.search.directory import AgentDirectory
from longhouse.search.finder import Finder
from longhouse.search.router import Router
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.memory.memory_files import Memories
from longhouse.tools.offering import Offering
from longhouse.tools.toolbox import Toolbox

log = structlog.get_logger()

SESSION_ROUTERS: Final = (
    sessions_routes.router,
    sse.router,
    artifacts.router,
    replay.router,
    step_replay.router,
    timeline.router,
    effects.router,
    capsules.router,
    forks.router,
    session_memory.router,
    sgr_routes.log_router,
    questions.router,
)
OF_ADMINS: Final = admin_sessions.routes(SESSION_ROUTERS)
"""The same once more, for every owner's sessions; built once."""
ROUTERS: Final = (
    openai_routes.router,
    response_routes.router,
    conversation_routes.router,
    mcp_endpoint.router,
    a2a_routes.router,
    *SESSION_ROUTERS,
    interactions.router,
    schedule_routes.router,
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
    webhooks.router,
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
    monitoring.router,
)


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """What the routes are served with."""

    db: Database
    bus: Bus
    catalog: Catalog
    metrics: Metrics
    authenticator: Authenticator
    toolbox: Toolbox
    validator: CatalogValidator
    finder: Finder
    default_template: str = ""
    prior: PriorOf | None = None
    memory: MemoryParts | None = None
    model_for: ModelFor | None = None
    offering: Offering | None = None
    model: ConfiguredModel = msgspec.field(default_factory=ConfiguredModel)
    activity: ActivityCounts = msgspec.field(default_factory=ActivityCounts)
    is_mirrored: bool = False
    retain_days: int | None = None
    prices: Prices = msgspec.field(default_factory=Prices)
    root_path: str = ""
    cors_origins: Sequence[str] = ()
    """Pages of these may call the API below /v1."""
    mcp: McpEndpoint = msgspec.field(default_factory=McpEndpoint)
    egress: Egress = msgspec.field(default_factory=Egress)
    """Where tools and webhooks may reach."""
    max_schedules: int = 100
    declined: Mapping[str, str] = {}
    """Agents that the worker of this process cannot run, with the reason."""
    resident: ResidentSessions = msgspec.field(default_factory=ResidentSessions)

    @property
    def scheduler(self) -> Scheduler:
        return Scheduler(
            Inbox(self.db, self.bus), self.catalog, self.authenticator, prior=self.prior, most=self.max_schedules,
            count=self.metrics.scheduled,
        )  # fmt: skip


def build(parts: Parts) -> ASGIApp:
    # FastAPI's own documentation pages would be public: ours are in `openapi`.
    app = FastAPI(
        title="Longhouse", version=longhouse.__version__, openapi_url=None, docs_url=None, redirect_slashes=False
    )
    inbox, router = Inbox(parts.db, parts.bus), Router(AgentDirectory(parts.finder), parts.default_template)
    resolver = SessionResolver(parts.db, parts.catalog, inbox, router, parts.prior, parts.resident)
    app.state = State({**_state(parts, resolver), **_memory_state(parts, inbox)})
    for one in ROUTERS:
        app.router.routes += one.routes  # not `include_router`, which would build each route a second time
    _add_error_handlers(app)
    drained: ASGIApp = DrainMiddleware(app, parts.authenticator.inflight)
    if parts.cors_origins:
        drained = origins.CrossOriginMiddleware(drained, parts.cors_origins)
    whole = AccessLogMiddleware(drained, parts.metrics, parts.authenticator)
    return addresses.SubPathMiddleware(whole, _free(parts.root_path, app)) if parts.root_path else whole


def _state(parts: Parts, resolver: SessionResolver) -> dict[str, Any]:
    """What the routes look up by name: see `json_route.of_app`."""
    inbox, counts = resolver.inbox, Statistics(parts.db)
    documents = parts.memory.documents if parts.memory else None
    turns = Turns(parts.db, parts.bus, parts.catalog, resolver)
    jobs = BackgroundJobs(parts.db, resolver, parts.model_for) if parts.model_for else None
    parts.mcp.turns, parts.mcp.library = turns, documents
    return {
        **msgspec.structs.asdict(parts),
        "tools": CatalogService(parts.catalog, "tool", parts.validator, parts.finder.reached),
        "templates": CatalogService(parts.catalog, "template", parts.validator, parts.finder.reached),
        "responses": ResponseService(parts.db, parts.bus, parts.catalog, inbox, resolver, documents),
        "jobs": jobs,
        "turns": turns,
        "questions": QuestionFeed(parts.db, parts.bus),
        "statistics": counts,
        "operations": Operations(parts.db, counts, parts.toolbox, parts.is_mirrored),
        "eraser": Eraser(inbox),
        "webhooks": WebhookService(parts.db, parts.egress),
        "schedules": parts.scheduler,
    }


def _memory_state(parts: Parts, inbox: Inbox) -> dict[str, Any]:
    """What the routes of sessions, documents, memory files and the ledger look up."""
    memory = parts.memory
    sessions = Sessions(inbox, parts.catalog, memory.sessions if memory else SessionMemory())
    replays = StepReplays(sessions, parts.toolbox, parts.model_for, parts.offering)
    state: dict[str, Any] = {"sessions": sessions, "replays": replays, "memories": Memories(parts.db)}
    if memory:
        state["documents"] = memory.documents
    if memory and parts.model_for:
        state["interactions"] = Interactions(memory.ledger, inbox, parts.catalog, parts.model_for)
    return state


def _free(root_path: str, app: FastAPI) -> str:
    """The root path; refuses one that our own paths begin with, which could not be told from them."""
    first = root_path.split("/")[1]
    if any(getattr(route, "path", "").split("/")[1:2] == [first] for route in app.router.routes):
        raise SetupError(f"LONGHOUSE_ROOT_PATH: /{first} is a path of Longhouse itself; choose another.")
    return root_path


def _methods_of(app: FastAPI, scope: Scope) -> list[str]:
    """The methods of a path, over all its routes: Starlette names those of the first one, and ours have one each."""
    found = [route for route in app.router.routes if route.matches(scope)[0] is not Match.NONE]
    return sorted({method for route in found for method in getattr(route, "methods", None) or ()})


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(CallerError)
    async def refuse(request: Request, error: CallerError) -> Response:
        return wire.error_response(error)

    @app.exception_handler(HTTPException)
    async def refuse_route(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
        message = "There is no such route." if error.status_code == 404 else f"{error.detail}."
        answer = wire.error_response(CallerError(message, status=error.status_code, code=code))
        answer.headers.update(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            answer.headers["allow"] = ", ".join(_methods_of(app, request.scope))
        return answer

    @app.exception_handler(RequestValidationError)
    async def refuse_parameter(request: Request, error: RequestValidationError) -> Response:
        return wire.error_response(wire.validation_error(error))

    async def server_error(request: Request, error: Exception) -> Response:
        if isinstance(error, errors.TROUBLE):
            errors.log_trouble(error, "A request was refused.", path=logged_path(request.scope))
        return wire.error_response(errors.error_for(error, request.scope[INFLIGHT].session))

    for kind in (*errors.TROUBLE, Exception):
        app.add_exception_handler(kind, server_error)
