"""The index follows the catalog, alone or among others, and can be made again."""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest

from longhouse.errors import ProviderError
from longhouse.models import embedding_table as embedded
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.search import index
from longhouse.store.search.query import SearchFilters
from search_helpers import Buckets, found, indexed, publish, tool

MANY = [tool(f"tool_{n}", f"Counts to {n} in the town of place{n % 50}", "how") for n in range(300)]


class Moody(Buckets):
    """An endpoint that may be away."""

    is_away = True

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if self.is_away:
            raise ProviderError("embeddings.invalid:443 gave no embeddings", retryable=True)
        return await super().embed(texts)


class Counting(Buckets):
    """Counts the texts that it was given as vectors of tools; queries and samples are short."""

    embedded = 0

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.embedded += sum(":" in text for text in texts)
        return await super().embed(texts)


async def status(db: Database) -> Sequence[Mapping[str, object]]:
    """How far the index is, as an operator reads it."""
    return await db.rows("""
        SELECT s.kind, s.generation = g.generation AS is_current, m.name AS model,
               (SELECT count(*) FROM search_documents d WHERE d.kind = s.kind) AS indexed
        FROM search_state s JOIN catalog_generation g ON g.kind = s.kind LEFT JOIN search_models m ON m.id = s.model
        ORDER BY s.kind DESC
    """)


async def test_it_says_how_far_it_is(db: Database) -> None:
    await publish(db, *MANY)
    indexer = Indexer(db, Buckets())
    before = (await status(db))[0]
    assert (before["kind"], before["is_current"], before["indexed"]) == ("tool", False, 0)
    assert await indexer.catch_up()
    after = (await status(db))[0]
    assert (after["is_current"], after["indexed"], after["model"]) == (True, len(MANY), "buckets")


@pytest.mark.parametrize("turns", range(4))
async def test_a_nudge_at_the_last_moment_does_not_keep_it_from_ending(db: Database, turns: int) -> None:
    async with asyncio.timeout(20):
        async with Indexer(db, None, every=60).working() as indexer:
            await indexer.ready()
            await asyncio.sleep(0.05)  # it waits to be nudged now
            indexer.nudge()
            for _ in range(turns):
                await asyncio.sleep(0)


async def test_in_the_background_it_follows_what_is_published(db: Database) -> None:
    finder = Finder(db, None)
    async with Indexer(db, None, every=60).working() as indexer, asyncio.timeout(20):
        await publish(db, tool("first", "Peels apples"))
        while await found(finder, "apples") != ["first"]:
            indexer.nudge()
            await asyncio.sleep(0.01)


async def test_a_new_version_takes_the_place_of_the_old_one(db: Database) -> None:
    finder = await indexed(db, tool("fruit", "Peels apples"))
    await publish(db, tool("fruit", "Presses oranges"))
    await Indexer(db, None).catch_up()
    assert await found(finder, "apples") == []
    assert (await finder.tools("oranges", SearchFilters(), 1))[0].version == 2


async def test_another_model_reindexes_all(db: Database) -> None:
    await indexed(db, *MANY, embedder=Buckets("old", 16))
    finder = await indexed(db, embedder=Buckets("new", 24))
    best = (await finder.tools("place7 town", SearchFilters(), 1))[0]
    assert best.semantic is not None
    assert best.semantic > 0.3
    models = await db.rows("SELECT DISTINCT m.name FROM search_documents d JOIN search_models m ON m.id = d.model")
    assert [row["name"] for row in models] == ["new"]


async def test_made_again_it_gives_the_same_picture(db: Database) -> None:
    finder = await indexed(db, *MANY, embedder=Buckets())
    before = await finder.tools("count in place3", SearchFilters(), 20)
    await db.run("DELETE FROM search_postings WHERE term < 'place3'")
    await index.empty(db)
    assert await Indexer(db, Buckets()).catch_up()
    assert await finder.tools("count in place3", SearchFilters(), 20) == before


async def test_an_index_of_an_older_release_is_made_again(db: Database) -> None:
    finder = await indexed(db, *MANY)
    await db.run("UPDATE search_state SET generation = generation - 1 WHERE kind = 'recipe'")
    await db.run("UPDATE search_postings SET term = 'old' || term")
    assert await found(finder, "place7") == []
    assert await Indexer(db, None).catch_up()
    assert (await found(finder, "place7"))[0] == "tool_107"


async def test_one_descriptor_that_cannot_be_read_hides_no_other(db: Database) -> None:
    await publish(db, *MANY[:5], tool("spoilt_fruit", "Peels apples", tags=("a",)))
    await db.run("UPDATE catalog_versions SET descriptor = '{\"name\": 7}' WHERE name = 'spoilt_fruit'")
    await db.run("UPDATE catalog_versions SET descriptor = replace(descriptor::text, '[]', '[\"\\u0000\"]')::json")
    assert await Indexer(db, None).catch_up()
    assert await found(Finder(db, None), "spoilt fruit") == ["spoilt_fruit"]
    assert (await found(Finder(db, None), "place3"))[0] == "tool_3"


async def test_several_at_once_do_the_work_of_one(db: Database) -> None:
    await publish(db, *MANY)
    many = [Indexer(db, Buckets()) for _ in range(4)]
    assert any(await asyncio.gather(*(indexer.catch_up() for indexer in many)))
    assert await many[0].catch_up()
    assert await db.value("SELECT count(*) FROM search_documents") == len(MANY)
    assert await db.value("SELECT sum(slots - gone) FROM search_shards") == len(MANY)
    assert len(await found(Finder(db, None), "place7", top_k=50)) == 6


