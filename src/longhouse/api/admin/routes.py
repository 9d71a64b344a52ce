"""Operator routes: the sessions of all owners, instances, and workers."""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.http.json_route import of_app, strict_router
from longhouse.api.pagination import Omittable, Page
from longhouse.api.sessions.listing import ListedSession, listed
from longhouse.api.sessions.routes import SessionFilters
from longhouse.runtime.workers.instances import InstanceStatus
from longhouse.store import leases, registry
from longhouse.store.database import Database
from longhouse.store.leases import WorkerRow
from longhouse.store.lists import session_lists
from longhouse.store.lists.session_lists import AllSessionCounts
from longhouse.store.registry import RegisteredInstance

router = strict_router("Admin", auth.admin)
Db = Annotated[Database, of_app("db")]


class SessionOfOwner(ListedSession):
    owner: str
    user: str | None


class AllFacets(SessionFilters):
    owner: Omittable[wire.Id] = Field(None, description="Of this owner")


class AllSessions(AllFacets, pagination.Paged):
    pass


class Instances(pagination.Paged):
    status: Omittable[InstanceStatus] = Field(None, strict=False, description="In this state")
    template: Omittable[str] = Field(None, description="Of this template")
    worker: Omittable[str] = Field(None, description="Of this worker")


@router.get("/admin/sessions", responses={200: docs.listed("One page of sessions.", docs.SESSION)})
async def list_sessions(db: Db, asked: Annotated[AllSessions, Query()]) -> wire.Json[Page[SessionOfOwner]]:
    """The sessions of all owners, newest first."""
    found = await session_lists.search(db, **asked.filters, before=asked.before, limit=asked.fetched)
    rows, following = asked.cut(found, pagination.by("created_at"))
    shown = zip(await listed(db, rows), rows, strict=True)
    data: list[SessionOfOwner] = [{**one, "owner": row.owner, "user": row.user} for one, row in shown]
    return wire.Json(pagination.page(data, following))


@router.get("/admin/sessions/facets", responses={200: wire.answer("Counts of sessions.", docs.FACETS)})
async def count_sessions(db: Db, asked: Annotated[AllFacets, Query()]) -> wire.Json[AllSessionCounts]:
    """How many sessions are in which state, of which agent and owner, and in how many a tool failed; of the newest
    10,000, filtered as the list is."""
    return wire.Json(await session_lists.facets(db, **asked.filters))


@router.get("/admin/instances", responses={200: docs.listed("One page of instances.", docs.INSTANCE)})
async def list_instances(db: Db, asked: Annotated[Instances, Query()]) -> wire.Json[Page[RegisteredInstance]]:
    """The instances of all workers, most recently used first; `metrics.history` has their recent states."""
    found = await registry.instances(db, **asked.filters, before=asked.before, limit=asked.fetched)
    return wire.Json(asked.page(found, pagination.by("last_used_at", "instance_id")))


@router.get("/admin/workers", responses={200: docs.listed("One page of workers.", docs.WORKER)})
async def list_workers(db: Db, asked: pagination.PagedQuery) -> wire.Json[Page[WorkerRow]]:
    """The registered workers, most recently started first."""
    found = await leases.workers(db, before=asked.before, limit=asked.fetched)
    return wire.Json(asked.page(found, pagination.by("started_at", "worker_id")))
