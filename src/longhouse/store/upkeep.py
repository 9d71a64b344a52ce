"""The care of the search index: the graph of vectors, shards that have emptied, and starting afresh."""

from collections.abc import Sequence
from typing import Final

import asyncpg

from longhouse.store.database import Database
from longhouse.store.postings import CROWDED
from longhouse.store.search import FEWEST_NODES
from longhouse.store.vectors import Space

MANY: Final = 5000
"""So many new vectors at once enter a graph faster when it is built again: measured three to four times."""
NEIGHBOURS: Final = 16
CARE: Final = 64
"""The extension's own measures: with fewer, the nearest were missed; with more, building took longer for little."""
BUILD_MEMORY: Final = "256MB"

IN_SHARDS: Final = """
    SELECT n.name, n.active AS version, n.owner, v.descriptor FROM search_documents d
    JOIN catalog_names n ON n.kind = d.kind AND n.name = d.name
    JOIN catalog_versions v ON v.kind = n.kind AND v.name = n.name AND v.version = n.active
    WHERE d.shard = $1 AND d.kind = 'tool' ORDER BY n.name
"""

# Without a model ($1), texts that have vectors stay where they are: they would lose them.
CROWDS: Final = f"""
    SELECT id FROM search_shards s WHERE kind = 'tool' AND gone < slots AND {CROWDED}
    AND ($1::int IS NOT NULL
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

VECTORS: Final = """
    SELECT count(*) FROM (
        SELECT FROM search_documents WHERE kind = 'tool' AND model = $1 AND owner IS NULL LIMIT $2
    ) found
"""
HAS_GRAPH: Final = "SELECT to_regclass($1) IS NOT NULL"
OLD_GRAPHS: Final = """
    SELECT indexname FROM pg_indexes
    WHERE tablename = 'search_documents' AND schemaname = current_schema()
      AND indexname LIKE 'search\\_graph\\_%' AND indexname <> $1
"""


def graph_name(space: Space) -> str:
    return f"search_graph_{space.model:d}"


async def drop_graph(db: Database, space: Space) -> None:
    await db.run(f"DROP INDEX IF EXISTS {graph_name(space)}")


async def build_graph(db: Database, space: Space) -> bool:
    """Builds the graph of everybody's tools where it is worth one and not there; says whether it built."""
    if await db.value(HAS_GRAPH, graph_name(space)):
        return False
    if await db.value(VECTORS, space.model, FEWEST_NODES) < FEWEST_NODES:
        return False
    try:
        await _build(db, space, workers=2)
    except (asyncpg.DiskFullError, asyncpg.OutOfMemoryError):
        # Workers share memory that small containers do not have.
        await _build(db, space, workers=0)
    return True


async def _build(db: Database, space: Space, *, workers: int) -> None:
    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute(f"SET LOCAL maintenance_work_mem = '{BUILD_MEMORY}'")
        await connection.execute(f"SET LOCAL max_parallel_maintenance_workers = {workers:d}")
        await connection.execute(
            f"""
            CREATE INDEX IF NOT EXISTS {graph_name(space)} ON search_documents
            USING hnsw ((vector::halfvec({space.dimensions:d})) halfvec_cosine_ops)
            WITH (m = {NEIGHBOURS}, ef_construction = {CARE})
            WHERE kind = 'tool' AND model = {space.model:d} AND owner IS NULL
            """
        )


async def drop_old_graphs(db: Database, space: Space) -> None:
    """Drops the graphs of models that are not used any more."""
    rows = await db.rows(OLD_GRAPHS, graph_name(space))
    for row in rows:
        await db.run(f"DROP INDEX IF EXISTS {row['indexname']}")


async def settle(db: Database) -> None:
    """After many changes: fresh statistics for the planner."""
    await db.run("ANALYZE search_documents, search_postings, search_shards")


async def crowded(db: Database, space: Space | None) -> list[int]:
    """Shards of tools with too much that is gone, from which the rest may move."""
    return [row["id"] for row in await db.rows(CROWDS, space.model if space else None)]


async def in_shard(db: Database, shard: int) -> Sequence[asyncpg.Record]:
    return await db.rows(IN_SHARDS, shard)


async def sweep(db: Database) -> None:
    """Removes shards whose texts have all left."""
    await db.run(SWEEP)


async def empty(db: Database) -> None:
    """Forgets the whole index, to be built again."""
    async with db.pool.acquire() as connection, connection.transaction():
        await connection.execute(EMPTY)
