"""The catalog over HTTP: tools and templates published, shown, compared, activated, rolled back, retired."""

from copy import deepcopy
from functools import cache
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import Field, TypeAdapter

from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.catalog.diff import differences
from longhouse.catalog.service import Desk
from longhouse.catalog.validation import Admission
from longhouse.errors import CallerError
from longhouse.store.catalog.overlays import Overlays
from longhouse.store.catalog.publish import LAST, Published
from longhouse.store.catalog.repository import Named, Shelf, T, Version

Name = Annotated[str, Path(description="The name; it may hold dots", examples=["server.tool"])]


class Activation(wire.Strict):
    version: Annotated[int, Field(strict=True, ge=1, le=LAST)]


def routes(shelf: Shelf[T], admission: Admission, overlays: Overlays | None = None) -> APIRouter:
    """`overlays` are what operators have put over names of this shelf."""
    desk = Desk(shelf, admission, overlays)
    router = APIRouter(prefix=f"/admin/{shelf.kind}s", tags=["Admin"], dependencies=[Depends(auth.admin)])
    _add_publishing(router, desk)
    _add_reading(router, desk)
    _add_moving(router, desk)
    return router


@cache
def _schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    return adapter.json_schema()


def _add_publishing(router: APIRouter, desk: Desk[T]) -> None:
    kind = desk.kind

    def schema() -> dict[str, Any]:
        return deepcopy(_schema(desk.shelf.adapter))

    answers: dict[int | str, dict[str, Any]] = {
        201: docs.answer("A new version.", docs.placed(kind)),
        200: docs.answer("This content was there already, and keeps its version.", docs.placed(kind)),
        400: docs.error(
            "Something is wrong; the message names every field.",
            "Nothing is published. timeout: Input should be greater than 0.",
            param="timeout",
        ),
    }
    taken = docs.error(
        "The name belongs to somebody else.",
        "Nothing is published. name: a tool of this name comes with the program, and cannot be published by others.",
        code="name_taken",
        param="name",
    )
    answers[409] = taken

    @router.post(
        "",
        response_model=None,
        status_code=201,
        summary=f"Publish {kind}s",
        openapi_extra=docs.both(docs.ACTIVATE, docs.body(kind, schema(), or_many=True)),
        responses=answers,
    )
    async def publish(caller: auth.Admin, request: Request) -> Response:
        """Publishes the first or the next version of one descriptor, or of a list of them: all or none."""
        activate, sent = await _asked(request)
        published = await desk.publish(sent, by=caller.publisher, activate=activate)
        status = 201 if any(one.is_new for one in published) else 200
        placed = [_placed(one) for one in published]
        return wire.Json(_page(placed) if isinstance(sent, list) else placed[0], status_code=status)

    @router.put(
        "/{name}",
        response_model=None,
        status_code=201,
        summary=f"Publish the next version of a {kind}",
        openapi_extra=docs.both(docs.ACTIVATE, docs.body(kind, schema())),
        responses=answers,
    )
    async def put(caller: auth.Admin, name: Name, request: Request) -> Response:
        """Publishes the next version of a name that is there."""
        activate, sent = await _asked(request)
        published = await desk.next(name, sent, by=caller.publisher, activate=activate)
        return wire.Json(_placed(published), status_code=201 if published.is_new else 200)

    @router.patch(
        "/{name}",
        response_model=None,
        status_code=201,
        summary=f"Change some fields of a {kind}",
        openapi_extra=docs.both(docs.ACTIVATE, wire.described_as({"type": "object"}, docs.PATCHES[kind])),
        responses=answers,
    )
    async def patch(caller: auth.Admin, name: Name, request: Request) -> Response:
        """Publishes the active version, or the latest, with these fields changed: a JSON merge patch (RFC 7396)."""
        activate, sent = await _asked(request)
        published = await desk.change(name, sent, by=caller.publisher, activate=activate)
        return wire.Json(_placed(published), status_code=201 if published.is_new else 200)


