"""What keys and owners have used, on which days and of which models, and what that cost."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final, TypedDict, cast

import msgspec
from fastapi import Query
from pydantic import Field

from longhouse import clock
from longhouse.api import auth, wire
from longhouse.api.http.json_route import of_app, strict_router
from longhouse.api.pagination import Day, Omittable
from longhouse.errors import CallerError
from longhouse.prices import Price
from longhouse.store.database import Database
from longhouse.store.limits import budgets, usage
from longhouse.store.limits.usage import Used, UsedOnDay

LONGEST: Final = timedelta(days=400)
DIGITS: Final = Decimal("0.000001")

COUNTS: Final[dict[str, Any]] = {
    "turns": 6,
    "replies": 14,
    "prompt_tokens": 9_800,
    "cached_tokens": 6_400,
    "completion_tokens": 2_600,
    "total_tokens": 12_400,
    "cost": 0.00255,
}
EXAMPLE: Final[dict[str, Any]] = {
    "since": "2026-01-01",
    "until": "2026-01-31",
    "currency": "USD",
    "total": COUNTS,
    "keys": [{"key": "key_0123456789abcdef0123456789abcdef", "name": "the website", "owner": "shop", **COUNTS}],
    "models": [{"model": "gpt-4o-mini", **{name: value for name, value in COUNTS.items() if name != "turns"}}],
    "days": [{"day": "2026-01-31", **COUNTS}],
    "unpriced": [],
}
BUDGETS: Final[list[dict[str, Any]]] = [
    {"budget": "tokens_per_day", "limit": 200_000, "used": 12_400, "full_at": "2026-02-01T00:00:00Z"}
]
OWNERS: Final[list[dict[str, Any]]] = [{"owner": "shop", **COUNTS}]


class Prices(msgspec.Struct, frozen=True):
    of_models: Mapping[str, Price] = msgspec.field(default_factory=dict)
    currency: str = "USD"

    def cost(self, rows: Iterable[UsedOnDay]) -> float | None:
        """What these cost, as far as prices are set; None: none is."""
        found = [
            price.of(
                prompt_tokens=row.used.prompt_tokens,
                cached_tokens=row.used.cached_tokens,
                completion_tokens=row.used.completion_tokens,
            )
            for row in rows
            if (price := self.of_models.get(row.model))
        ]
        return float(sum(found, Decimal(0)).quantize(DIGITS)) if found else None


class Tokens(TypedDict):
    replies: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    total_tokens: int
    cost: float | None
    """None: no price of these models is known."""


class CountedUsage(Tokens):
    turns: int


class UsageOfKey(CountedUsage):
    key: str
    name: str
    owner: str


class UsageOfModel(Tokens):
    model: str


class UsageOfDay(CountedUsage):
    day: date


class UsageOfOwner(CountedUsage):
    owner: str


class UsageSummary(TypedDict):
    since: date
    until: date
    currency: str
    total: CountedUsage
    keys: list[UsageOfKey]
    models: list[UsageOfModel]
    days: list[UsageOfDay]
    unpriced: list[str]


class ShownBudget(TypedDict):
    budget: str
    limit: int
    used: int
    full_at: datetime


class OwnUsage(UsageSummary):
    budgets: list[ShownBudget]


class AllUsage(UsageSummary):
    owners: list[UsageOfOwner]


class Days(wire.StrictModel):
    since: Omittable[Day] = Field(None, description="From this day of UTC on; else since the first of this month")
    until: Omittable[Day] = Field(None, description="Up to this day of UTC, which is included; else up to today")

    @property
    def span(self) -> tuple[date, date]:
        return span(self.since, self.until)


class DaysOfAll(Days):
    owner: Omittable[wire.Id] = Field(None, description="Of this owner")
    key: Omittable[wire.Id] = Field(None, description="Of the key with this id")


router = strict_router("Watching", auth.user)
admin_router = strict_router("Admin", auth.admin)
Store = Annotated[Database, of_app("db")]
Priced = Annotated[Prices, of_app("prices")]


@router.get(
    "/v1/usage",
    responses={200: wire.answer("By key, model and day.", {**EXAMPLE, "budgets": BUDGETS})},
)
async def get_usage(
    caller: auth.User, db: Store, prices: Priced, asked: Annotated[Days, Query()]
) -> wire.Json[OwnUsage]:
    """What your owner's keys have used: turns, replies of models and tokens, by key, model and day of UTC; and what is
    left of the budgets of the key that you ask with. Sub-agents count for the key of the turn that they work for."""
    since, until = asked.span
    rows = await usage.found(db, since=since, until=until, owner=caller.owner)
    used = await budgets.used(db, [caller.key]) if caller.budgets else {}
    shown: list[ShownBudget] = [
        {"budget": name, "limit": limit, "used": used[caller.key][name], "full_at": budgets.full_at(name)}
        for name, limit in caller.budgets.items()
    ]
    return wire.Json({**summary(rows, since, until, prices), "budgets": shown})


@admin_router.get(
    "/admin/usage", responses={200: wire.answer("By owner, key, model and day.", {**EXAMPLE, "owners": OWNERS})}
)
async def get_all_usage(db: Store, prices: Priced, asked: Annotated[DaysOfAll, Query()]) -> wire.Json[AllUsage]:
    """As `/v1/usage`, over all owners, of one owner or of one key."""
    since, until = asked.span
    rows = await usage.found(db, since=since, until=until, owner=asked.owner, key=asked.key)
    return wire.Json({**summary(rows, since, until, prices), "owners": owners(rows, prices)})


def span(since: date | None, until: date | None) -> tuple[date, date]:
    """The days that are meant, the last included; raises for those that are in no order, or too many."""
    today = clock.now().astimezone(UTC).date()
    until = until or max(today, since or today)
    since = since or until.replace(day=1)
    if not timedelta() <= until - since <= LONGEST:
        raise CallerError(f"`since` should be before `until`, by {LONGEST.days} days at most.", param="since")
    return since, until


def summary(rows: Sequence[UsedOnDay], since: date, until: date, prices: Prices) -> UsageSummary:
    """These rows by key, model and day; those with most tokens first, and days in their order."""
    by_key = _grouped(rows, lambda row: (row.key_id, row.key_name, row.owner), prices)
    by_model = _grouped(
        [row for row in rows if row.used.replies or row.used.total_tokens], lambda row: row.model, prices
    )
    by_day = _grouped(rows, lambda row: row.day, prices)
    return {
        "since": since,
        "until": until,
        "currency": prices.currency,
        "total": _counted(rows, prices),
        "keys": [
            {"key": key, "name": _name(key, name), "owner": owner, **one}
            for (key, name, owner), one in _busiest(by_key)
        ],
        "models": [_of_model(model, one) for model, one in _busiest(by_model)],
        "days": [{"day": day, **one} for day, one in sorted(by_day.items())],
        "unpriced": sorted({row.model for row in rows if row.used.total_tokens} - prices.of_models.keys()),
    }


def _of_model(model: str, counted: Mapping[str, object]) -> UsageOfModel:
    """Without the turns: one may have replies of several models."""
    return cast("UsageOfModel", {"model": model, **{name: counted[name] for name in Tokens.__annotations__}})


def owners(rows: Sequence[UsedOnDay], prices: Prices) -> list[UsageOfOwner]:
    return [{"owner": owner, **one} for owner, one in _busiest(_grouped(rows, lambda row: row.owner, prices))]


def _grouped(rows: Iterable[UsedOnDay], by: Callable[[UsedOnDay], Any], prices: Prices) -> dict[Any, CountedUsage]:
    groups: dict[Any, list[UsedOnDay]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row)
    return {key: _counted(group, prices) for key, group in groups.items()}


def _counted(rows: Sequence[UsedOnDay], prices: Prices) -> CountedUsage:
    total = Used()
    for row in rows:
        total.add(row.used)
    return cast("CountedUsage", {**msgspec.structs.asdict(total), "cost": prices.cost(rows)})


def _busiest(groups: Mapping[Any, CountedUsage]) -> list[tuple[Any, CountedUsage]]:
    return sorted(groups.items(), key=lambda item: (-item[1]["total_tokens"], item[0]))


def _name(key: str, name: str) -> str:
    return auth.ADMIN_KEY_NAME if key == auth.ADMIN_KEY_ID else name
