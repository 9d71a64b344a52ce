"""Repository of the versions of tools or templates: versions are added, never edited; one of a name may be active."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Generic, Literal, TypeVar

import asyncpg
import msgspec
from pydantic import TypeAdapter

from longhouse.agents.adapters import adapter_of, written
from longhouse.agents.naming import key
from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.errors import UnknownShape
from longhouse.store.catalog.publish import ANY, LOCK, PUBLISH, ConcurrentChange, Done, Published, PublishTerms
from longhouse.store.database import Database, Executor, Transaction

Kind = Literal["tool", "template"]
T = TypeVar("T", Template, ToolDescriptor)

ADDED: Final = {"version", "owner"}
"""Fields that the catalog sets, not the publisher."""
MAX_CACHED: Final = 4096
"""Versions that a process caches; a version never changes, so a cached one does not expire."""


class CatalogEntry(msgspec.Struct, frozen=True):
    """A name of the catalog with its active and latest version, for lists."""

    name: str
    owner: str | None
    active: int | None
    latest: int
    changed_at: datetime
    descriptor: dict[str, Any]
    """The descriptor of the active version, or else of the latest; with the owner of the name."""


class Alike(msgspec.Struct, frozen=True):
    """A name that is equal to another one, or differs from it in case alone."""

    name: str
    owner: str | None
    is_by: bool
    """Has the given publisher published any of its versions?"""


class Version(msgspec.Struct, frozen=True):
    name: str
    version: int
    is_active: bool
    digest: str
    published_by: str
    published_at: datetime
    descriptor: dict[str, Any]


class LastVersion(msgspec.Struct, frozen=True):
    name: str
    version: int
    digest: str
    published_by: str
    owner: str | None
    """The present owner of the name."""
    is_active: bool


NEVER: Final = LastVersion("", 0, "", "", None, is_active=False)
"""Stands for a name that was not published."""

_MOVED: Final = """, moved AS (
    UPDATE catalog_generation SET generation = generation + 1 WHERE kind = :kind AND EXISTS (SELECT FROM done)
) SELECT active FROM done"""

ACTIVATE: Final = f"""
WITH done AS (
    UPDATE catalog_names SET
        before = CASE WHEN active IS NULL OR active = :version THEN before ELSE before || active END,
        active = :version, retired_at = NULL, changed_at = now()
    WHERE kind = :kind AND name = :name
      AND EXISTS (SELECT FROM catalog_versions WHERE kind = :kind AND name = :name AND version = :version)
    RETURNING active
){_MOVED}"""

WAY_BACK: Final = """
    SELECT cardinality(before) FROM catalog_names WHERE kind = :kind AND name = :name AND retired_at IS NULL
"""

# Conditional on the length of the history of active versions: a retry, or two calls at once, roll back one step only.
ROLL_BACK: Final = f"""
WITH done AS (
    UPDATE catalog_names SET active = before[cardinality(before)], before = before[:cardinality(before) - 1],
                             changed_at = now()
    WHERE kind = :kind AND name = :name AND cardinality(before) = :steps AND retired_at IS NULL
    RETURNING active
){_MOVED}"""

# The active version is added to the history of active versions, so that a rollback restores it.
DEACTIVATE: Final = f"""
WITH done AS (
    UPDATE catalog_names SET before = CASE WHEN active IS NULL THEN before ELSE before || active END, active = NULL,
                             retired_at = CASE WHEN :retire THEN now() ELSE retired_at END, changed_at = now()
    WHERE kind = :kind AND name = :name AND retired_at IS NULL
    RETURNING name, active
){_MOVED.replace("active FROM", "name FROM")}"""

ACTIVE: Final = """
    SELECT active FROM catalog_names
    WHERE kind = :kind AND name = :name AND (:owner::text IS NULL OR owner IS NULL OR owner = :owner)
"""

SEVERAL: Final = """
    SELECT v.name, v.version, v.descriptor
    FROM unnest(:names::text[], :versions::int[]) WITH ORDINALITY AS asked (name, version, nth)
    JOIN catalog_versions v ON v.kind = :kind AND v.name = asked.name AND v.version = asked.version
    ORDER BY asked.nth
"""

VERSIONS: Final = """
    SELECT v.name, v.version, n.active IS NOT DISTINCT FROM v.version AS is_active, v.digest, v.published_by,
           v.published_at, v.descriptor, n.owner
    FROM catalog_versions v JOIN catalog_names n ON n.kind = v.kind AND n.name = v.name
    WHERE v.kind = :kind AND v.name = :name AND (:before::bigint IS NULL OR v.version < :before)
    ORDER BY v.version DESC LIMIT :limit
