"""Catalog routes: publish, show, compare, activate, roll back and retire tools and templates."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Response
from pydantic import BeforeValidator, Field

from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.json_route import strict_router
from longhouse.api.pagination import Omittable, YesOrNo
from longhouse.catalog.diff import differences
from longhouse.catalog.service import CatalogService
from longhouse.catalog.validation import CatalogValidator
from longhouse.store.catalog.overlays import Overlays
from longhouse.store.catalog.publish import LAST, Published
from longhouse.store.catalog.repository import CatalogEntry, T, Version, VersionRepository

Name = Annotated[str, Path(description="The name; it may hold dots", examples=["server.tool"])]
Number = Annotated[int, Field(ge=1, le=LAST), BeforeValidator(pagination.digits)]
"""The number of a version."""
Activate = Annotated[YesOrNo, Query(description="Does it become active?")]
Fields = Annotated[dict[str, Any], Body()]


class Activation(wire.Strict):
    version: Annotated[int, Field(strict=True, ge=1, le=LAST)]


class NamesQuery(pagination.Limited):
    inactive: YesOrNo = Field("true", description="Also names without an active version")
    before: Omittable[wire.Id] = Field(None, description="The `next` of the page before")


class Versions(pagination.Limited):
    before: Omittable[Number] = Field(None, description="The `next` of the page before")


class Compared(wire.Strict):
    older: Omittable[Number] = Field(None, alias="from", description="The older one; by default the one before `to`")
    newer: Omittable[Number] = Field(None, alias="to", description="The newer one; by default the latest")


def routes(shelf: VersionRepository[T], admission: CatalogValidator, overlays: Overlays | None = None) -> APIRouter:
    """The routes of one repository; `overlays` are the security policies that operators set for its names."""
    desk = CatalogService(shelf, admission, overlays)
    router = strict_router("Admin", auth.admin, prefix=f"/admin/{shelf.kind}s")
    _add_publishing(router, desk)
    _add_lists(router, desk)
    _add_reading(router, desk)
    _add_moving(router, desk)
    return router


def _add_publishing(router: APIRouter, desk: CatalogService[T]) -> None:
    kind = desk.kind
    one, many = wire.Documented(docs.ONE[kind]), wire.Documented(docs.ONE_OR_MANY[kind])
    answers, example = docs.published(kind), wire.example(**docs.EXAMPLES[kind])

    @router.post("", status_code=201, summary=f"Publish {kind}s", openapi_extra=example, responses=answers)
    async def publish(caller: auth.Admin, sent: Annotated[Any, Body(), many], activate: Activate = "true") -> Response:
        """Publishes the first or the next version of one descriptor, or of a list of them: all or none."""
        published = await desk.publish(sent, by=caller.publisher, activate=activate == "true")
        placed = [_placed(one) for one in published]
        return wire.Json(pagination.page(placed) if isinstance(sent, list) else placed[0], _status(*published))

    @router.put(
        "/{name}",
        status_code=201,
        summary=f"Publish the next version of a {kind}",
        openapi_extra=example,
        responses=answers,
    )
    async def put(
        caller: auth.Admin, name: Name, sent: Annotated[Any, Body(), one], activate: Activate = "true"
    ) -> Response:
        """Publishes the next version of an existing name."""
        published = await desk.next(name, sent, by=caller.publisher, activate=activate == "true")
        return wire.Json(_placed(published), _status(published))

    @router.patch(
        "/{name}",
        status_code=201,
        summary=f"Change some fields of a {kind}",
        openapi_extra=wire.example(**docs.PATCHES[kind]),
        responses=answers,
    )
    async def patch(caller: auth.Admin, name: Name, sent: Fields, activate: Activate = "true") -> Response:
        """Publishes the active (or latest) version with these fields changed: a JSON merge patch (RFC 7396)."""
        published = await desk.change(name, sent, by=caller.publisher, activate=activate == "true")
        return wire.Json(_placed(published), _status(published))


def _add_lists(router: APIRouter, desk: CatalogService[T]) -> None:
    kind, shown = desk.kind, docs.shown(desk.kind)

    @router.get("", summary=f"List {kind}s", responses={200: docs.listed("One page, by name.", shown)})
    async def list_names(asked: Annotated[NamesQuery, Query()]) -> Response:
        """All names in alphabetical order, each with its active version, or its latest if none is active."""
        found = await desk.shelf.page(after=asked.before, limit=asked.fetched, inactive=asked.inactive == "true")
        names, following = asked.cut(found, lambda one: one.name)
        decided = await desk.decided([one.name for one in names])
        data = [{**_listed(kind, one), **decided.get(one.name, {})} for one in names]
        return wire.Json(pagination.page(data, following))

    @router.get(
        "/{name}/versions",
        summary=f"List the versions of a {kind}",
        responses={200: docs.listed("One page of versions.", shown), **docs.missing(kind)},
    )
    async def list_versions(name: Name, asked: Annotated[Versions, Query()]) -> Response:
        """All versions, newest first."""
        await desk.version(name, 1)
        found = await desk.shelf.versions(name, before=asked.before, limit=asked.fetched)
        versions, following = asked.cut(found, lambda one: str(one.version))
        return wire.Json(pagination.page([_shown(kind, one) for one in versions], following))


def _add_reading(router: APIRouter, desk: CatalogService[T]) -> None:
    kind, shown, missing = desk.kind, docs.shown(desk.kind), docs.missing(desk.kind)

    @router.get(
        "/{name}@{version}",
        summary=f"Read one version of a {kind}",
        responses={200: wire.answer("The version.", shown), **missing},
    )
    async def get_version(name: Name, version: Number) -> Response:
        """One version, whether it is active or not."""
        return wire.Json(_shown(kind, await desk.version(name, version)))

    @router.get(
        "/{name}",
        summary=f"Read a {kind}",
        responses={200: wire.answer("Its active version.", shown), **missing},
    )
    async def get_name(name: Name) -> Response:
        """The active version, or the latest if none is active."""
        found = await desk.named(name)
        version = await desk.version(name, found.active or found.latest)
        decided = await desk.decided([name])
        return wire.Json({**_shown(kind, version), "latest": found.latest, **decided.get(name, {})})

    @router.get(
        "/{name}/diff",
        summary=f"Compare two versions of a {kind}",
        responses={200: wire.answer("What changed.", docs.compared(kind)), **missing},
    )
    async def compare(name: Name, asked: Annotated[Compared, Query()]) -> Response:
        """All differences between two versions."""
        to = asked.newer or (await desk.named(name)).latest
        since = asked.older or max(1, to - 1)
        before, after = await desk.version(name, since), await desk.version(name, to)
        changed = differences(before.descriptor, after.descriptor)
        found = [{"path": one.path, "from": one.before, "to": one.after} for one in changed]
        return wire.Json({"name": name, "from": since, "to": to, "differences": found})


def _add_moving(router: APIRouter, desk: CatalogService[T]) -> None:
    kind, missing = desk.kind, docs.missing(desk.kind)

    @router.post(
        "/{name}/activate",
        summary=f"Activate a version of a {kind}",
        openapi_extra=wire.example(version=2),
        responses={200: wire.answer("It is active.", docs.placed(kind)), **missing},
    )
    async def activate(name: Name, asked: Activation) -> Response:
        """Makes a version active, also of a retired name; running turns keep the version they began with."""
        return wire.Json(await desk.activate(name, asked.version))

    @router.post(
        "/{name}/rollback",
        summary=f"Roll a {kind} back",
        responses={200: wire.answer("It is active again.", docs.placed(kind, 1)), **missing},
    )
    async def roll_back(name: Name) -> Response:
        """Makes the previously active version active again; 409 if there is none."""
        return wire.Json(await desk.roll_back(name))

    @router.post(
        "/{name}/deactivate",
        summary=f"Deactivate a {kind}",
        responses={200: wire.answer("None is.", docs.placed(kind, is_active=False)), **missing},
    )
    async def deactivate(name: Name) -> Response:
        """Makes no version active; a rollback restores the last one."""
        return wire.Json(await desk.deactivate(name))

    @router.delete(
        "/{name}",
        status_code=204,
        summary=f"Retire a {kind}",
        responses={204: {"description": "It is retired."}, **missing},
    )
    async def retire(name: Name) -> Response:
        """Removes a name from lists and from use; its versions are kept for turns that began with them."""
        await desk.deactivate(name, retire=True)
        return Response(status_code=204)


def _status(*published: Published) -> int:
    return 201 if any(one.is_new for one in published) else 200


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


def _listed(kind: str, one: CatalogEntry) -> dict[str, Any]:
    added = {
        "version": one.active or one.latest,
        "is_active": one.active is not None,
        "latest": one.latest,
        "changed_at": one.changed_at,
    }
    return {f"{kind}_id": one.name, **one.descriptor, **added}