async def test_shards_that_emptied_are_cleared_away(db: Database) -> None:
    indexer, few = Indexer(db, None), MANY[:100]
    for turn in range(3):
        await publish(db, *(tool(one.name, f"{one.description_short}, version {turn}") for one in few))
        await indexer.catch_up()
    assert await db.value("SELECT sum(gone) FROM search_shards") < len(few)
    assert await db.value("SELECT count(*) FROM search_postings WHERE shard NOT IN (SELECT id FROM search_shards)") == 0
    for one in few[:70]:
        await Catalog(db).tools.deactivate(one.name)
    await indexer.catch_up()
    assert await db.value("SELECT sum(slots) FROM search_shards") == 30
    assert await found(Finder(db, None), "place49", top_k=50) == ["tool_99"]


async def test_words_are_indexed_while_the_embedding_model_is_away(db: Database) -> None:
    embedder = Moody(dimensions=0)
    finder = await indexed(db, *MANY, embedder=embedder)
    assert (await found(finder, "place7"))[0] == "tool_107"
    embedder.is_away, embedder.dimensions = False, 16
    assert await Indexer(db, embedder).catch_up()
    assert (await finder.tools("place7", SearchFilters(), 1))[0].semantic is None  # it is not asked again for a while
    assert (await Finder(db, embedder).tools("place7", SearchFilters(), 1))[0].semantic is not None
    embedder.is_away = True
    assert (await finder.tools("place7", SearchFilters(), 1))[0].semantic is None


async def test_a_model_that_fails_on_the_way_costs_no_vector(db: Database) -> None:
    embedder = Moody()
    embedder.is_away = False
    finder = await indexed(db, *MANY, embedder=embedder)
    embedder.is_away = True
    await publish(db, tool("late", "Comes late to the town of place7"))
    indexer = Indexer(db, embedder)
    assert await indexer.catch_up()
    assert await db.value("SELECT count(*) FROM search_documents WHERE vector IS NULL") == 1
    assert "late" in await found(finder, "comes late")
    assert await indexer.catch_up()  # it does not ask again at once, and loses nothing meanwhile
    assert await Indexer(db, None).catch_up()  # nor does a process that has no model
    assert await db.value("SELECT count(*) FROM search_documents WHERE vector IS NULL") == 1
    embedder.is_away = False
    assert await Indexer(db, embedder).catch_up()
    assert await db.value("SELECT count(*) FROM search_documents WHERE vector IS NULL") == 0


async def test_a_model_with_other_dimensions_is_another_model(db: Database) -> None:
    finder = await indexed(db, *MANY, embedder=Buckets(dimensions=16))
    assert (await finder.tools("tool counts to 7", SearchFilters(), 1))[0].semantic is not None
    swapped = Buckets(dimensions=24)
    assert (await found(Finder(db, swapped), "tool counts to 7", top_k=1)) == ["tool_7"]  # by its words, meanwhile
    assert await Indexer(db, swapped).catch_up()
    best = (await Finder(db, swapped).tools("tool counts to 7", SearchFilters(), 1))[0]
    assert (best.name, best.semantic is not None) == ("tool_7", True)


async def test_two_processes_with_different_models_do_not_embed_against_each_other(db: Database) -> None:
    await publish(db, *MANY)
    first, second = Counting("first"), Counting("second")
    indexers = [Indexer(db, first), Indexer(db, second)]
    for _ in range(5):
        for indexer in indexers:
            assert await indexer.catch_up()
    assert (first.embedded, second.embedded) == (len(MANY), len(MANY))
    await publish(db, tool("new", "Something new"))
    for indexer in (*indexers, *indexers):
        assert await indexer.catch_up()
    assert (first.embedded, second.embedded) == (len(MANY), len(MANY) + 1)
    assert (await found(Finder(db, first), "something new"))[0] == "new"


async def test_another_table_embeds_everything_again(db: Database) -> None:
    await publish(db, tool("umbrella", "天气预报"), *MANY)
    for embedder in (Buckets("longhouse/table-0", 256), embedded.EmbeddedEmbedder()):
        assert await Indexer(db, embedder).catch_up()
        finder = Finder(db, embedder)
        assert {row["model"] for row in await status(db)} == {embedder.name}
        best = (await finder.tools("天气", SearchFilters(), 1))[0]
        assert (best.name, best.semantic is not None) == ("umbrella", True)
    # No word of it is in the description: only the vectors of the new table know what it means.
    assert (await found(finder, "прогноз погоды"))[0] == "umbrella"


async def test_only_the_first_search_waits_for_an_index_that_is_being_built(db: Database) -> None:
    await publish(db, *MANY)
    async with db.sole(index.SOLE_WRITER), Indexer(db, None).working() as indexer:
        first, later = asyncio.create_task(indexer.ready()), asyncio.create_task(indexer.ready())
        done, waiting = await asyncio.wait({first, later}, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        assert done == {later}
        assert waiting == {first}
        await asyncio.wait_for(first, 10)


async def test_republishing_a_tool_does_not_make_its_words_common(db: Database) -> None:
    some = [tool(f"post_{n}", f"Sends letter{n} by email") for n in range(10)]
    finder = await indexed(db, *some, tool("sky", "The weather forecast"))
    before = [(hit.name, hit.lexical) for hit in await finder.tools("weather forecast email", SearchFilters(), 3)]
    for version in range(30):
        await publish(db, tool("sky", "The weather forecast", f"parameter{version}"))
        assert await Indexer(db, None).catch_up()
    await publish(db, tool("sky", "The weather forecast"))
    assert await Indexer(db, None).catch_up()
    after = [(hit.name, hit.lexical) for hit in await finder.tools("weather forecast email", SearchFilters(), 3)]
    assert [name for name, _ in after] == [name for name, _ in before]
    assert [score for _, score in after] == pytest.approx([score for _, score in before], abs=1e-3)