"""

# Selects the names first, then the versions of each: in a plain join, the planner might read all versions.
NAMED: Final = """
    SELECT n.name, n.owner, n.active, latest.version AS latest, n.changed_at, v.descriptor
    FROM (SELECT * FROM catalog_names WHERE kind = :kind AND retired_at IS NULL AND {condition}) n
    CROSS JOIN LATERAL (
        SELECT max(version) AS version FROM catalog_versions WHERE kind = n.kind AND name = n.name
    ) latest
    CROSS JOIN LATERAL (
        SELECT descriptor FROM catalog_versions
        WHERE kind = n.kind AND name = n.name AND version = COALESCE(n.active, latest.version) LIMIT 1
    ) v
    ORDER BY n.name
"""
# Right after many were published there are no statistics yet, and the planner would sort all names for one page.
IN_ORDER: Final = "SET LOCAL enable_sort = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = off"
LIST: Final = NAMED.format(
    condition="name > COALESCE(:after, '') AND (:inactive OR active IS NOT NULL) ORDER BY name LIMIT :limit"
)
ONE: Final = NAMED.format(condition="name = :name")

NAMES: Final = """
    SELECT name, active FROM catalog_names
    WHERE kind = :kind AND active IS NOT NULL AND (:owner::text IS NULL OR owner IS NULL OR owner = :owner)
    ORDER BY name LIMIT :limit
"""

# Names that differ from these in case alone, or not at all, and whether `by` has published any of their versions.
ALIKE: Final = """
    SELECT n.name, n.owner, EXISTS (
        SELECT FROM catalog_versions v WHERE v.kind = n.kind AND v.name = n.name AND v.published_by = :by
    ) AS is_by
    FROM unnest(:keys::text[]) AS wanted (key)
    JOIN catalog_names n ON n.kind = :kind AND lower(n.name) = wanted.key COLLATE "C"
"""

# The active version, or else the latest, of names with a version by any publisher but `besides`.
SHAPED: Final = """
    SELECT v.version, v.descriptor FROM catalog_names n
    CROSS JOIN LATERAL (
        SELECT version, descriptor FROM catalog_versions
        WHERE kind = n.kind AND name = n.name ORDER BY version = n.active DESC NULLS LAST, version DESC LIMIT 1
    ) v
    WHERE n.kind = :kind AND n.name = ANY(:names)
      AND EXISTS (SELECT FROM catalog_versions WHERE kind = n.kind AND name = n.name AND published_by <> :besides)
"""

KNOWN: Final = """
    SELECT count(*) FROM unnest(:names::text[], :digests::text[]) AS g (name, digest)
    WHERE EXISTS (SELECT FROM catalog_versions WHERE kind = :kind AND name = g.name AND digest = g.digest)
"""

LAST_BY: Final = """
    SELECT DISTINCT ON (v.name) v.name, v.version, v.digest, v.published_by, n.owner,
           n.active IS NOT DISTINCT FROM v.version AS is_active
    FROM catalog_versions v JOIN catalog_names n ON n.kind = v.kind AND n.name = v.name
    WHERE v.kind = :kind AND v.name = ANY(:names) AND v.published_by = ANY(:publishers)
    ORDER BY v.name, v.version DESC
