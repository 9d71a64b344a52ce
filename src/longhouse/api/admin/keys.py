"""API keys as resources: made once, listed without their secret, revoked at once."""

from typing import Annotated, Any, Final

import msgspec
import structlog
from fastapi import APIRouter, Depends, Request, Response
from pydantic import AfterValidator, Field, StrictStr
from pydantic_core import PydanticCustomError

from longhouse.api import auth, pagination, wire
from longhouse.api.auth import Door
from longhouse.store import keys
from longhouse.store.keys import Key, Role

log = structlog.get_logger()

MAX_PAGE: Final = 200
MOST: Final = 1_000_000

Limit = Annotated[int, Field(strict=True, ge=1, le=MOST)]


def _is_printable(name: str) -> str:
    if not name.isprintable():
        raise PydanticCustomError("name", "It should be one line of printable characters")
    return name


def _is_id(owner: str) -> str:
    if not wire.ID.fullmatch(owner):
        raise PydanticCustomError("owner", "It should be 1 to 128 of the characters A-Z a-z 0-9 . _ : @ -")
    return owner


class NewKey(wire.Strict):
    name: Annotated[StrictStr, Field(min_length=1, max_length=200), AfterValidator(_is_printable)]
    owner: Annotated[StrictStr, AfterValidator(_is_id)]
    role: Role = "user"
    rate_limit: Limit | None = None
    max_concurrent: Limit | None = None
    sessions_per_hour: Limit | None = None


LISTED: Final[dict[str, Any]] = {
    "id": "key_0123456789abcdef0123456789abcdef",
    "name": "the website",
    "owner": "shop",
    "role": "user",
    "rate_limit": 120,
    "max_concurrent": None,
    "sessions_per_hour": None,
    "created_at": "2026-01-31T12:00:00Z",
    "revoked_at": None,
}
CREATED: Final = {**LISTED, "key": "lh_<43 characters>"}
PAGE: Final = {"object": "list", "data": [LISTED], "has_more": False, "next": None}


def _example(description: str, value: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"example": value}}}


def routes(door: Door) -> APIRouter:
    router = APIRouter(tags=["Admin"], dependencies=[Depends(auth.admin)])
    bare = [Depends(pagination.none)]

    @router.post(
        "/admin/keys",
        response_model=None,
        status_code=201,
        dependencies=bare,
        openapi_extra=wire.described(NewKey, name="the website", owner="shop", role="user", rate_limit=120),
        responses={201: _example("The key; its secret is not shown again.", CREATED)},
    )
    async def create_key(caller: auth.Admin, request: Request) -> Response:
        """Makes a key. Whoever has it acts for its owner; limits that are not given are those of the settings."""
        asked = wire.parse(NewKey, await wire.read_body(request))
        made, secret = await keys.create(door.db, **asked.model_dump())
        log.info("a key was made", key=made.id, owner=made.owner, role=made.role, by=caller.key)
        return wire.Json({**_shown(made), "key": secret}, status_code=201, headers={"cache-control": "no-store"})

    @router.get(
        "/admin/keys",
        response_model=None,
        openapi_extra=pagination.described(*pagination.PAGED),
        responses={200: _example("One page of keys.", PAGE)},
    )
    async def list_keys(request: Request) -> Response:
        """All keys, newest first, revoked ones too; `limit` (≤ 200), `before` (the `next` of the page before)."""
        asked = pagination.Query(request, ("limit", "before"))
        limit = asked.number("limit", default=50, least=1, most=MAX_PAGE)
        found = await keys.listed(door.db, before=asked.cursor("before"), limit=limit + 1)
        page, has_more = found[:limit], len(found) > limit
        following = pagination.cursor_of(page[-1]) if has_more else None
        data = [_shown(key) for key in page]
        return wire.Json({"object": "list", "data": data, "has_more": has_more, "next": following})

    @router.delete("/admin/keys/{key_id}", response_model=None, status_code=204, dependencies=bare)
    async def revoke_key(caller: auth.Admin, key_id: str, request: Request) -> Response:
        """Revokes a key at once and for good; streams that it opened end with an error."""
        await wire.refuse_body(request)
        if not await door.revoke(key_id):
            raise wire.not_found("There is no such key.", code="key_not_found")
        log.info("a key was revoked", key=key_id, by=caller.key)
        return Response(status_code=204)

    return router


def _shown(key: Key) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(key)
    return shown
