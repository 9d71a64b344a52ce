"""Security policy routes: overrides that operators set for single tools, whoever published them."""

from typing import Annotated, Any, Final

from longhouse.agents.tool_descriptor import SecurityOverlay
from longhouse.api import auth, wire
from longhouse.api.admin import docs
from longhouse.api.admin.catalog import Fields, Name
from longhouse.api.http.json_route import Answers, of_app, refuses, strict_router
from longhouse.catalog.diff import merge
from longhouse.catalog.security import PolicyOfTool
from longhouse.catalog.service import CatalogService
from longhouse.store.catalog.catalog import Catalog

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


ANSWERS: Final[Answers] = {
    200: wire.answer("What holds, and whose word it is.", HELD),
    400: docs.error(
        "Something is wrong.",
        "Nothing is changed. risk_level: Input should be 'low', 'medium' or 'high'.",
        param="risk_level",
    ),
    **docs.missing("tool"),
}
CHANGED: Final[Answers] = {**ANSWERS, **refuses(409)}

router = strict_router("Admin", auth.admin, prefix="/admin/tools/{name}/security_policy")
TheCatalog = Annotated[Catalog, of_app("catalog")]


Tools = Annotated[CatalogService, of_app("tools")]


@router.get("", summary="Read what holds for a tool", responses=ANSWERS)
async def get_policy(tools: Tools, name: Name) -> wire.Json[PolicyOfTool]:
    """The policy in the tool's descriptor, the operator's override, and the effective policy."""
    return wire.Json(await tools.policy_of(name))


@router.put("", summary="Put a policy over a tool", openapi_extra=wire.example(**OVERLAY), responses=CHANGED)
async def put_policy(
    caller: auth.Admin, tools: Tools, name: Name, fields: Annotated[Fields, wire.Documented(SecurityOverlay)]
) -> wire.Json[PolicyOfTool]:
    """Replaces the override of a tool, for all versions and publishers; built-in tools, agents and tools of MCP servers
    included. The override replaces the risk; its other fields only narrow what the descriptor allows."""
    return wire.Json(await tools.decide(name, lambda before: fields, by=caller.publisher))


@router.patch("", summary="Change the policy over a tool", openapi_extra=wire.example(enabled=False), responses=CHANGED)
async def patch_policy(caller: auth.Admin, tools: Tools, name: Name, fields: Fields) -> wire.Json[PolicyOfTool]:
    """Changes some fields of the override: a JSON merge patch, in which null removes a field."""
    return wire.Json(await tools.decide(name, lambda before: merge(before, fields), by=caller.publisher))


@router.delete(
    "",
    **docs.named(
        "tool", "Take the policy over a {} away", "The tool's own description holds.", errors=refuses(400, 409)
    ),
)
async def delete_policy(caller: auth.Admin, tools: Tools, name: Name) -> wire.NoContent:
    """Removes the override: the policy in the tool's descriptor applies again."""
    await tools.decide(name, lambda before: {}, by=caller.publisher)
    return wire.NoContent()
