"""The statement that publishes versions: many at once, under conditions that are checked in the same statement."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import msgspec

from longhouse.errors import CallerError

LOCK: Final = (0x6C6F6E67, 0x63617461)  # "long", "cata": changes come one after another
LAST: Final = 2**31 - 1
"""The greatest version number."""
TRIES: Final = 10

Done = TypeVar("Done")


class Published(msgspec.Struct, frozen=True):
    name: str
    version: int
    is_active: bool
    is_new: bool
    warnings: tuple[str, ...] = ()
    """Notes for the publisher that do not prevent publishing."""


class PublishTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions for publishing, and what publishing must not change."""

    over: Sequence[str] | None = None
    """Publishers whose active version may be replaced; else the new version is stored but not activated. None: all."""
    seen: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Name -> the version that the new one was made from, which must still be the active one, or else the latest. Nor
    may the name have been retired meanwhile, if publishing would bring it back."""
    keep_owner: Collection[str] = ()
    """Names that keep their owner."""
    apart: bool = False
    """Refuse a new name that differs from an existing one in case alone."""


ANY: Final = PublishTerms()


class ConcurrentChange(CallerError):  # noqa: N818 - the name says what happened
    """A concurrent change broke the terms, and nothing was published."""

    def __init__(self) -> None:
        message = "Nothing was published: it was changed at the same time. Read it again, and send your change again."
        super().__init__(message, status=409, code="changed_meanwhile")


async def retry_on_change(attempt: Callable[[], Awaitable[Done]]) -> Done:
    """Retries `attempt`, which reads and publishes, after concurrent changes; at most TRIES times."""
    for _ in range(TRIES - 1):
        with suppress(ConcurrentChange):
            return await attempt()
    return await attempt()


# One statement publishes all versions, or none if the terms do not hold. Content that exists already keeps its version.
# `activate`: activate what is published; `again`: also if its content existed already. LIMIT 1 keeps the planner from
# reading all names for a few: right after many were published there are no statistics yet.
PUBLISH: Final = """
WITH asked AS (
    SELECT g.*, n.name IS NOT NULL AS is_named, n.owner AS whose, n.active AS was, n.retired_at
    FROM unnest(:names::text[], :digests::text[], :descriptors::json[], :owners::text[], :keeps::boolean[],
                :seen::integer[]) WITH ORDINALITY AS g (name, digest, descriptor, owner, keeps, seen, nth)
    LEFT JOIN LATERAL (SELECT * FROM catalog_names WHERE kind = :kind AND name = g.name LIMIT 1) n ON true
), outrun AS (
    SELECT FROM asked a
    WHERE (a.seen IS NOT NULL AND a.seen IS DISTINCT FROM COALESCE(
               a.was, (SELECT max(v.version) FROM catalog_versions v WHERE v.kind = :kind AND v.name = a.name)))
       OR (a.seen IS NOT NULL AND a.retired_at IS NOT NULL AND :over::text[] IS NULL)
       OR (:apart AND NOT a.is_named AND (
               SELECT true FROM catalog_names WHERE kind = :kind AND lower(name) = lower(a.name COLLATE "C") LIMIT 1))
), given AS (
    SELECT DISTINCT ON (name, digest) * FROM asked WHERE NOT EXISTS (SELECT FROM outrun) ORDER BY name, digest, nth
), known AS (
    SELECT g.*, v.version AS there FROM given g
    LEFT JOIN catalog_versions v ON v.kind = :kind AND v.name = g.name AND v.digest = g.digest
), numbered AS (
    SELECT k.*, COALESCE(
               k.there,
               COALESCE((SELECT max(v.version) FROM catalog_versions v WHERE v.kind = :kind AND v.name = k.name),
                        (SELECT erased_upto FROM catalog_generation WHERE kind = :kind))
               + count(*) FILTER (WHERE k.there IS NULL) OVER (PARTITION BY k.name ORDER BY k.nth)
           ) AS version
    FROM known k
), written AS (
    INSERT INTO catalog_versions (kind, name, version, digest, descriptor, published_by)
    SELECT :kind, name, version, digest, descriptor, :by FROM numbered WHERE there IS NULL
), last AS (
    SELECT DISTINCT ON (l.name) l.*,
           :activate AND (:again OR l.there IS NULL) AND (NOT l.is_named OR :over::text[] IS NULL OR COALESCE((
               SELECT v.published_by = ANY(:over) FROM catalog_versions v
               WHERE v.kind = :kind AND v.name = l.name AND v.version = l.was
           ), false)) AS takes
    FROM numbered l ORDER BY l.name, l.nth DESC
), settled AS (
    SELECT l.*, CASE WHEN takes THEN version ELSE was END AS active,
           CASE WHEN is_named AND (keeps OR NOT takes) THEN whose ELSE owner END AS belongs
    FROM last l
), named AS (
    INSERT INTO catalog_names AS n (kind, name, owner, active)
    SELECT :kind, name, belongs, active FROM settled
    WHERE there IS NULL OR (active, belongs) IS DISTINCT FROM (was, whose)
    ON CONFLICT (kind, name) DO UPDATE SET
        owner = EXCLUDED.owner,
        before = CASE WHEN n.active <> EXCLUDED.active THEN n.before || n.active ELSE n.before END,
        active = EXCLUDED.active,
        retired_at = CASE WHEN EXCLUDED.active IS NULL THEN n.retired_at END,
        changed_at = now()
    RETURNING name
), moved AS (
    UPDATE catalog_generation SET generation = generation + 1 WHERE kind = :kind AND EXISTS (SELECT FROM named)
)
SELECT json_agg(
           json_build_array(name, version, active IS NOT DISTINCT FROM version, there IS NULL) ORDER BY nth
       ) AS published
FROM settled
"""