def _add_reading(router: APIRouter, desk: Desk[T]) -> None:
    kind = desk.kind
    shown = docs.shown(kind)
    missing: dict[int | str, dict[str, Any]] = {
        404: docs.error("There is none.", str(desk.missing()), code=desk.missing().code)
    }

    @router.get(
        "",
        response_model=None,
        summary=f"List {kind}s",
        openapi_extra=docs.NAMES,
        responses={200: docs.answer("One page, by name.", docs.page(shown))},
    )
    async def list_names(request: Request) -> Response:
        """All names in alphabetical order, each with its active version, or its latest where none is active."""
        asked = pagination.Query(request, ("inactive", "limit", "before"))
        limit = asked.number("limit", default=50, least=1, most=pagination.MAX_PAGE)
        inactive = asked.choice("inactive", ("true", "false")) != "false"
        found = await desk.shelf.page(after=asked.id("before"), limit=limit + 1, inactive=inactive)
        decided = await desk.decided([one.name for one in found[:limit]])
        data = [{**_listed(kind, one), **decided.get(one.name, {})} for one in found[:limit]]
        return wire.Json(_page(data, found[limit - 1].name if len(found) > limit else None))

    @router.get(
        "/{name}@{version}",
        response_model=None,
        summary=f"Read one version of a {kind}",
        dependencies=[Depends(pagination.none)],
        responses={200: docs.answer("The version.", shown), **missing},
    )
    async def get_version(name: Name, version: str) -> Response:
        """One version, whether it is active or not."""
        return wire.Json(_shown(kind, await desk.version(name, _number(version, "version"))))

    @router.get(
        "/{name}",
        response_model=None,
        summary=f"Read a {kind}",
        dependencies=[Depends(pagination.none)],
        responses={200: docs.answer("Its active version.", shown), **missing},
    )
    async def get_name(name: Name) -> Response:
        """The active version, or the latest where none is active."""
        found = await desk.named(name)
        version = await desk.version(name, found.active or found.latest)
        decided = await desk.decided([name])
        return wire.Json({**_shown(kind, version), "latest": found.latest, **decided.get(name, {})})

    @router.get(
        "/{name}/versions",
        response_model=None,
        summary=f"List the versions of a {kind}",
        openapi_extra=pagination.described(*pagination.PAGED),
        responses={200: docs.answer("One page of versions.", docs.page(shown)), **missing},
    )
    async def list_versions(name: Name, request: Request) -> Response:
        """All versions, newest first."""
        asked = pagination.Query(request, ("limit", "before"))
        limit = asked.number("limit", default=50, least=1, most=pagination.MAX_PAGE)
        before = asked.text("before")
        newest = None if before is None else _number(before, "before")
        await desk.version(name, 1)
        found = await desk.shelf.versions(name, before=newest, limit=limit + 1)
        data = [_shown(kind, one) for one in found[:limit]]
        return wire.Json(_page(data, str(found[limit - 1].version) if len(found) > limit else None))

    @router.get(
        "/{name}/diff",
        response_model=None,
        summary=f"Compare two versions of a {kind}",
        openapi_extra=docs.COMPARED,
        responses={200: docs.answer("What changed.", _compared(docs.EXAMPLES[kind]["name"])), **missing},
    )
    async def compare(name: Name, request: Request) -> Response:
        """Every place in which two versions differ."""
        asked = pagination.Query(request, ("from", "to"))
        newer, older = asked.text("to"), asked.text("from")
        to = (await desk.named(name)).latest if newer is None else _number(newer, "to")
        since = max(1, to - 1) if older is None else _number(older, "from")
        before, after = await desk.version(name, since), await desk.version(name, to)
        changed = differences(before.descriptor, after.descriptor)
        found = [{"path": one.path, "from": one.before, "to": one.after} for one in changed]
        return wire.Json({"name": name, "from": since, "to": to, "differences": found})


