"""Catalog routes: publish, show, compare, activate, roll back and retire tools and templates."""

from typing import Annotated, Any, Final, TypedDict

from fastapi import APIRouter, Body, Path, Query
from pydantic import Field

from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.pagination import Omittable, Page, YesOrNo
from longhouse.catalog.diff import differences
from longhouse.catalog.service import CatalogService, PlacedVersion
from longhouse.store.catalog.publish import LAST, Published
from longhouse.store.catalog.repository import CatalogEntry, Version

Name = Annotated[str, Path(description="The name; it may hold dots", examples=["server.tool"])]
VersionNumber = Annotated[int, Field(ge=1, le=LAST)]
Number = Annotated[int, Field(ge=1, le=LAST), pagination.Digits]
"""That of a query."""
Activate = Annotated[YesOrNo, Query(description="Does it become active?")]
Fields = Annotated[dict[str, Any], Body()]


ShownDifference = TypedDict("ShownDifference", {"path": str, "from": Any, "to": Any})
ComparedVersions = TypedDict(
    "ComparedVersions", {"name": str, "from": int, "to": int, "differences": list[ShownDifference]}
)


class Activation(wire.StrictModel):
    version: VersionNumber


class NamesQuery(pagination.Limited):
    inactive: YesOrNo = Field("true", description="Also names without an active version")
    before: Omittable[wire.Id] = Field(None, description="The `next` of the page before")


class Versions(pagination.Limited):
    before: Omittable[Number] = Field(None, description="The `next` of the page before")


class Compared(wire.StrictModel):
    older: Omittable[Number] = Field(None, alias="from", description="The older one; by default the one before `to`")
    newer: Omittable[Number] = Field(None, alias="to", description="The newer one; by default the latest")


def _routes(kind: str) -> APIRouter:
    """The routes of tools, or of templates."""
    router = strict_router("Admin", auth.admin, prefix=f"/admin/{kind}s")
    _add_publishing(router, kind)
    _add_reading(router, kind)
    _add_activating(router, kind)
    return router


def _add_publishing(router: APIRouter, kind: str) -> None:
    Service = Annotated[CatalogService, of_app(f"{kind}s")]  # noqa: N806
    one, many = wire.Documented(docs.ONE[kind], "name"), wire.Documented(docs.ONE_OR_MANY[kind])
    patch_example = {**docs.publishing(kind), "openapi_extra": wire.example(**docs.PATCHES[kind])}

    @router.post("", summary=f"Publish {kind}s", **docs.publishing(kind))
    async def publish(
        service: Service, caller: auth.Admin, sent: Annotated[Any, Body(), many], activate: Activate = "true"
    ) -> wire.Json[PlacedVersion | Page[PlacedVersion]]:
        """Publishes the first or the next version of one descriptor, or of a list of them: all or none."""
        published = await service.publish(sent, by=caller.publisher, activate=activate == "true")
        if isinstance(sent, list):
            return wire.Json(pagination.page([_placed(one) for one in published]), _status(*published))
        return _published(published[0])

    @router.put("/{name}", summary=f"Publish the next version of a {kind}", **docs.publishing(kind))
    async def put(
        service: Service, caller: auth.Admin, name: Name, sent: Annotated[Any, Body(), one], activate: Activate = "true"
    ) -> wire.Json[PlacedVersion]:
        """Publishes the next version of an existing name."""
        return _published(await service.next(name, sent, by=caller.publisher, activate=activate == "true"))

    @router.patch("/{name}", summary=f"Change some fields of a {kind}", **patch_example)
    async def patch(
        service: Service, caller: auth.Admin, name: Name, sent: Fields, activate: Activate = "true"
    ) -> wire.Json[PlacedVersion]:
        """Publishes the active (or latest) version with these fields changed: a JSON merge patch (RFC 7396)."""
        return _published(await service.change(name, sent, by=caller.publisher, activate=activate == "true"))


