"""Reads and writes of the search index: documents that are missing, outdated or gone, and the state of indexing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import asyncpg
import msgspec

from longhouse.arrays import np, npt
from longhouse.store import rows
from longhouse.store.catalog.repository import SEVERAL, Kind
from longhouse.store.database import Database, Transaction
from longhouse.store.search import columns, postings
from longhouse.store.search.postings import CROWDED
from longhouse.store.search.vectors import Space, packed, pgvector_literal

SOLE_WRITER: Final = (0x6C6F6E67, 0x696E6478)  # "long", "indx": one process writes the index
BEHIND: Final = """
    SELECT g.kind, g.generation FROM catalog_generation g JOIN search_state s ON s.kind = g.kind
    WHERE s.generation <> g.generation OR (:model::int IS NOT NULL AND s.model IS DISTINCT FROM :model)
    ORDER BY g.kind DESC
"""
# A model whose dimensions changed counts as another model: its old vectors cannot be compared with the new ones.
SET_ASIDE: Final = """
    UPDATE search_models SET name = name || ' of ' || dimensions || ' #' || id
    WHERE name = :name AND dimensions <> :dimensions
"""
MODEL: Final = """
    INSERT INTO search_models (name, dimensions) VALUES (:name, :dimensions)
    ON CONFLICT (name) DO UPDATE SET name = EXCLUDED.name RETURNING id
"""
# All that a search finds follows from these: a document is never changed, but removed and added; what is active now,
# and each overlay, move the generation.
NOW: Final = """
    SELECT g.generation, s.generation, s.model, r.generation, h.shards, h.last, h.slots, h.gone
    FROM catalog_generation g
    LEFT JOIN search_state s ON s.kind = g.kind LEFT JOIN search_state r ON r.kind = 'recipe'
    CROSS JOIN (SELECT count(*) AS shards, max(id) AS last, sum(slots) AS slots, sum(gone) AS gone
                FROM search_shards WHERE kind = :kind) h
    WHERE g.kind = :kind
"""
LEADING: Final = "SELECT model FROM search_state WHERE kind = 'tool'"
KNOWN_MODEL: Final = "SELECT id, dimensions FROM search_models WHERE name = :name"

# The planner uses the statistics of the last ANALYZE, when an index that is being built was empty: by default, it would
# scan whole tables for each batch. Look-ups by key are right at every size.
BY_KEYS: Final = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_sort = off"

# LIMIT makes this a scan along the names with one index look-up for each: the cost of a batch depends on its size, and
# not on a join of all names with all documents.
_LACKING: Final = """
    FROM catalog_names n
    LEFT JOIN LATERAL (
        SELECT d.version, d.owner, d.model FROM search_documents d WHERE d.kind = 'tool' AND d.name = n.name LIMIT 1
    ) d ON true
    WHERE n.kind = 'tool' AND n.active IS NOT NULL AND n.retired_at IS NULL
      AND (d.version IS DISTINCT FROM n.active OR d.owner IS DISTINCT FROM n.owner
           OR (:model::int IS NOT NULL AND d.model IS DISTINCT FROM :model))
"""
COUNT: Final = f"SELECT count(*) {_LACKING}"
LACKING: Final = f"""
    SELECT n.name, n.version, n.owner, v.descriptor
    FROM (SELECT n.name, n.active AS version, n.owner {_LACKING} AND n.name > :after ORDER BY n.name LIMIT :limit) n
    CROSS JOIN LATERAL (
        SELECT descriptor FROM catalog_versions v
        WHERE v.kind = 'tool' AND v.name = n.name AND v.version = n.version LIMIT 1
    ) v
    ORDER BY n.name
"""
TEMPLATES: Final = f"""
    SELECT n.name, n.active AS version, n.owner, v.descriptor, d.digest, d.owner AS indexed_owner, d.model,
           EXISTS (SELECT FROM search_shards s WHERE s.id = d.shard AND {CROWDED}) AS is_crowded
    FROM catalog_names n
    JOIN catalog_versions v ON v.kind = n.kind AND v.name = n.name AND v.version = n.active
    LEFT JOIN search_documents d ON d.kind = n.kind AND d.name = n.name
    WHERE n.kind = 'template' AND n.retired_at IS NULL ORDER BY n.name
"""
GONE: Final = """
    SELECT d.name FROM search_documents d LEFT JOIN catalog_names n ON n.kind = d.kind AND n.name = d.name
    WHERE d.kind = :kind AND (n.active IS NULL OR n.retired_at IS NOT NULL)
