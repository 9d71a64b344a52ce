"""What operators see of everybody: sessions, instances and workers."""

from typing import Any, Final

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.sessions.routes import listed
from longhouse.api.sessions.waiting import shown
from longhouse.journal.session import State
from longhouse.runtime.instances import Status
from longhouse.store import sessions, workers
from longhouse.store.database import Database

SESSIONS: Final = pagination.described(
    pagination.parameter("state", "In this state", enum=[state.value for state in State]),
    pagination.parameter("template", "Of this template"),
    pagination.parameter("owner", "Of this owner", pattern=f"^{wire.ID.pattern}$"),
    pagination.parameter("conversation_id", "Of this conversation", pattern=f"^{wire.ID.pattern}$"),
    pagination.parameter("since", "Opened at this moment or later", **pagination.MOMENT),
    pagination.parameter("until", "Opened before this moment", **pagination.MOMENT),
    *pagination.PAGED,
)
INSTANCES: Final = pagination.described(
    pagination.parameter("status", "In this state", enum=[status.value for status in Status]),
    pagination.parameter("template", "Of this template"),
    pagination.parameter("worker", "Of this worker"),
    *pagination.PAGED,
)


def routes(db: Database) -> APIRouter:
    router = APIRouter(tags=["Admin"], dependencies=[Depends(auth.admin)])

    @router.get(
        "/admin/sessions",
        response_model=None,
        openapi_extra=SESSIONS,
        responses={200: docs.answer("One page of sessions.", docs.page(docs.SESSION))},
    )
    async def list_sessions(request: Request) -> Response:
        """The sessions of all owners, newest first."""
        known = ("state", "template", "owner", "conversation_id", "since", "until", "limit", "before")
        asked = pagination.Query(request, known)
        filters = sessions.Filters(
            owner=asked.id("owner"),
            state=asked.choice("state", State),
            template=asked.text("template"),
            conversation_id=asked.id("conversation_id"),
            since=asked.moment("since"),
            until=asked.moment("until"),
        )
        limit = _limit(asked)
        rows = await sessions.sessions(db, filters, before=asked.cursor("before"), limit=limit + 1)
        page = await shown(db, rows[:limit])
        data = [{**listed(row), "owner": row.owner, "user": row.user} for row in page]
        return _page(data, pagination.cursor_of(rows[limit - 1]) if len(rows) > limit else None)

    @router.get(
        "/admin/instances",
        response_model=None,
        openapi_extra=INSTANCES,
        responses={200: docs.answer("One page of instances.", docs.page(docs.INSTANCE))},
    )
    async def list_instances(request: Request) -> Response:
        """The instances of all workers, the last used first; `metrics.history` has the states they were in lately."""
        asked = pagination.Query(request, ("status", "template", "worker", "limit", "before"))
        limit = _limit(asked)
        rows = await workers.instances(
            db,
            status=asked.choice("status", Status),
            template=asked.text("template"),
            worker=asked.text("worker"),
            before=asked.cursor("before"),
            limit=limit + 1,
        )
        ended = rows[limit - 1] if len(rows) > limit else None
        following = pagination.cursor_at(ended.last_used_at, ended.instance_id) if ended else None
        return _page([msgspec.to_builtins(row) for row in rows[:limit]], following)

    @router.get(
        "/admin/workers",
        response_model=None,
        openapi_extra=pagination.described(*pagination.PAGED),
        responses={200: docs.answer("One page of workers.", docs.page(docs.WORKER))},
    )
    async def list_workers(request: Request) -> Response:
        """The workers on the roster, the latest to start first."""
        asked = pagination.Query(request, ("limit", "before"))
        limit = _limit(asked)
        rows = await workers.workers(db, before=asked.cursor("before"), limit=limit + 1)
        ended = rows[limit - 1] if len(rows) > limit else None
        following = pagination.cursor_at(ended.started_at, ended.worker_id) if ended else None
        return _page([msgspec.to_builtins(row) for row in rows[:limit]], following)

    return router


def _limit(asked: pagination.Query) -> int:
    return asked.number("limit", default=50, least=1, most=pagination.MAX_PAGE)


def _page(data: list[Any], following: str | None) -> Response:
    return wire.Json({"object": "list", "data": data, "has_more": following is not None, "next": following})
