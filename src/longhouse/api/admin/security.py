"""What operators put over the security policy of single tools, whoever describes them."""

from copy import deepcopy
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.admin.catalog import Name
from longhouse.catalog import security
from longhouse.catalog.service import Desk, merge
from longhouse.catalog.validation import Admission
from longhouse.errors import CallerError
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.repository import Version

OVERLAY: Final[dict[str, Any]] = {"risk_level": "high", "rate_limits": {"per_minute": 5}}
DESCRIBED: Final[dict[str, Any]] = {
    "risk_level": "low",
    "allow": {"templates": None, "sub_agents": True},
    "rate_limits": {"per_minute": None},
    "needs_approval": False,
    "enabled": True,
}
HELD: Final[dict[str, Any]] = {
    "name": "websearchtool",
    "described": DESCRIBED,
    "overlay": {**OVERLAY, "changed_by": "key_0123456789abcdef0123456789abcdef", "changed_at": "2026-01-31T12:00:00Z"},
    "effective": {**DESCRIBED, **OVERLAY},
}


def routes(catalog: Catalog, admission: Admission) -> APIRouter:
    desk = Desk(catalog.tools, admission)
    guards = [Depends(auth.admin), Depends(pagination.none)]
    router = APIRouter(prefix="/admin/tools/{name}/security_policy", tags=["Admin"], dependencies=guards)
    refusals: dict[int | str, dict[str, Any]] = {
        400: docs.error(
            "Something is wrong.",
            "Nothing is changed. risk_level: Input should be 'low', 'medium' or 'high'.",
            param="risk_level",
        ),
        404: docs.error("There is none.", str(desk.missing()), code=desk.missing().code),
    }
    answers = {200: docs.answer("What holds, and whose word it is.", HELD), **refusals}
    schema = deepcopy(security.ADAPTER.json_schema())

    async def tool_of(name: str) -> Version:
        found = await desk.named(name)
        return await desk.version(name, found.active or found.latest)

    async def decided(caller: auth.Caller, name: str, change: Any) -> Response:
        held = await security.decide(catalog, await tool_of(name), change, by=caller.publisher)
        return wire.Json(held.shown())

    @router.get("", response_model=None, summary="Read what holds for a tool", responses=answers)
    async def get_policy(name: Name) -> Response:
        """What the tool's description says, what an operator has put over it, and what holds."""
        return wire.Json((await security.held(catalog, await tool_of(name))).shown())

    @router.put(
        "",
        response_model=None,
        summary="Put a policy over a tool",
        openapi_extra=wire.described_as(schema, OVERLAY),
        responses=answers,
    )
    async def put_policy(caller: auth.Admin, name: Name, request: Request) -> Response:
        """Replaces what was put over the tool, whichever version is active and whoever describes it; built-in tools,
        agents and tools of MCP servers included. The risk is replaced, all else only narrows what the tool says."""
        said = await _object(request)
        return await decided(caller, name, lambda before: said)

    @router.patch(
        "",
        response_model=None,
        summary="Change the policy over a tool",
        openapi_extra=wire.described_as({"type": "object"}, {"enabled": False}),
        responses=answers,
    )
    async def patch_policy(caller: auth.Admin, name: Name, request: Request) -> Response:
        """Changes some fields of what was put over the tool: a JSON merge patch, in which null takes a field away."""
        said = await _object(request)
        return await decided(caller, name, lambda before: _merged(before, said))

    @router.delete(
        "",
        response_model=None,
        status_code=204,
        summary="Take the policy over a tool away",
        responses={204: {"description": "The tool's own description holds."}, 404: refusals[404]},
    )
    async def delete_policy(caller: auth.Admin, name: Name, request: Request) -> Response:
        """The tool's own description holds again."""
        await wire.refuse_body(request)
        await decided(caller, name, lambda before: {})
        return Response(status_code=204)

    return router


def _merged(before: dict[str, Any], patch: dict[str, Any]) -> Any:
    try:
        return merge(before, patch)
    except RecursionError:
        raise CallerError("The patch is nested too deep.") from None


async def _object(request: Request) -> dict[str, Any]:
    try:
        sent = msgspec.json.decode(await wire.read_body(request))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise CallerError("The body is not valid JSON in UTF-8.") from None
    if not isinstance(sent, dict):
        raise CallerError("The body is an object: the fields of a security policy.")
    return sent
