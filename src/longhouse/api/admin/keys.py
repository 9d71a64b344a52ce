"""API key routes: create, list without secrets, change, rotate, revoke."""

from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import structlog
from fastapi import Query
from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from longhouse import clock
from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.auth import Authenticator
from longhouse.api.http.json_route import of_app, strict_router
from longhouse.api.pagination import Page
from longhouse.errors import CallerError
from longhouse.store.access import keys
from longhouse.store.access.keys import Key, Role
from longhouse.store.limits import budgets

log = structlog.get_logger()

MOST: Final = 1_000_000
MOST_OF_BUDGET: Final = 10**15
LONGEST_OVERLAP: Final = 30 * 24 * 3600
MOST_TEMPLATES: Final = 100

Limit = Annotated[int, Field(ge=1, le=MOST)] | None
Budget = Annotated[int, Field(ge=1, le=MOST_OF_BUDGET)] | None


def _is_ahead(at: datetime) -> datetime:
    if at <= clock.now():
        raise PydanticCustomError("expiry", "It should be in the future; a key that is not wanted any more is revoked")
    return at


Name = Annotated[wire.Line, Field(min_length=1)]
Expiry = Annotated[pagination.Moment, AfterValidator(_is_ahead)]
Templates = Annotated[wire.Many[wire.Id], Field(min_length=1, max_length=MOST_TEMPLATES)]


class _Scope(wire.StrictModel):
    """What a key may do, and how much of it."""

    rate_limit: Limit = None
    max_concurrent: Limit = None
    sessions_per_hour: Limit = None
    max_running: Limit = None
    tokens_per_day: Budget = None
    tokens_per_month: Budget = None
    turns_per_day: Budget = None
    turns_per_month: Budget = None
    read_only: bool = False
    templates: Templates | None = None
    expires_at: Expiry | None = None


class NewKey(_Scope):
    name: Name
    owner: wire.Id
    role: Role = "user"


class ChangedKey(_Scope):
    """What is not named stays; null takes a limit away."""

    name: Name = "a key"


class KeyRotation(wire.StrictModel):
    overlap_seconds: Annotated[int, pagination.Digits] = Field(
        0, ge=0, le=LONGEST_OVERLAP, description="Seconds for which the old secret is valid too"
    )


class KeyWithSecret(Key, frozen=True, kw_only=True):
    key: str
    """The secret, which is not shown again."""


class CountedKey(Key, frozen=True, kw_only=True):
    limits: dict[str, int | None]
    """Those that hold."""
    used: dict[str, int]
    """What counts against them now."""


NO_STORE: Final = {"cache-control": "no-store"}
LISTED: Final[dict[str, Any]] = {
    **dict.fromkeys(Key.__struct_fields__),
    "id": "key_0123456789abcdef0123456789abcdef",
    "name": "the website",
    "owner": "shop",
    "role": "user",
    "rate_limit": 120,
    "tokens_per_day": 200_000,
    "read_only": False,
    "templates": ["support"],
    "expires_at": "2026-12-31T00:00:00Z",
    "created_at": "2026-01-31T12:00:00Z",
    "last_used_at": "2026-01-31T13:20:00Z",
}
WITH_SECRET: Final = {**LISTED, "key": "lh_<43 characters>"}
COUNTED: Final[dict[str, Any]] = {
    **LISTED,
    "limits": {
        "rate_limit": 120,
        "max_concurrent": 100,
        "sessions_per_hour": 1000,
        "max_running": None,
        "tokens_per_month": None,
        "tokens_per_day": 200_000,
        "turns_per_month": None,
        "turns_per_day": None,
    },
    "used": {
        "rate_limit": 4,
        "max_concurrent": 1,
        "sessions_per_hour": 12,
        "max_running": 0,
        "tokens_per_month": 431_006,
        "tokens_per_day": 12_400,
        "turns_per_month": 210,
        "turns_per_day": 6,
    },
}

router = strict_router("Admin", auth.admin)
TheAuthenticator = Annotated[Authenticator, of_app("authenticator")]


