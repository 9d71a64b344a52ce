"""Vectors are kept by the process that searches, and what it keeps is what Postgres has."""

from typing import Any

import numpy as np
import pytest

from longhouse.search.finder import NARROW, Finder
from longhouse.search.indexer import Indexer
from longhouse.store.database import Database
from longhouse.store.search import vectors
from longhouse.store.search.query import SearchFilters
from longhouse.store.search.vectors import Places, Query, ShardVectors, VectorCache, Vectors, VectorSet
from search_helpers import Buckets, found, indexed, publish, tool

QUERIES = ("counting in the town of place7", "Count to 1200. Then tell me what is in place3.", "nothing of the kind")
MANY = [tool(f"tool_{n}", f"Counts to {n} in the town of place{n % 50}", "how") for n in range(NARROW + 300)]


async def test_none_of_the_nearest_is_missed(db: Database) -> None:
    finder = await indexed(db, *MANY, tool("mine", "Counts in the town of place7", owner="me"), embedder=Buckets())
    rows = await db.rows("SELECT name, vector FROM search_documents WHERE owner IS NULL AND vector IS NOT NULL")
    vectors = np.array([np.frombuffer(row["vector"], "<f2") for row in rows], np.float32)
    for query in QUERIES:
        cosines = vectors @ (await Buckets().embed([query]))[0]
        nearest = {rows[nth]["name"]: cosines[nth] for nth in np.argsort(-cosines)[:10]}
        hits = await finder.tools(query, SearchFilters(), len(MANY))
        similar = sorted((hit.semantic or 0.0 for hit in hits), reverse=True)
        assert similar[:10] == pytest.approx(sorted(nearest.values(), reverse=True), abs=1e-6)
    assert "mine" in await found(finder, QUERIES[0], top_k=20, caller="me")


async def test_what_is_kept_follows_what_is_published_and_changed(db: Database) -> None:
    embedder = Buckets()
    finder = await indexed(db, *MANY, embedder=embedder)
    assert "tool_7" in await found(finder, "counting to 7 in place7")
    await publish(db, tool("tool_7", "Bakes bread in an oven"), tool("new", "Bakes cakes in an oven"))
    assert await Indexer(db, embedder).catch_up()
    assert set(await found(finder, "bake in an oven", top_k=2)) == {"tool_7", "new"}
    assert "tool_7" not in await found(finder, "counts in the town of place7", top_k=30)


async def test_nothing_is_written_while_nothing_changes(db: Database) -> None:
    """The catalog is looked at every second: no row of the index is written for that."""
    indexer = Indexer(db, Buckets())
    await publish(db, tool("one", "Counts to one"))
    await indexer.catch_up()
    rows = [await db.value("SELECT array_agg(m.xmin::text ORDER BY m.id) FROM search_models m")]
    assert await indexer.catch_up()
    rows.append(await db.value("SELECT array_agg(m.xmin::text ORDER BY m.id) FROM search_models m"))
    assert rows[0] == rows[1]


