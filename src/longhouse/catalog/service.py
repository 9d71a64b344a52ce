"""The catalog operations on tools or templates: publish, patch, activate, roll back, deactivate."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic

from longhouse.agents.naming import is_possible_name
from longhouse.catalog import security
from longhouse.catalog.validation import CatalogValidator
from longhouse.errors import CallerError
from longhouse.store.catalog.overlays import Overlays
from longhouse.store.catalog.publish import Published, retry_on_change
from longhouse.store.catalog.repository import CatalogEntry, T, Version, VersionRepository


class CatalogService(Generic[T]):
    """The operations on one kind of the catalog; the routes only translate."""

    def __init__(
        self, shelf: VersionRepository[T], admission: CatalogValidator, overlays: Overlays | None = None
    ) -> None:
        self.shelf: VersionRepository[T] = shelf
        self.kind = shelf.kind
        self._admission = admission
        self._overlays = overlays

    async def publish(
        self, sent: Any, *, by: str, activate: bool, seen: Mapping[str, int] | None = None
    ) -> list[Published]:
        return await self._admission.publish(self.shelf, sent, by=by, activate=activate, seen=seen)

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

    async def change(self, name: str, patch: Any, *, by: str, activate: bool) -> Published:
        """Publishes the active version, or the latest where none is active, with some fields changed."""

        async def attempt() -> Published:
            found = await self.named(name)
            seen = {name: found.active or found.latest}
            return await self.next(name, patched(found.descriptor, patch), by=by, activate=activate, seen=seen)

        return await retry_on_change(attempt)

    async def named(self, name: str) -> CatalogEntry:
        found = await self.shelf.named(name) if is_possible_name(name) else None
        if found is None:
            raise self.missing()
        return found

    async def decided(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The overlays of these names, where there are any, as they are shown beside a descriptor."""
        if self._overlays is None:
            return {}
        await self._overlays.refresh()
        laid = {name: security.shown(self._overlays.entry(name)) for name in names}
        return {name: {"security_overlay": one} for name, one in laid.items() if one}

    async def version(self, name: str, version: int) -> Version:
        found = await self.shelf.version(name, version) if is_possible_name(name) else None
        if found is None:
            raise self.missing()
        return found

    async def activate(self, name: str, version: int) -> dict[str, Any]:
        await self.version(name, version)
        await self.shelf.activate(name, version)
        return {"name": name, "version": version, "is_active": True}

    async def roll_back(self, name: str) -> dict[str, Any]:
        await self.named(name)
        version = await self.shelf.roll_back(name)
        if version is None:
            raise CallerError("No other version was active before this one.", status=409, code="no_way_back")
        return {"name": name, "version": version, "is_active": True}

    async def deactivate(self, name: str, *, retire: bool = False) -> dict[str, Any]:
        found = await self.named(name)
        if not await self.shelf.deactivate(name, retire=retire):
            raise self.missing()
        return {"name": name, "version": found.active or found.latest, "is_active": False}

    def missing(self) -> CallerError:
        message = f"There is no such {self.kind}, or no such version of it."
        return CallerError(message, status=404, code=f"{self.kind}_not_found")


def patched(descriptor: dict[str, Any], patch: Any) -> dict[str, Any]:
    """The descriptor to publish. It has an owner only if the patch names one: otherwise the owner stays."""
    if not isinstance(patch, dict):
        raise CallerError("A patch is an object: the fields to change, with null for those to leave out.")
    try:
        merged: dict[str, Any] = merge(descriptor, patch)
    except RecursionError:
        raise CallerError("The patch is nested too deep.") from None
    merged.pop("owner", None)
    return merged | ({"owner": patch["owner"]} if "owner" in patch else {})


def merge(target: Any, patch: Any) -> Any:
    """Applies a JSON merge patch: objects are merged, null removes a field, any other value replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for field, value in patch.items():
        if value is None:
            merged.pop(field, None)
        else:
            merged[field] = merge(merged.get(field), value)
    return merged
