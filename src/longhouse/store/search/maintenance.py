"""Maintenance of the search index: statistics, compaction of shards with many deleted documents, and rebuilding."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from longhouse.store.database import Database
from longhouse.store.search.postings import CROWDED
from longhouse.store.search.vectors import Space

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


async def settle(db: Database) -> None:
    """Updates the planner's statistics after many changes."""
    await db.run("ANALYZE search_documents, search_postings, search_shards")


async def crowded(db: Database, space: Space | None) -> list[int]:
    """Shards of tools with too many deleted documents, whose other documents should move to other shards."""
    return [row["id"] for row in await db.rows(CROWDS, model=space.model if space else None)]


async def in_shard(db: Database, shard: int) -> Sequence[asyncpg.Record]:
    return await db.rows(IN_SHARDS, shard=shard)


async def sweep(db: Database) -> None:
    """Deletes shards without documents."""
    await db.run(SWEEP)


async def empty(db: Database) -> None:
    """Deletes the whole index, so that it is built again."""
    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute(EMPTY)
