"""Postings that are kept are those that Postgres has: for each caller, at each moment, in any order."""

import asyncio
import random
from collections.abc import Sequence

import numpy as np
import pytest

from longhouse.search import scores
from longhouse.search.indexer import Indexer
from longhouse.search.postings_cache import PostingsCache
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.search import index, postings
from longhouse.store.search.query import SearchFilters
from search_helpers import found, indexed, publish, tool

WORDS = ("oven", "bread", "letter", "stamp", "train", "печь", "хлеб", "письмо", "火车", "面包", "nowhere")


class Noted:
    """Which terms Postgres was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[list[str]] = []
        read = postings.read

        async def noted(db: Database, kind: str, caller: str | None, terms: Sequence[str]) -> object:
            self.asked.append(list(terms))
            return await read(db, kind, caller, terms)

        monkeypatch.setattr(postings, "read", noted)


async def assert_as_in_postgres(db: Database, cache: PostingsCache, caller: str | None, terms: Sequence[str]) -> None:
    """The scores by what is kept are those by all that Postgres has."""
    kept = await cache.read("tool", caller, terms, await index.now(db, "tool"))
    fresh = scores.weighted(await postings.read(db, "tool", caller, terms))
    texts = [terms, *([term] for term in terms)]
    assert kept.shards.signature == fresh.shards.signature
    assert np.allclose(kept.scores(texts), fresh.scores(texts), rtol=1e-5)
    assert [kept.rarity(term) for term in terms] == [fresh.rarity(term) for term in terms]
    assert kept.having(terms).tolist() == fresh.having(terms).tolist()


async def test_a_term_is_read_once_and_only_what_is_missing_is_read(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = await indexed(db, tool("baker", "Bakes bread in an oven"), tool("post", "Brings a letter"))
    noted = Noted(monkeypatch)
    assert await found(finder, "bread") == ["baker"]
    assert await found(finder, "bread", caller="me") == ["baker"], "who sees the same shards reads them once to know"
    assert set(await found(finder, "a letter with bread")) == {"post", "baker"}
    assert set(await found(finder, "bread letter nowhere")) == {"baker", "post"}
    assert await found(finder, "nowhere letter") == ["post"], "what no document has is known too"
    assert noted.asked == [["bread"], ["bread"], ["letter"], ["nowher"]]


async def test_what_is_kept_is_what_postgres_has_whoever_changes_it(db: Database) -> None:
    """Two processes search, several searches at once, what a third publishes, changes and retires; owners have tools of
    their own."""
    chance, catalog, indexer = random.Random(5), Catalog(db), Indexer(db, None)
    caches = [PostingsCache(db), PostingsCache(db, most=6_000)]
    for turn in range(40):
        name, owner = f"tool_{chance.randrange(12)}", chance.choice((None, "a", "b"))
        text = " ".join(chance.sample(WORDS[:-1], 3))
        await publish(db, tool(f"{owner or 'all'}_{name}", text, owner=owner))
        if turn % 7 == 6:
            await catalog.tools.deactivate(f"{owner or 'all'}_{name}")
        if turn % 3:
            assert await indexer.catch_up()
        asked = [(cache, caller, chance.sample(WORDS, 4)) for cache in caches for caller in (None, None, "a", "b")]
        await asyncio.gather(*(assert_as_in_postgres(db, *each) for each in asked))
    for cache in caches:
        await assert_as_in_postgres(db, cache, None, WORDS)
    assert caches[1].nbytes <= 6_000 < caches[0].nbytes


async def test_shards_that_were_asked_for_longest_ago_make_room(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    await indexed(db, *(tool(f"of_{owner}", "Bakes bread", owner=owner) for owner in ("a", "b", "c")))
    cache, now, noted = PostingsCache(db, most=6_000), await index.now(db, "tool"), Noted(monkeypatch)
    for caller in ("a", "b", "a", "c", "a"):
        await cache.read("tool", caller, ["bread"], now)
    assert len(noted.asked) == 3, "those of a were used last when those of c came"
    await cache.read("tool", "b", ["bread"], now)
    assert len(noted.asked) == 4


async def test_words_that_no_document_has_take_room_and_one_long_question_takes_only_a_part(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    await indexed(db, tool("baker", "Bakes bread"))
    cache, now, noted = PostingsCache(db, most=20_000), await index.now(db, "tool"), Noted(monkeypatch)
    await cache.read("tool", None, ["bread"], now)
    await cache.read("tool", None, [f"absent{n}" for n in range(100)], now)
    await cache.read("tool", None, ["bread"], now)
    assert len(noted.asked) == 2, "what others ask for was not dropped for it"
    for number in range(100):
        await cache.read("tool", None, [f"rare{number}"], now)
        await cache.read("tool", None, ["bread"], now)
    assert noted.asked.count(["bread"]) == 1, "what is asked for again stays"
    for number in range(100):
        await cache.read("tool", None, [f"missing{number}"], now)
    await cache.read("tool", None, ["bread"], now)
    assert noted.asked[-1] == ["bread"]
    assert cache.nbytes <= 20_000


async def test_a_term_counts_more_once_other_documents_that_have_it_are_gone(db: Database) -> None:
    """Nothing is added meanwhile: the shard has as many slots as before."""
    await indexed(db, *(tool(f"baker_{n}", "Bakes bread") for n in range(4)), tool("rail", "Drives a train"))
    cache = PostingsCache(db)
    await assert_as_in_postgres(db, cache, None, ["bread"])
    await Catalog(db).tools.deactivate("baker_0")
    assert await Indexer(db, None).catch_up()
    await assert_as_in_postgres(db, cache, None, ["train"])
    await assert_as_in_postgres(db, cache, None, ["bread"])


async def test_an_index_that_changes_between_two_looks_is_read_as_a_whole(db: Database) -> None:
    """The state is read before the postings: by then they may be newer, and places in them other ones."""
    await indexed(db, tool("baker", "Bakes bread in an oven"))
    cache, before = PostingsCache(db), await index.now(db, "tool")
    assert (await cache.read("tool", None, ["bread"], before)).count == 1
    await publish(db, tool("mill", "Grinds flour for bread"), tool("baker", "Sells stamps"))
    assert await Indexer(db, None).catch_up()
    late = await cache.read("tool", None, ["bread", "flour", "stamp"], before)
    assert late.shards.signature == scores.weighted(await postings.read(db, "tool", None, [])).shards.signature
    assert [int(late.having([term]).sum()) for term in ("bread", "flour", "stamp")] == [1, 1, 1]
    assert late.having(["bread"]).tolist() == late.having(["flour"]).tolist()


async def test_an_index_that_was_empty_is_read_again_once_it_has_something(db: Database) -> None:
    finder = await indexed(db)
    assert await found(finder, "bread") == []
    await publish(db, tool("baker", "Bakes bread"), tool("mine", "Eats bread", owner="me"))
    assert await Indexer(db, None).catch_up()
    assert await found(finder, "bread") == ["baker"]
    assert set(await found(finder, "bread", caller="me")) == {"baker", "mine"}
    assert await found(finder, "bread", caller="you") == ["baker"], "what is kept for one owner is not another's"
    assert [hit.name for hit in await finder.tools("bread", SearchFilters(deny=("baker",)), 5)] == []