"""
REMOVE: Final = """
    WITH gone AS (
        DELETE FROM search_documents WHERE kind = :kind AND name = ANY(:names::text[]) RETURNING shard, slot
    ), counted AS (
        SELECT shard, count(*) AS left_it, string_agg(int2send(slot::smallint), ''::bytea) AS slots
        FROM gone GROUP BY shard
    ), noted AS (
        INSERT INTO search_postings AS p (shard, term, postings) SELECT shard, '', slots FROM counted
        ON CONFLICT (shard, term) DO UPDATE SET postings = p.postings || EXCLUDED.postings
    )
    UPDATE search_shards s SET gone = gone + left_it FROM counted c WHERE s.id = c.shard
"""
ADD: Final = """
    INSERT INTO search_documents (kind, name, version, digest, owner, shard, slot, type, risk, tags, templates,
                                  sub_agents, tools, model, vector {column})
    SELECT :kind, a.name, a.version, a.digest, :owner, :shard, :first + a.nth - 1, a.type, a.risk,
           a.tags::text[], a.templates::text[], a.sub_agents, a.tools::text[], :model::int,
           a.vector {value}
    FROM unnest(:name::text[], :version::int[], :digest::text[], :type::text[], :risk::int[], :tags::text[],
                :templates::text[], :sub_agents::boolean[], :tools::text[], :vectors::bytea[], :embeddings::text[])
         WITH ORDINALITY
         AS a (name, version, digest, type, risk, tags, templates, sub_agents, tools, vector, embedding, nth)
"""

# The version of the code that made the documents of this index, stored beside the state of indexing.
RECIPE: Final = "SELECT generation FROM search_state WHERE kind = 'recipe'"
NEW_RECIPE: Final = """
    INSERT INTO search_state (kind, generation) VALUES ('recipe', :recipe)
    ON CONFLICT (kind) DO UPDATE SET generation = EXCLUDED.generation, changed_at = now()
"""
STATE: Final = """
    UPDATE search_state SET generation = :generation, model = :model, done = 0, todo = 0, changed_at = now()
    WHERE kind = :kind
"""
IN_SHARDS: Final = """
    SELECT n.name, n.active AS version, n.owner, v.descriptor FROM search_documents d
    JOIN catalog_names n ON n.kind = d.kind AND n.name = d.name
    JOIN catalog_versions v ON v.kind = n.kind AND v.name = n.name AND v.version = n.active
    WHERE d.shard = :shard AND d.kind = 'tool' ORDER BY n.name
"""

# Without a model, shards with vectors are left alone: moved documents would lose their vectors.
CROWDS: Final = f"""
    SELECT id FROM search_shards s WHERE kind = 'tool' AND gone < slots AND {CROWDED}
    AND (:model::int IS NOT NULL
         OR NOT EXISTS (SELECT FROM search_documents d WHERE d.shard = s.id AND d.model IS NOT NULL))
"""
SWEEP: Final = """
    WITH swept AS (DELETE FROM search_shards WHERE gone = slots RETURNING id)
    DELETE FROM search_postings WHERE shard IN (SELECT id FROM swept)
"""
EMPTY: Final = """
    TRUNCATE search_documents, search_postings, search_shards;
    UPDATE search_state SET generation = -1, done = 0, todo = 0, changed_at = now() WHERE kind <> 'recipe';
"""


class IndexedText(msgspec.Struct, frozen=True):
    """A tool or a template as the index stores it."""

    weights: Mapping[str, float]
    gist: str
    """The text that is embedded."""
    type: str = ""
    risk: int = 0
    tags: tuple[str, ...] = ()
    """Tags and categories."""
    templates: tuple[str, ...] | None = None
    """The only templates that may use the tool; None: all."""
    sub_agents: bool = True
    tools: tuple[str, ...] = ()
    """The tools that a template names."""


class IndexEntry(msgspec.Struct, frozen=True):
    """A document to be written to the index."""

    name: str
    version: int
    owner: str | None
    document: IndexedText
    vector: npt.NDArray[np.float32] | None = None
    digest: str = ""


async def space(db: Database, name: str) -> Space | None:
    """The vector space of an embedding model; None if nothing was indexed with the model."""
    return await db.read_one(Space, KNOWN_MODEL, name=name)


async def make_space(db: Database, name: str, dimensions: int) -> Space:
    """The vector space of this model; made if there is none, or one of other dimensions."""
    known = await space(db, name)
    if known and known.dimensions == dimensions:
        return known  # it is asked for every second: nothing is written for that
    await db.run(SET_ASIDE, name=name, dimensions=dimensions)
    return Space(int(await db.value(MODEL, name=name, dimensions=dimensions)), dimensions)


async def leading_model(db: Database) -> int | None:
    """The embedding model with which the index was last completed."""
    found: int | None = await db.value(LEADING)
    return found


async def behind(db: Database, model: int | None) -> Mapping[str, int]:
    """Kind -> the catalog's generation, for kinds whose index is behind it; without a model, vectors are ignored."""
    return dict(await db.rows(BEHIND, model=model))