"""


Translation = Callable[[dict[str, Any]], dict[str, Any]]


def _as_it_is(content: dict[str, Any]) -> dict[str, Any]:
    return content


class VersionRepository(Generic[T]):
    """The versions of tools or of templates. Versions are cached; which one is active is read each time."""

    def __init__(
        self,
        db: Database,
        kind: Kind,
        type_: type[T],
        complete: Callable[[T], T] = lambda one: one,
        *,
        digested: Translation = _as_it_is,
        to_row: Translation = _as_it_is,
        from_row: Translation = _as_it_is,
    ) -> None:
        """`digested`: the part of the content that its digest covers; `to_row`: the descriptor as a row stores it;
        `from_row`: decodes that, also from rows of older releases."""
        self.db = db
        self._digested = digested
        self._to_row = to_row
        self._from_row = from_row
        self._type: type[T] = type_
        self._complete: Callable[[T], T] = complete
        self.kind = kind
        self.changes = 0
        """The number of changes made by this process."""
        self._versions: dict[tuple[str, int], T] = {}

    @property
    def adapter(self) -> TypeAdapter[T]:
        """Reads what a publisher sends."""
        return adapter_of(self._type)

    async def publish(
        self,
        given: Sequence[T],
        *,
        by: str,
        activate: bool = True,
        again: bool = True,
        terms: PublishTerms = ANY,
        tx: Transaction | None = None,
    ) -> list[Published]:
        """Adds versions, all or none: in the transaction `tx`, or else in one of its own.

        With `again=False`, content that was published before is not activated again.
        """
        if not given:
            return []
        values: dict[str, Any] = {
            "kind": self.kind,
            "names": [one.name for one in given],
            "digests": [self.digest(one) for one in given],
            "descriptors": [self.encoded(one) for one in given],
            "by": by,
            "activate": activate,
            "again": again,
            "owners": [one.owner for one in given],
            "keeps": [one.name in terms.keep_owner for one in given],
            "seen": [terms.seen.get(one.name) for one in given],
            "apart": terms.apart,
            "over": terms.over,
        }

        async def publish(tx: Transaction) -> list[Published]:
            told = await tx.value(PUBLISH, **values)
            if told is None:
                raise ConcurrentChange
            published = [Published(*one) for one in msgspec.json.decode(told)]
            if activate:
                taken = {one.name for one in published if one.is_active and (one.is_new or again)}
                await self._activated(tx, taken, terms)
            return published

        return await self._changed(publish, tx)

    async def has(self, given: Sequence[T]) -> bool:
        """Whether the content of each was published before."""
        names, digests = [one.name for one in given], [self.digest(one) for one in given]
        known: int = await self.db.value(KNOWN, kind=self.kind, names=names, digests=digests)
        return known == len(given)

    async def find(self, name: str, version: int | None = None, *, owner: str | None = None) -> T | None:
        """The given version, or else the active one if this owner may see it; None as owner sees all."""
        if version is None:
            version = await self.active(name, owner=owner)
        found = [] if version is None else await self.several({name: version})
        return found[0] if found else None

    async def several(self, versions: Mapping[str, int], tx: Transaction | None = None) -> list[T]:
        """Those of these versions that exist, in the order asked. What a transaction reads may be rolled back, and is
        not cached."""
        known = {pair: self._versions.get(pair) for pair in versions.items()}
        missing = dict(pair for pair, one in known.items() if one is None)
        if missing:
            values = {"names": list(missing), "versions": list(missing.values())}
            for row in await (tx or self.db).rows(SEVERAL, kind=self.kind, **values):
                known[row["name"], row["version"]] = one = self.decoded(row["descriptor"], row["version"])
                if tx is None:
                    self._cache(one)
        return [one for one in known.values() if one]

    async def active(self, name: str, *, owner: str | None = None) -> int | None:
        """The number of the active version."""
        found: int | None = (
            None if "\x00" in name else await self.db.value(ACTIVE, kind=self.kind, name=name, owner=owner)
        )
        return found

    async def names(self, *, owner: str | None = None, limit: int = 1000) -> list[str]:
        """Names with an active version that this owner may see; None as owner sees all."""
        return await self.db.column(NAMES, kind=self.kind, owner=owner, limit=limit)

    async def active_ones(self, *, owner: str | None = None, limit: int = 1000) -> list[T]:
        """The same, each in its active version."""
        return await self.several(dict(await self.db.rows(NAMES, kind=self.kind, owner=owner, limit=limit)))

    async def page(self, *, after: str | None, limit: int, inactive: bool = True) -> list[CatalogEntry]:
        """A page of names in order; with `inactive`, also those without an active version."""
        values = {"after": after, "limit": limit, "inactive": inactive}
        return [self._entry(row) for row in await self.db.tuned(IN_ORDER, LIST, kind=self.kind, **values)]

    async def named(self, name: str) -> CatalogEntry | None:
        row = await self.db.row(ONE, kind=self.kind, name=name)
        return self._entry(row) if row else None

    async def version(self, name: str, version: int) -> Version | None:
        found = await self.versions(name, before=version + 1, limit=1)
        return found[0] if found and found[0].version == version else None

    async def versions(self, name: str, *, before: int | None = None, limit: int = 200) -> list[Version]:
        rows = await self.db.rows(VERSIONS, kind=self.kind, name=name, before=before, limit=limit)
        return [self._version(row) for row in rows]

    async def alike(self, names: Iterable[str], *, by: str) -> dict[str, list[Alike]]:
        """Names in the catalog that equal these or differ in case alone, by their lower-case key."""
        found: dict[str, list[Alike]] = {}
        keys = list({key(name) for name in names})
        for row in await self.db.rows(ALIKE, kind=self.kind, keys=keys, by=by) if keys else ():
            found.setdefault(key(row["name"]), []).append(Alike(*row))
        return found

    async def shaped(self, names: Sequence[str], *, besides: str) -> dict[str, T]:
        """The active version, or else the latest, of those names with a version by another publisher than `besides`."""
        rows = await self.db.rows(SHAPED, kind=self.kind, names=names, besides=besides) if names else []
        return {one.name: one for one in (self.decoded(row["descriptor"], row["version"]) for row in rows)}

    async def last_by(self, names: Sequence[str], by: Sequence[str], db: Executor) -> dict[str, LastVersion]:
        """Name -> the newest version that one of the publishers `by` has published."""
        rows = await db.rows(LAST_BY, kind=self.kind, names=names, publishers=by) if names else []
        return {row["name"]: LastVersion(*row) for row in rows}

    async def activate(self, name: str, version: int) -> bool:
        async def activate(tx: Transaction) -> bool:
            done = await tx.row(ACTIVATE, kind=self.kind, name=name, version=version) is not None
            await self._activated(tx, {name} if done else set())
            return done

        return await self._changed(activate)

    async def roll_back(self, name: str) -> int | None:
        """Activates the previously active version; None if there is none."""
        steps = await self.db.value(WAY_BACK, kind=self.kind, name=name)
        if not steps:
            return None

        async def roll_back(tx: Transaction) -> None:
            await tx.row(ROLL_BACK, kind=self.kind, name=name, steps=steps)
            await self._activated(tx, {name})

        await self._changed(roll_back)
        return await self.active(name)

    async def deactivate(self, name: str, *, retire: bool = False) -> bool:
        """Leaves the name without an active version; turns that started with a version keep it."""
        self.changes += 1
        return await self.db.alone(LOCK, DEACTIVATE, kind=self.kind, name=name, retire=retire) is not None

    async def _changed(self, change: Callable[[Transaction], Awaitable[Done]], tx: Transaction | None = None) -> Done:
        """Makes a change, and whatever follows from it, under the lock of the catalog and in one transaction."""

        async def locked(tx: Transaction) -> Done:
            await tx.lock(*LOCK)
            return await change(tx)

        done = await (locked(tx) if tx else self.db.together(locked))
        self.changes += 1
        return done

    async def _activated(self, tx: Transaction, names: set[str], terms: PublishTerms = ANY) -> None:
        """Called when these names got another active version, in the same transaction."""

    def digest(self, one: T) -> str:
        """The digest of the published content, without fields that the catalog sets.

        Defaults are left out too: a newer release may have new fields, and the digest must stay the same.
        """
        content = self._digested(written(one, without=ADDED, briefly=True))
        # Not sorted: the order of a schema's properties is the order in which a model generates them.
        return hashlib.sha256(msgspec.json.encode(content)).hexdigest()

    def encoded(self, one: T) -> str:
        """A version as its row stores it."""
        return msgspec.json.encode(self._to_row(written(one, without=ADDED))).decode()

    def decoded(self, descriptor: str, version: int) -> T:
        """A version from its row."""
        return self.known(self._from_row(msgspec.json.decode(descriptor)), version)

    def known(self, content: dict[str, Any], version: int) -> T:
        """A version from its descriptor."""
        # Converted without validators: a version that was accepted once stays readable if a newer release would refuse
        # it. The owner belongs to the name, not to the version.
        try:
            known = msgspec.convert({**content, "version": version, "owner": None}, self._type)
        except msgspec.ValidationError as error:
            raise UnknownShape(f"this process does not know a {self.kind} of the catalog: {error}") from error
        return self._complete(known)

    def _entry(self, row: asyncpg.Record) -> CatalogEntry:
        return CatalogEntry(*(*row[:5], self._descriptor(row)))

    def _version(self, row: asyncpg.Record) -> Version:
        return Version(*(*row[:6], self._descriptor(row)))

    def _descriptor(self, row: asyncpg.Record) -> dict[str, Any]:
        """The descriptor of the version, with the present owner of its name."""
        return {**self._from_row(msgspec.json.decode(row["descriptor"])), "owner": row["owner"]}

    def _cache(self, one: T) -> None:
        if len(self._versions) >= MAX_CACHED:
            del self._versions[next(iter(self._versions))]
        self._versions[one.name, one.version] = one