async def test_a_slot_is_read_once(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = await indexed(db, *MANY, embedder=Buckets())
    read: list[object] = []
    rows = Database.rows

    async def noted(self: Database, sql: str, **values: Any) -> Any:
        if sql == vectors.READ:
            read.append(values["first"])
        return await rows(self, sql, **values)

    monkeypatch.setattr(Database, "rows", noted)
    for query in QUERIES:
        await found(finder, query)
    await publish(db, tool("new", "Bakes cakes in an oven"))
    assert await Indexer(db, Buckets()).catch_up()
    await found(finder, QUERIES[0])
    assert read == [0, len(MANY)]


async def test_those_not_asked_for_the_longest_make_room(db: Database) -> None:
    await indexed(db, *(tool(f"of_{owner}", "Counts", owner=owner) for owner in ("a", "b", "c")), embedder=Buckets())
    space = await Finder(db, Buckets()).query("count")
    assert space.space is not None
    shards = [row["id"] for row in await db.rows("SELECT id FROM search_shards WHERE kind = 'tool' ORDER BY id")]
    kept = VectorCache(db, most=2 * space.space.dimensions * 3)
    for shard in shards:
        near = await kept.of(space.space, {shard: 1})
        assert (await near.nearest(np.ones(space.space.dimensions, np.float32), 1)).tolist() == [0]
    assert [shard for shard, _ in kept.shards] == shards[1:]
    await kept.of(space.space, dict.fromkeys(shards, 1))
    assert [shard for shard, _ in kept.shards] == shards  # what one search needs stays, whatever it weighs


def test_vectors_are_kept_as_half_floats_with_the_low_byte_first() -> None:
    [kept] = vectors.packed(np.array([[0.25, -1.0, 0.0000001]], np.float32))
    assert kept == bytes.fromhex("0034 00bc 0200")
    assert vectors.pgvector_literal(kept) == "[0.25,-1.0,0.0]"


def test_a_text_without_a_vector_is_near_to_nothing() -> None:
    kept = np.array([0.5, 0.25], "<f2").tobytes()
    known = np.array([[1.0, 0.0]], np.float32)
    assert vectors.grown(known, {2: kept}, slots=3).tolist() == [[1.0, 0.0], [0.0, 0.0], [0.5, 0.25]]


class Counting(VectorSet):
    compared = 0

    def between(self, vectors: Vectors, places: Places) -> Vectors:
        self.compared += len(places)
        return super().between(vectors, places)


@pytest.mark.parametrize("side", [0.0, 20.0], ids=["all around", "to one side"])
async def test_few_vectors_are_compared_in_full_and_hardly_any_of_the_nearest_is_missed(side: float) -> None:
    """Two shards, one of which has grown; some documents have no vector, some have the same."""
    chance = np.random.default_rng(7)
    words = chance.normal(size=(400, 200)) * np.linspace(2, 0.2, 200)
    texts = words[chance.integers(0, 400, (5_300, 5))].sum(axis=1) + side * np.linspace(0, 1, 200)
    texts[7::50] = texts[6::50]
    stored = (texts / np.linalg.norm(texts, axis=1, keepdims=True)).astype(np.float16)
    slots = {slot: row.tobytes() for slot, row in enumerate(stored[:5_200]) if slot % 40}
    stored[:5_200:40] = 0
    before = ShardVectors.empty(200).grown({slot: row for slot, row in slots.items() if slot < 4_500}, 4_500)
    longer = before.grown({slot: row for slot, row in slots.items() if slot >= 4_500}, 5_200)
    small = ShardVectors.empty(200).grown({slot: row.tobytes() for slot, row in enumerate(stored[5_200:])}, 100)
    assert longer.first(4_500).signs.tolist() == before.signs.tolist()
    near, allowed = Counting([longer, small]), chance.random(5_300) < 0.1
    asked = [*(words[:20] + side * np.linspace(0, 1, 200)), *texts[:5], -texts[1]]
    missed = 0
    for text in asked:
        vector = (text / np.linalg.norm(text)).astype(np.float32)
        cosines = stored.astype(np.float32) @ vector
        for among, here in ((None, cosines), (allowed, cosines * allowed)):
            found = await near.nearest(vector, 30, among)
            there = np.sort(here)[::-1][: min(30, np.count_nonzero(here > 0))]
            assert len(set(found.tolist())) == len(there)
            assert (here[found] > 0).all(), "without a vector, or not asked for"
            missed += int(np.count_nonzero(here[found] < there[-1:] - 1e-6))
    assert missed < 0.03 * 30 * 2 * len(asked)
    assert near.compared < len(asked) * 2 * len(stored) * 0.4


def test_signs_tell_the_product_where_all_numbers_of_a_vector_are_of_one_size() -> None:
    """The query's numbers are just the sizes that its bits can tell: so many of each that the unit, LARGE times their
    root mean square in three steps, is 1."""
    chance = np.random.default_rng(7)
    rows = chance.choice([-0.0625, 0.0625], size=(300, 256)).astype(np.float16)
    part = ShardVectors.of(np.concatenate((rows, -rows)))
    query = np.repeat([0, 1, 2, 3], [135, 65, 40, 16]) * chance.choice([-1, 1], size=256).astype(np.float32)
    likely = Query(query, [part]).likely(part, 0)
    assert likely == pytest.approx(part.rows.astype(np.float32) @ query, rel=0.001)


async def test_what_has_no_vector_costs_no_comparison() -> None:
    chance = np.random.default_rng(7)
    few = {slot: chance.normal(size=256).astype(np.float16).tobytes() for slot in range(0, 9_000, 100)}
    near = Counting([ShardVectors.empty(256).grown(few, 9_000)])
    assert (await near.nearest(np.zeros(256, np.float32), 30)).tolist() == [], "as of a question without a known word"
    assert near.compared == 0
    found = await near.nearest(chance.normal(size=256).astype(np.float32), 30)
    assert set(found.tolist()) <= set(few)
    assert near.compared == len(few)


async def test_vectors_of_few_numbers_are_all_compared() -> None:
    chance = np.random.default_rng(7)
    stored = chance.normal(size=(3_000, 8)).astype(np.float16)
    near = VectorSet([ShardVectors.empty(8).grown({slot: row.tobytes() for slot, row in enumerate(stored)}, 3_000)])
    vector = chance.normal(size=8).astype(np.float32)
    cosines = stored.astype(np.float32) @ vector
    assert set((await near.nearest(vector, 5)).tolist()) == set(np.argsort(cosines)[-5:].tolist())


def test_half_precision_is_widened_to_the_same_numbers() -> None:
    """Each number that there is: also those below the smallest normal one, and minus zero."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    assert vectors.widened(halves).tobytes() == halves.astype(np.float32).tobytes()


@pytest.mark.parametrize("above", [0.0, -np.inf])
def test_the_highest_scores_are_found_whatever_a_sample_of_them_tells(above: float) -> None:
    """Of many and of few, with equal ones and zeros, in order, and where those looked at are high, or others."""
    chance = np.random.default_rng(7)
    for size in (0, 1, 130, 5_000):
        scores = chance.normal(size=size)
        lonely = [np.where(np.arange(size) % vectors.SCORE_SAMPLE == nth, scores + 9, scores) for nth in (0, 1)]
        few = np.where(chance.random(size) < 0.02, scores, -np.inf)
        for some in (scores, np.sort(scores), np.round(scores), np.maximum(scores, 0), *lonely, few, -abs(scores)):
            exact = some.astype(np.float32)
            for count in (1, 20, 60, 1_500):
                found = vectors.top(exact, count, above)
                assert len(set(found.tolist())) == len(found)
                assert np.sort(exact[found]).tolist() == np.sort(exact[exact > above])[-count:].tolist()
