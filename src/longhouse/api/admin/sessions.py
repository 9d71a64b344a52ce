"""/admin/sessions/{id}: for an admin, all that /v1/sessions/{id} has, in the sessions of every owner."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Depends, Request

from longhouse.api import auth
from longhouse.api.http.json_route import JsonRoute
from longhouse.api.sessions.routes import SESSION_PATH
from longhouse.store import sessions

PREFIX: Final = "/v1"
ALSO: Final = ("status_code", "description", "openapi_extra")
"""What is said of a route, and of its mirror."""


async def act_for_owner(caller: auth.Admin, request: Request) -> None:
    """Lets an admin act for the owner of the session that the path names; the journal names the admin's key."""
    owner = await sessions.owner_of(request.app.state.db, request.path_params["session_id"])
    if owner is None or owner == caller.owner:
        return  # of a session that is not there, the route says so
    request.scope[auth.CALLER] = replace(caller, owner=owner)


def routes(routers: Iterable[APIRouter]) -> APIRouter:
    """The routes below a session, once more under /admin: what they do is written once."""
    both = [Depends(auth.admin), Depends(act_for_owner)]
    mirrored = APIRouter(tags=["Admin"], dependencies=both)
    for route in (route for router in routers for route in router.routes):
        if isinstance(route, JsonRoute) and route.path.startswith(SESSION_PATH):
            also: dict[str, Any] = {name: route.given.get(name) for name in ALSO}
            mirrored.add_api_route(
                f"/admin{route.path.removeprefix(PREFIX)}",
                route.endpoint,
                methods=sorted(route.methods or ()),
                responses=route.answers,
                route_class_override=type(route),
                **also,
            )
    return mirrored
