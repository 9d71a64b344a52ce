"""Security overlays: decisions of operators about single tools, stored beside the tools' versions."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec

from longhouse.agents.tool_descriptor import SecurityOverlay
from longhouse.store.catalog.publish import LOCK, ConcurrentChange
from longhouse.store.database import Database

FRESH_FOR: Final = 0.5
"""Seconds for which overlays are cached; changes made by this process apply at once."""

ALL: Final = "SELECT name, overlay, changed_by, changed_at FROM security_overlays"
SOME: Final = f"{ALL} WHERE name = ANY(:names)"

# The search index stores the risk and the permissions of each tool: a changed tool is marked for indexing again.
# Optimistic locking: a change applies only if the stored overlay is still the one that it was made from (`seen`).
_FOLLOWED: Final = """, stale AS (
    UPDATE search_documents SET version = 0 WHERE kind = 'tool' AND name = :name AND EXISTS (SELECT FROM changed)
), moved AS (
    UPDATE catalog_generation SET generation = generation + 1 WHERE kind = 'tool' AND EXISTS (SELECT FROM changed)
) SELECT name FROM changed"""
_IS_SEEN: Final = "(SELECT overlay::text FROM security_overlays WHERE name = :name) IS NOT DISTINCT FROM :seen::text"
LAY: Final = f"""
WITH changed AS (
    INSERT INTO security_overlays (name, overlay, changed_by) SELECT :name, :overlay::json, :by WHERE {_IS_SEEN}
    ON CONFLICT (name) DO UPDATE SET overlay = EXCLUDED.overlay, changed_by = EXCLUDED.changed_by, changed_at = now()
    RETURNING name
){_FOLLOWED}"""
LIFT: Final = f"""
WITH changed AS (
    DELETE FROM security_overlays WHERE name = :name AND {_IS_SEEN} RETURNING name
){_FOLLOWED}"""


class Overlaid(msgspec.Struct, frozen=True):
    """A security overlay, with who changed it and when."""

    overlay: SecurityOverlay
    changed_by: str
    changed_at: datetime
    text: str
    """The stored JSON."""


class Overlays:
    """A cache of all security overlays: they are few, and every step needs them."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._known: Mapping[str, Overlaid] = {}
        self._until = 0.0
        self._reading = asyncio.Lock()
        self.changes = 0
        """How often other overlays were read than before."""

    @property
    def is_due(self) -> bool:
        """Has the cache expired?"""
        return time.monotonic() >= self._until

    async def refresh(self) -> None:
        """Reads all overlays again if the cache has expired."""
        if not self.is_due:
            return
        async with self._reading:
            if self.is_due:
                until = time.monotonic() + FRESH_FOR
                before, self._known = self._known, self._read(await self.db.rows(ALL))
                self.changes += before != self._known
                self._until = until

    def of(self, name: str) -> SecurityOverlay | None:
        """The cached overlay of this tool."""
        found = self._known.get(name)
        return found.overlay if found else None

    def entry(self, name: str) -> Overlaid | None:
        return self._known.get(name)

    def without_off(self, versions: Mapping[str, int]) -> dict[str, int]:
        """Name -> version, without the tools that are switched off."""
        off = {name for name, one in self._known.items() if not one.overlay.enabled}
        return {name: version for name, version in versions.items() if name not in off} if off else dict(versions)

    async def set(self, name: str, overlay: SecurityOverlay, *, seen: Overlaid | None, by: str) -> None:
        """Sets a tool's overlay in place of the one that was `seen`; an overlay without content is deleted."""
        before, text = seen.text if seen else None, msgspec.json.encode(set_fields(overlay)).decode()
        if overlay == SecurityOverlay():
            done = seen is None or await self.db.alone(LOCK, LIFT, name=name, seen=before)
        else:
            done = await self.db.alone(LOCK, LAY, name=name, seen=before, overlay=text, by=by)
        self._until = 0.0
        if not done:
            raise ConcurrentChange

    def _read(self, rows: Sequence[asyncpg.Record]) -> dict[str, Overlaid]:
        """An overlay that has not changed stays the same object: cached tools depend on its identity."""
        read = {row["name"]: _overlaid(row) for row in rows}
        return {name: known if one == (known := self._known.get(name)) else one for name, one in read.items()}


async def some(db: Database, names: Iterable[str]) -> dict[str, SecurityOverlay]:
    """The overlays of these tools, read from the database."""
    return {row["name"]: _overlaid(row).overlay for row in await db.rows(SOME, names=list(names))}


def set_fields(overlay: SecurityOverlay) -> dict[str, Any]:
    """The fields that the overlay sets, without those left at their defaults."""
    default = SecurityOverlay()
    values = {one.name: getattr(overlay, one.name) for one in fields(overlay)}
    return {name: msgspec.to_builtins(value) for name, value in values.items() if value != getattr(default, name)}


def _overlaid(row: asyncpg.Record) -> Overlaid:
    # Converted without validators: an overlay that was accepted once stays readable if a newer release would refuse it.
    overlay = msgspec.convert(msgspec.json.decode(row["overlay"]), SecurityOverlay)
    return Overlaid(overlay, row["changed_by"], row["changed_at"], row["overlay"])
