"""Routes of retention: after how many days sessions are erased, by owner and state."""

from typing import Annotated, Any, Final, TypedDict

import structlog
from pydantic import Field

from longhouse.api import auth, wire
from longhouse.api.http.json_route import of_app, strict_router
from longhouse.store.database import Database
from longhouse.store.erasing import retention

log = structlog.get_logger()

MOST: Final = 36_500
Days = Annotated[int, Field(ge=1, le=MOST)] | None


class PolicyDays(wire.StrictModel):
    """Days by state; null: such sessions are kept. A state that is left out has the default of the settings."""

    COMPLETED: Days = None
    FAILED: Days = None
    CANCELLED: Days = None


class NewPolicy(wire.StrictModel):
    days: PolicyDays


class RetentionPolicy(TypedDict):
    owner: str
    days: retention.Policy
    """By state; null: such sessions are kept."""


class RetentionPolicies(TypedDict):
    default_days: int | None
    data: list[RetentionPolicy]


EXAMPLE: Final[dict[str, Any]] = {"owner": "shop", "days": {"COMPLETED": 30, "FAILED": 90}}
LISTED: Final[dict[str, Any]] = {"default_days": None, "data": [EXAMPLE]}

router = strict_router("Admin", auth.admin)
Db = Annotated[Database, of_app("db")]


@router.get("/admin/retention", responses={200: wire.answer("The default and the policies of owners.", LISTED)})
async def list_policies(db: Db, default: Annotated[int | None, of_app("retain_days")]) -> wire.Json[RetentionPolicies]:
    """After how many days sessions are erased: `default_days` of the settings, and the policies of owners."""
    found = await retention.policies(db)
    data: list[RetentionPolicy] = [{"owner": owner, "days": days} for owner, days in found.items()]
    return wire.Json({"default_days": default, "data": data})


@router.put(
    "/admin/owners/{owner}/retention",
    openapi_extra=wire.example(days={"COMPLETED": 30, "FAILED": 90}),
    responses={200: wire.answer("The policy.", EXAMPLE)},
)
async def put_policy(caller: auth.Admin, db: Db, owner: wire.Id, asked: NewPolicy) -> wire.Json[RetentionPolicy]:
    """Sets the policy of an owner, in the place of an earlier one; sessions that wait or run never go."""
    days: Any = asked.days.model_dump(exclude_unset=True)
    await retention.put(db, owner, days)
    log.info("retention_changed", by=caller.key, **days)
    return wire.Json({"owner": owner, "days": days})


@router.delete("/admin/owners/{owner}/retention", status_code=204)
async def delete_policy(caller: auth.Admin, db: Db, owner: wire.Id) -> wire.NoContent:
    """Takes the policy of an owner away: the default of the settings holds."""
    if not await retention.remove(db, owner):
        raise wire.not_found("This owner has no policy of its own.", code="policy_not_found")
    log.info("retention_changed", by=caller.key)
    return wire.NoContent()
