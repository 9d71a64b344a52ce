"""Whether this process lives, whether it can work, and its metrics: for those who watch it from outside."""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal, TypedDict

from fastapi import APIRouter, Depends, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.types import ASGIApp, Receive, Scope, Send

from longhouse.api import auth, errors, wire
from longhouse.api.http.json_route import of_app
from longhouse.api.http.lazy_route import LazyRoute
from longhouse.api.watching.metrics import Metrics
from longhouse.errors import CallerError
from longhouse.store import leases
from longhouse.store.database import PASSING, Database, within

PATHS: Final = ("/health", "/ready", "/metrics")
READY_WITHIN: Final = 2.0
"""Seconds; a readiness check does not wait for Postgres to come back."""


class Health(TypedDict):
    status: Literal["healthy"]
    service: str


class Readiness(TypedDict):
    status: Literal["ready"]
    workers: int
    """Those that are alive."""


class MetricsPage(Response):
    media_type = CONTENT_TYPE_LATEST


# Without a response model: FastAPI does not know our types of responses.
router = APIRouter(tags=["Watching"], route_class=LazyRoute)


@router.get("/health", response_model=None)
async def health() -> wire.Json[Health]:
    """Liveness: the process is running."""
    return wire.Json({"status": "healthy", "service": "Longhouse"})


@router.get("/ready", response_model=None)
async def ready(
    db: Annotated[Database, of_app("db")], declined: Annotated[Mapping[str, str], of_app("declined")]
) -> wire.Json[Readiness]:
    """Readiness: Postgres is reachable, a worker is alive, and no agent's sessions wait for a package."""
    try:
        workers = await within(READY_WITHIN, leases.alive(db))
        abandoned = await within(READY_WITHIN, leases.abandoned(db, list(declined)))
    except PASSING as error:
        raise errors.error_for(error) from None
    if not workers:
        raise CallerError("No worker is running.", status=503, kind="server_error")
    if abandoned:
        agent = abandoned[0]
        problem = f"Sessions of {agent} wait, and no process can run them; here {declined[agent]}."
        raise CallerError(problem, status=503, kind="server_error")
    return wire.Json({"status": "ready", "workers": workers})


@router.get("/metrics", dependencies=[Depends(auth.watcher)], response_model=None)
async def show_metrics(metrics: Annotated[Metrics, of_app("metrics")]) -> MetricsPage:
    """Prometheus metrics."""
    return MetricsPage(await metrics.page())


def only_monitoring(app: ASGIApp, is_leaving: Callable[[], bool]) -> ASGIApp:
    """The routes that tell how a process is, and no others: for workers, which serve nobody."""

    async def watched(scope: Scope, receive: Receive, send: Send) -> None:
        answer = app
        if scope["type"] == "http" and scope["path"] not in PATHS:
            answer = wire.error_response(wire.not_found("This is a worker; it serves no API."))
        elif scope["type"] == "http" and scope["path"] == "/ready" and is_leaving():
            answer = wire.error_response(CallerError("The worker is leaving.", status=503, kind="server_error"))
        await answer(scope, receive, send)

    return watched
