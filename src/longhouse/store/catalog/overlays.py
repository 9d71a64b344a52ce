"""What operators have decided about single tools, beside the versions that describe them."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec

from longhouse.agents.tool_descriptor import SecurityOverlay
from longhouse.store.catalog.publish import LOCK, Outrun
from longhouse.store.database import Database

FRESH_FOR: Final = 0.5
"""Seconds for which is believed what was read; what we change ourselves holds at once."""

ALL: Final = "SELECT name, overlay, changed_by, changed_at FROM security_overlays"
SOME: Final = f"{ALL} WHERE name = ANY($1)"

# The index has risk and permission of each tool beside its words: what was indexed before is read again. `seen` is
# what the change was made from.
_FOLLOWED: Final = """, stale AS (
    UPDATE search_documents SET version = 0 WHERE kind = 'tool' AND name = $1 AND EXISTS (SELECT FROM said)
), moved AS (
    UPDATE catalog_generation SET generation = generation + 1 WHERE kind = 'tool' AND EXISTS (SELECT FROM said)
) SELECT name FROM said"""
_IS_SEEN: Final = "(SELECT overlay::text FROM security_overlays WHERE name = $1) IS NOT DISTINCT FROM $2::text"
LAY: Final = f"""
WITH said AS (
    INSERT INTO security_overlays (name, overlay, changed_by) SELECT $1, $3::json, $4 WHERE {_IS_SEEN}
    ON CONFLICT (name) DO UPDATE SET overlay = EXCLUDED.overlay, changed_by = EXCLUDED.changed_by, changed_at = now()
    RETURNING name
){_FOLLOWED}"""
LIFT: Final = f"""
WITH said AS (
    DELETE FROM security_overlays WHERE name = $1 AND {_IS_SEEN} RETURNING name
){_FOLLOWED}"""


@dataclass(frozen=True, slots=True)
class Overlaid:
    """An overlay, and who laid it when."""

    overlay: SecurityOverlay
    changed_by: str
    changed_at: datetime
    text: str
    """As it is stored."""


class Overlays:
    """All of them, as they were a moment ago: there are few, and every step asks for them."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self._known: Mapping[str, Overlaid] = {}
        self._until = 0.0
        self._reading = asyncio.Lock()

    @property
    def is_due(self) -> bool:
        """Is it time to read them again?"""
        return time.monotonic() >= self._until

    async def refresh(self) -> None:
        """Reads them again, if that is due."""
        if not self.is_due:
            return
        async with self._reading:
            if self.is_due:
                until = time.monotonic() + FRESH_FOR
                self._known = self._read(await self.db.rows(ALL))
                self._until = until

    def of(self, name: str) -> SecurityOverlay | None:
        """What was decided about this tool, as last read."""
        found = self._known.get(name)
        return found.overlay if found else None

    def laid(self, name: str) -> Overlaid | None:
        return self._known.get(name)

    def without_off(self, versions: Mapping[str, int]) -> dict[str, int]:
        """Name -> version of those that are not switched off."""
        off = {name for name, one in self._known.items() if not one.overlay.enabled}
        return {name: version for name, version in versions.items() if name not in off} if off else dict(versions)

    async def lay(self, name: str, overlay: SecurityOverlay, *, seen: Overlaid | None, by: str) -> None:
        """Lays it over a tool, in place of what was `seen`; one that says nothing is taken away."""
        before, text = seen.text if seen else None, msgspec.json.encode(spoken(overlay)).decode()
        if overlay == SecurityOverlay():
            done = seen is None or await self.db.alone(LOCK, LIFT, name, before)
        else:
            done = await self.db.alone(LOCK, LAY, name, before, text, by)
        self._until = 0.0
        if not done:
            raise Outrun

    def _read(self, rows: Sequence[asyncpg.Record]) -> dict[str, Overlaid]:
        """One that has not changed stays the same object: tools are kept that were made with it."""
        read = (_overlaid(row) if self._is_new(row) else self._known[row["name"]] for row in rows)
        return {row["name"]: one for row, one in zip(rows, read, strict=True)}

    def _is_new(self, row: asyncpg.Record) -> bool:
        known = self._known.get(row["name"])
        return known is None or (known.text, known.changed_at) != (row["overlay"], row["changed_at"])


async def some(db: Database, names: Iterable[str]) -> dict[str, SecurityOverlay]:
    """Those of these tools, as they are now."""
    return {row["name"]: _overlaid(row).overlay for row in await db.rows(SOME, list(names))}


def spoken(overlay: SecurityOverlay) -> dict[str, Any]:
    """What it says, without what it leaves as it is."""
    silent = SecurityOverlay()
    said = {one.name: getattr(overlay, one.name) for one in fields(overlay)}
    return {name: msgspec.to_builtins(value) for name, value in said.items() if value != getattr(silent, name)}


def _overlaid(row: asyncpg.Record) -> Overlaid:
    # What was once accepted stays readable, whatever a newer release would refuse.
    overlay = msgspec.convert(msgspec.json.decode(row["overlay"]), SecurityOverlay)
    return Overlaid(overlay, row["changed_by"], row["changed_at"], row["overlay"])