def _add_reading(router: APIRouter, kind: str) -> None:
    Service = Annotated[CatalogService, of_app(f"{kind}s")]  # noqa: N806
    shown, one_type, page = docs.shown(kind), docs.SHOWN[kind], docs.PAGES[kind]

    @router.get("", summary=f"List {kind}s", responses={200: docs.listed("One page, by name.", shown, page)})
    async def list_names(service: Service, asked: Annotated[NamesQuery, Query()]) -> wire.Json[Page[Any]]:
        """All names in alphabetical order, each with its active version, or its latest if none is active."""
        found = await service.repository.page(
            after=asked.before, limit=asked.fetched, inactive=asked.inactive == "true"
        )
        names, following = asked.cut(found, lambda one: one.name)
        held = await service.held(names)
        data = [{**_listed(kind, one), **more} for one, more in zip(names, held, strict=True)]
        return wire.Json(pagination.page(data, following))

    @router.get(
        "/{name}/versions",
        **docs.named(kind, "List the versions of a {}", "One page.", pagination.page([shown]), page),
    )
    async def list_versions(service: Service, name: Name, asked: Annotated[Versions, Query()]) -> wire.Json[Page[Any]]:
        """All versions, newest first."""
        await service.version(name, 1)
        found = await service.repository.versions(name, before=asked.before, limit=asked.fetched)
        versions, following = asked.cut(found, lambda one: str(one.version))
        return wire.Json(pagination.page([_shown(kind, one) for one in versions], following))

    @router.get("/{name}@{version}", **docs.named(kind, "Read one version of a {}", "The version.", shown, one_type))
    async def get_version(service: Service, name: Name, version: Number) -> wire.Json[Any]:
        """One version, whether it is active or not."""
        found = await service.version(name, version)
        [held] = await service.held([found])
        return wire.Json({**_shown(kind, found), **held})

    @router.get("/{name}", **docs.named(kind, "Read a {}", "Its active version.", shown, one_type))
    async def get_name(service: Service, name: Name) -> wire.Json[Any]:
        """The active version, or the latest if none is active."""
        found = await service.named(name)
        version = await service.version(name, found.active or found.latest)
        [held] = await service.held([version])
        return wire.Json({**_shown(kind, version), "latest": found.latest, **held})

    @router.get(
        "/{name}/diff", **docs.named(kind, "Compare two versions of a {}", "What changed.", docs.compared(kind))
    )
    async def compare(service: Service, name: Name, asked: Annotated[Compared, Query()]) -> wire.Json[ComparedVersions]:
        """All differences between two versions."""
        to = asked.newer or (await service.named(name)).latest
        since = asked.older or max(1, to - 1)
        before, after = await service.version(name, since), await service.version(name, to)
        changed = differences(before.descriptor, after.descriptor)
        found: list[ShownDifference] = [{"path": one.path, "from": one.before, "to": one.after} for one in changed]
        return wire.Json({"name": name, "from": since, "to": to, "differences": found})


def _add_activating(router: APIRouter, kind: str) -> None:
    Service = Annotated[CatalogService, of_app(f"{kind}s")]  # noqa: N806
    active = docs.placed(kind)
    again, inactive = {**active, "version": 1}, {**active, "is_active": False}

    @router.post(
        "/{name}/activate",
        openapi_extra=wire.example(version=2),
        **docs.named(kind, "Activate a version of a {}", "It is active.", active),
    )
    async def activate(service: Service, name: Name, asked: Activation) -> wire.Json[PlacedVersion]:
        """Makes a version active, also of a retired name; running turns keep the version they began with."""
        return wire.Json(await service.activate(name, asked.version))

    @router.post(
        "/{name}/rollback",
        **docs.named(kind, "Roll a {} back", "It is active again.", again, errors=refuses(409)),
    )
    async def roll_back(service: Service, name: Name) -> wire.Json[PlacedVersion]:
        """Makes the previously active version active again; 409 if there is none."""
        return wire.Json(await service.roll_back(name))

    @router.post("/{name}/deactivate", **docs.named(kind, "Deactivate a {}", "None is.", inactive))
    async def deactivate(service: Service, name: Name) -> wire.Json[PlacedVersion]:
        """Makes no version active; a rollback restores the last one."""
        return wire.Json(await service.deactivate(name))

    @router.delete("/{name}", **docs.named(kind, "Retire a {}", "It is retired."))
    async def retire(service: Service, name: Name) -> wire.NoContent:
        """Removes a name from lists and from use; its versions are kept for turns that began with them."""
        await service.deactivate(name, retire=True)
        return wire.NoContent()


def _status(*published: Published) -> int:
    """201 if there is a new version, otherwise 200."""
    return 201 if any(one.is_new for one in published) else 200


def _published(one: Published) -> wire.Json[PlacedVersion]:
    return wire.Json(_placed(one), _status(one))


def _placed(one: Published) -> PlacedVersion:
    placed: PlacedVersion = {"name": one.name, "version": one.version, "is_active": one.is_active}
    return {**placed, "warnings": one.warnings} if one.warnings else placed


def _shown(kind: str, one: Version) -> dict[str, Any]:
    added = {name: getattr(one, name) for name in ("version", "is_active", "digest", "published_by", "published_at")}
    return {f"{kind}_id": one.name, **one.descriptor, **added}


def _listed(kind: str, one: CatalogEntry) -> dict[str, Any]:
    added = {"version": one.active or one.latest, "is_active": one.active is not None, "latest": one.latest}
    return {f"{kind}_id": one.name, **one.descriptor, **added, "changed_at": one.changed_at}


TOOLS: Final = _routes("tool")
TEMPLATES: Final = _routes("template")
"""Built once: they look up the service of the application that serves them."""