def _add_moving(router: APIRouter, desk: Desk[T]) -> None:
    kind, bare = desk.kind, [Depends(pagination.none)]
    missing: dict[int | str, dict[str, Any]] = {
        404: docs.error("There is none.", str(desk.missing()), code=desk.missing().code)
    }

    @router.post(
        "/{name}/activate",
        response_model=None,
        summary=f"Activate a version of a {kind}",
        dependencies=bare,
        openapi_extra=wire.described(Activation, version=2),
        responses={200: docs.answer("It is active.", docs.placed(kind)), **missing},
    )
    async def activate(name: Name, request: Request) -> Response:
        """Makes a version active, of a retired name too; turns that run keep the one they began with."""
        asked = wire.parse(Activation, await wire.read_body(request))
        return wire.Json(await desk.activate(name, asked.version))

    @router.post(
        "/{name}/rollback",
        response_model=None,
        summary=f"Roll a {kind} back",
        dependencies=bare,
        responses={200: docs.answer("It is active again.", docs.placed(kind, 1)), **missing},
    )
    async def roll_back(name: Name, request: Request) -> Response:
        """Makes the version active that was so before; 409 where there is none."""
        await wire.refuse_body(request)
        return wire.Json(await desk.roll_back(name))

    @router.post(
        "/{name}/deactivate",
        response_model=None,
        summary=f"Deactivate a {kind}",
        dependencies=bare,
        responses={200: docs.answer("None is.", docs.placed(kind, is_active=False)), **missing},
    )
    async def deactivate(name: Name, request: Request) -> Response:
        """No version is active any more; a rollback brings the last one back."""
        await wire.refuse_body(request)
        return wire.Json(await desk.deactivate(name))

    @router.delete(
        "/{name}",
        response_model=None,
        status_code=204,
        summary=f"Retire a {kind}",
        dependencies=bare,
        responses={204: {"description": "It is retired."}, **missing},
    )
    async def retire(name: Name, request: Request) -> Response:
        """Takes a name out of lists and out of use; its versions are kept for the turns that began with them."""
        await wire.refuse_body(request)
        await desk.deactivate(name, retire=True)
        return Response(status_code=204)


async def _asked(request: Request) -> tuple[bool, Any]:
    """Is it to become active, and what was sent?"""
    activate = pagination.Query(request, ("activate",)).choice("activate", ("true", "false")) != "false"
    try:
        return activate, msgspec.json.decode(await wire.read_body(request))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise CallerError("The body is not valid JSON in UTF-8.") from None


def _number(text: str, param: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and 1 <= int(text) <= LAST):
        raise CallerError(f"{param} must be the number of a version.", param=param)
    return int(text)


def _placed(one: Published) -> dict[str, Any]:
    placed = {"name": one.name, "version": one.version, "is_active": one.is_active}
    return {**placed, "warnings": list(one.warnings)} if one.warnings else placed


def _shown(kind: str, one: Version) -> dict[str, Any]:
    added = {
        "version": one.version,
        "is_active": one.is_active,
        "digest": one.digest,
        "published_by": one.published_by,
        "published_at": one.published_at,
    }
    return {f"{kind}_id": one.name, **one.descriptor, **added}


def _listed(kind: str, one: Named) -> dict[str, Any]:
    added = {
        "version": one.active or one.latest,
        "is_active": one.active is not None,
        "latest": one.latest,
        "changed_at": one.changed_at,
    }
    return {f"{kind}_id": one.name, **one.descriptor, **added}


def _page(data: list[Any], following: str | None = None) -> dict[str, Any]:
    return {"object": "list", "data": data, "has_more": following is not None, "next": following}


def _compared(name: str) -> dict[str, Any]:
    changed = [{"path": "timeout", "from": 10.0, "to": 30.0}]
    return {"name": name, "from": 1, "to": 2, "differences": changed}