@router.post(
    "/admin/keys",
    status_code=201,
    openapi_extra=wire.example(name="the website", owner="shop", role="user", rate_limit=120),
    responses={201: wire.answer("The key; its secret is not shown again.", WITH_SECRET)},
)
async def create_key(caller: auth.Admin, authenticator: TheAuthenticator, asked: NewKey) -> wire.Json[KeyWithSecret]:
    """Creates a key, which acts for its owner; limits that are not given come from the settings."""
    made, secret = await keys.create(authenticator.db, **asked.model_dump())
    log.info("api_key_created", key=made.id, owner=made.owner, role=made.role, by=caller.key)
    return wire.Json(_with_secret(made, secret), status_code=201, headers=NO_STORE)


@router.get("/admin/keys", responses={200: docs.listed("One page of keys.", COUNTED)})
async def list_keys(authenticator: TheAuthenticator, asked: pagination.PagedQuery) -> wire.Json[Page[CountedKey]]:
    """All keys, newest first, including revoked ones; `limit` (≤ 200), `before` (the `next` of the previous page).

    `limits` are those that hold; `used` is what counts against them now, in all processes. `last_used_at` is exact to
    about a minute.
    """
    found = await keys.listed(authenticator.db, before=asked.before, limit=asked.fetched)
    rows, following = asked.cut(found, pagination.by("created_at"))
    used = await authenticator.used_by(rows)
    counted = [_counted(authenticator, key, one) for key, one in zip(rows, used, strict=True)]
    return wire.Json(pagination.page(counted, following))


@router.patch(
    "/admin/keys/{key_id}",
    openapi_extra=wire.example(tokens_per_day=400_000),
    responses={200: wire.answer("The key as it is now.", LISTED)},
)
async def change_key(
    caller: auth.Admin, authenticator: TheAuthenticator, key_id: str, asked: ChangedKey
) -> wire.Json[Key]:
    """Changes name, limits, budgets, templates, `read_only` or expiry of a key; null takes a limit away. Sessions that
    wait for a budget which was raised go on."""
    changes = asked.model_dump(exclude_unset=True)
    if not changes:
        raise CallerError("Say what to change.")
    key = await keys.change(authenticator.db, key_id, changes)
    if key is None:
        raise wire.not_found("There is no such key, or it was revoked.", code="key_not_found")
    log.info("api_key_changed", key=key.id, owner=key.owner, by=caller.key, changed=sorted(changes))
    return wire.Json(key)


@router.post(
    "/admin/keys/{key_id}/rotate",
    responses={200: wire.answer("The new secret, which is not shown again.", WITH_SECRET)},
)
async def rotate_key(
    caller: auth.Admin, authenticator: TheAuthenticator, key_id: str, asked: Annotated[KeyRotation, Query()]
) -> wire.Json[KeyWithSecret]:
    """Gives a key a new secret. The old one stops to work at once, and browsers that it signed in are signed out; or it
    works for `overlap_seconds` more, and what was begun with it goes on to its end."""
    rotated = await authenticator.rotate(key_id, overlap=asked.overlap_seconds)
    if rotated is None:
        raise wire.not_found("There is no such key, or it was revoked.", code="key_not_found")
    key, secret = rotated
    log.info("api_key_rotated", key=key.id, owner=key.owner, by=caller.key, overlap=asked.overlap_seconds)
    return wire.Json(_with_secret(key, secret), headers=NO_STORE)


@router.delete("/admin/keys/{key_id}", status_code=204)
async def revoke_key(caller: auth.Admin, authenticator: TheAuthenticator, key_id: str) -> wire.NoContent:
    """Revokes a key immediately and permanently; its open streams end with an error."""
    if not await authenticator.revoke(key_id):
        raise wire.not_found("There is no such key.", code="key_not_found")
    log.info("api_key_revoked", key=key_id, by=caller.key)
    return wire.NoContent()


def _with_secret(key: Key, secret: str) -> KeyWithSecret:
    return KeyWithSecret(**msgspec.structs.asdict(key), key=secret)


def _counted(authenticator: Authenticator, key: Key, used: dict[str, int]) -> CountedKey:
    limits = {
        **msgspec.structs.asdict(authenticator.limits_of(key)),
        **{name: getattr(key, name) for name in budgets.NAMES},
    }
    last = authenticator.last_use_of(key)
    return CountedKey(**{**msgspec.structs.asdict(key), "last_used_at": last}, limits=limits, used=used)
