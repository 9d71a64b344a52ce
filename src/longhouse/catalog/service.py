"""The catalog operations on tools or templates: publish, patch, activate, roll back, deactivate."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

from longhouse.agents.naming import is_possible_name
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.catalog import security
from longhouse.catalog.diff import merge
from longhouse.catalog.validation import CatalogValidator
from longhouse.errors import CallerError, UnknownShape
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import Published, retry_on_change
from longhouse.store.catalog.repository import CatalogEntry, Kind, Version, VersionRepository


class PlacedVersion(TypedDict):
    name: str
    version: int
    is_active: bool
    warnings: NotRequired[Sequence[str]]


class CatalogService:
    """The operations on one kind of the catalog; the routes and commands only translate."""

    def __init__(
        self,
        catalog: Catalog,
        kind: Kind,
        validator: CatalogValidator,
        reached: Callable[[], Awaitable[None]] | None = None,
        tool_of: Callable[[ToolDescriptor], Awaitable[Tool | None]] | None = None,
    ) -> None:
        self.kind = kind
        self._reached = reached
        """Waits until searches find what was changed: whoever is answered finds it at once."""
        self.repository: VersionRepository[Any] = catalog.tools if kind == "tool" else catalog.templates
        self._catalog = catalog
        self._validator = validator
        self._tool_of = tool_of or self._known_tool
        """A tool as its descriptor and its class say; by default only of classes that somebody has imported."""

    async def publish(
        self, sent: Any, *, by: str, activate: bool, seen: Mapping[str, int] | None = None
    ) -> list[Published]:
        published = await self._validator.publish(self.repository, sent, by=by, activate=activate, seen=seen)
        await self._is_found()
        return published

    async def next(
        self, name: str, sent: Any, *, by: str, activate: bool, seen: Mapping[str, int] | None = None
    ) -> Published:
        """Publishes the next version of an existing name."""
        await self.named(name)
        if isinstance(sent, dict):
            sent = {"name": name, **sent}
            if sent["name"] != name:
                raise CallerError(f"The name of this version must be {name}.", param="name")
        elif isinstance(sent, list):
            raise CallerError("Send one descriptor here, not a list.")
        [published] = await self.publish(sent, by=by, activate=activate, seen=seen)
        return published

    async def change(self, name: str, patch: dict[str, Any], *, by: str, activate: bool) -> Published:
        """Publishes the active version, or the latest where none is active, with some fields changed."""

        async def attempt() -> Published:
            found = await self.named(name)
            patched = merge(found.descriptor, patch)
            patched.pop("owner", None)  # without this field the owner stays
            patched |= {"owner": patch["owner"]} if "owner" in patch else {}
            seen = {name: found.active or found.latest}
            return await self.next(name, patched, by=by, activate=activate, seen=seen)

        return await retry_on_change(attempt)

    async def named(self, name: str) -> CatalogEntry:
        found = await self.repository.named(name) if is_possible_name(name) else None
        if found is None:
            raise self._missing(name)
        return found

    async def version(self, name: str, version: int | None = None) -> Version:
        """One version; without a number the active one, or the latest if none is active."""
        if version is None:
            entry = await self.named(name)
            version = entry.active or entry.latest
        found = await self.repository.version(name, version) if is_possible_name(name) else None
        if found is None:
            raise self._missing(name)
        return found

    async def held(self, found: Sequence[Version | CatalogEntry]) -> list[dict[str, Any]]:
        """What is shown beside each descriptor: how calls are handled, and the operator's overlay."""
        if self.kind != "tool":
            return [{} for _ in found]
        await self._catalog.overlays.refresh()
        return [await self._held(one) for one in found]

    async def _held(self, one: Version | CatalogEntry) -> dict[str, Any]:
        entry, tool = self._catalog.overlays.entry(one.name), await self._known(one)
        effective = security.effective(tool, one.descriptor, entry) if tool else None
        return {"effective": effective, **({"security_overlay": security.shown(entry)} if entry else {})}

    async def policy_of(self, name: str) -> security.PolicyOfTool:
        """What a tool says of its use, what an operator has put over it, and what holds."""
        version = await self.version(name)
        return await security.policy_of(self._catalog, version, await self._known(version))

    async def decide(self, name: str, change: Callable[[dict[str, Any]], Any], *, by: str) -> security.PolicyOfTool:
        """Replaces a tool's overlay by what `change` makes of the present one."""
        await security.decide(self._catalog, await self.version(name), change, by=by)
        return await self.policy_of(name)

    async def _known(self, one: Version | CatalogEntry) -> Tool | None:
        """The tool as its descriptor and its class say; None where one of them is not known here."""
        try:
            return await self._tool_of(self._catalog.tools.known(one.descriptor, 1))
        except UnknownShape:
            return None

    async def _known_tool(self, descriptor: ToolDescriptor) -> Tool | None:
        return descriptor.known_tool(self._validator.known)

    async def activate(self, name: str, version: int) -> PlacedVersion:
        await self.version(name, version)
        await self.repository.activate(name, version)
        await self._is_found()
        return {"name": name, "version": version, "is_active": True}

    async def roll_back(self, name: str) -> PlacedVersion:
        await self.named(name)
        version = await self.repository.roll_back(name)
        if version is None:
            raise CallerError("No other version was active before this one.", status=409, code="no_way_back")
        await self._is_found()
        return {"name": name, "version": version, "is_active": True}

    async def deactivate(self, name: str, *, retire: bool = False) -> PlacedVersion:
        found = await self.named(name)
        if not await self.repository.deactivate(name, retire=retire):
            raise self._missing(name)
        await self._is_found()
        return {"name": name, "version": found.active or found.latest, "is_active": False}

    async def _is_found(self) -> None:
        if self._reached:
            await self._reached()

    def _missing(self, name: str) -> CallerError:
        message = f"There is no {self.kind} {name[:100]!r}, or no such version of it."
        return CallerError(message, status=404, code=f"{self.kind}_not_found")