async def now(db: Database, kind: Kind) -> tuple[Any, ...]:
    """The same as before: a search finds the same as before."""
    return tuple(await db.row(NOW, kind=kind) or ())


async def recipe(db: Database) -> int | None:
    """The recipe version with which this index was built; None for an index that was never built."""
    return await db.read_one(int, RECIPE)


async def write_recipe(db: Database, number: int) -> None:
    await db.run(NEW_RECIPE, recipe=number)


async def reached(db: Database, kind: Kind, generation: int, model: int | None) -> None:
    await db.run(STATE, kind=kind, generation=generation, model=model)


async def write(db: Database, kind: Kind, entries: Sequence[IndexEntry], space: Space | None) -> None:
    """Writes documents to the index in one transaction, in place of older ones with the same names."""

    async def replace(tx: Transaction) -> None:
        await tx.run(BY_KEYS)
        await tx.run(REMOVE, kind=kind, names=[entry.name for entry in entries])
        for owner in {entry.owner for entry in entries}:
            own = [entry for entry in entries if entry.owner == owner]
            while own:
                where = await postings.room(tx, kind, owner)
                await _add(tx, kind, where, own[: where.free], space)
                own = own[where.free :]

    await db.together(replace)


async def _add(
    tx: Transaction, kind: Kind, where: postings.FreeSlots, entries: Sequence[IndexEntry], space: Space | None
) -> None:
    texts = [entry.document for entry in entries]
    vectors = packed(np.array([entry.vector for entry in entries])) if space else []
    shown_as = await columns.column_type(tx) if vectors else None
    await postings.append(tx, where, [text.weights for text in texts])
    await tx.run(
        ADD.format(column=", embedding", value=f", a.embedding::{shown_as}")
        if shown_as
        else ADD.format(column="", value=""),
        kind=kind,
        owner=entries[0].owner,
        shard=where.shard,
        first=where.first,
        **rows.columns(entries, "name", "version", "digest"),
        **rows.columns(texts, "type", "risk", "sub_agents"),
        tags=[_array(text.tags) for text in texts],
        templates=[None if text.templates is None else _array(text.templates) for text in texts],
        tools=[_array(text.tools) for text in texts],
        model=space.model if space else None,
        vectors=vectors,
        embeddings=[pgvector_literal(vector) for vector in vectors] if shown_as else [],
    )


async def remove_gone(db: Database, kind: Kind) -> None:
    """Removes documents whose name has no active version in the catalog."""
    names = await db.column(GONE, kind=kind)
    await db.tuned(BY_KEYS, REMOVE, kind=kind, names=names)


async def lacking(db: Database, model: int | None, *, after: str, limit: int) -> Sequence[asyncpg.Record]:
    """A page of active tools whose present version is not in the index, by name."""
    return await db.tuned(BY_KEYS, LACKING, model=model, after=after, limit=limit)


async def count_lacking(db: Database, model: int | None) -> int:
    return int(await db.value(COUNT, model=model))


async def templates(db: Database) -> Sequence[asyncpg.Record]:
    """All active templates, with the state of their documents in the index."""
    return await db.rows(TEMPLATES)


async def descriptors(db: Database, tools: Mapping[str, int]) -> Sequence[asyncpg.Record]:
    """Names and descriptors of these versions of tools, in the order given."""
    return await db.rows(SEVERAL, kind="tool", names=list(tools), versions=list(tools.values()))


async def update_statistics(db: Database) -> None:
    """Updates the planner's statistics after many changes."""
    await db.run("ANALYZE search_documents, search_postings, search_shards")


async def crowded(db: Database, space: Space | None) -> list[int]:
    """Shards of tools with too many deleted documents, whose other documents should move to other shards."""
    return await db.column(CROWDS, model=space.model if space else None)


async def in_shard(db: Database, shard: int) -> Sequence[asyncpg.Record]:
    return await db.rows(IN_SHARDS, shard=shard)


async def sweep(db: Database) -> None:
    """Deletes shards without documents."""
    await db.run(SWEEP)


async def empty(db: Database) -> None:
    """Deletes the whole index, so that it is built again."""
    await db.run(EMPTY)


def _array(values: Sequence[str]) -> str:
    """An array literal of Postgres: as parameter, an array of arrays would need arrays of equal length."""
    if not values:
        return "{}"
    storable = (value.replace("\0", "\ufffd") for value in values)  # the one character that Postgres refuses
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in storable)
    return "{" + ",".join(f'"{value}"' for value in quoted) + "}"
