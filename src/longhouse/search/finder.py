"""Hybrid search for tools and templates: lexical scores and vectors, filtered before ranking."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import asyncpg
import msgspec

from longhouse.arrays import np, npt
from longhouse.models.protocol import Embedder
from longhouse.search import ranking, scores
from longhouse.search.kept_results import KeptResults, State
from longhouse.search.postings_cache import PostingsCache
from longhouse.search.query_embedder import QueryEmbedder, SearchQuery
from longhouse.search.ranking import Scores
from longhouse.search.shards import Shards
from longhouse.store.catalog.repository import Kind
from longhouse.store.database import Database
from longhouse.store.search import index
from longhouse.store.search import query as search
from longhouse.store.search.query import SearchFilters
from longhouse.store.search.vectors import Places, VectorCache, Vectors, VectorSet, top

WHOLE: Final = 60
"""Candidates by the words of the whole query."""
PER_CLAUSE: Final = 20
"""Candidates by the words of each clause."""
NEAREST: Final = 30
"""Candidates by the query's vector. Most are found by words too; these cover queries in other words."""
NARROW: Final = 1000
"""Up to this many permitted documents, all are candidates."""

MOST_KEPT: Final = 256
"""Searches whose hits a process keeps: a few megabytes at most. Of a query, which people said, it keeps a digest."""
MOST_LISTS: Final = 16
"""Lists of all permitted documents, cut where they are many, that a process keeps: a few megabytes at most."""


class SearchHit(msgspec.Struct, frozen=True):
    """A search result. `score` ranks within one search; `lexical` and `semantic` are comparable between searches."""

    name: str
    version: int
    score: float
    lexical: float
    """The share of the highest lexical score that the query's words could reach."""
    semantic: float | None
    """The cosine similarity; None without a vector."""
    clause: float | None
    """The score of the best clause; None for a query without clauses."""


class Finder:
    """Searches the index by words and, with an embedding model, by vectors."""

    def __init__(
        self,
        db: Database,
        embedder: Embedder | None,
        ready: Callable[[], Awaitable[None]] | None = None,
        reached: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.db = db
        self._ready = ready
        self.reached = reached
        """Waits, for a while, until what was published is found; None where nobody writes the index."""
        self._postings = PostingsCache(db)
        self._vectors = VectorCache(db)
        self._queries = QueryEmbedder(db, embedder)
        self._found = KeptResults[list[SearchHit]](MOST_KEPT)
        self._lists = KeptResults[Sequence[asyncpg.Record]](MOST_LISTS)

    async def tools(self, asked: str | SearchQuery, filters: SearchFilters, top_k: int) -> list[SearchHit]:
        """Each step of a turn asks the same: while neither catalog nor index has changed, it is found once."""
        if not isinstance(asked, str):
            return await self.find("tool", asked, filters, top_k)
        # Read before the search: what changes meanwhile makes the next one search again.
        digest = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).digest()
        key, now = (digest, filters, top_k), await index.now(self.db, "tool")
        if (known := self._found.get(key, now)) is not None:
            return list(known)
        query = await self.query(asked)
        found = await self.find("tool", query, filters, top_k, now)
        if self._queries.is_complete(query):
            self._found.keep(key, now, found)
        return list(found)

    async def all_tools(self, filters: SearchFilters, most: int) -> dict[str, int] | None:
        """Name -> active version of all permitted tools, by name; None if they are more than `most`."""
        if self._ready:
            await self._ready()
        rows = await self._all("tool", filters, most, await index.now(self.db, "tool"))
        return None if rows is None else {row["name"]: row["version"] for row in sorted(rows)}

    async def query(self, text: str) -> SearchQuery:
        if self._ready:
            await self._ready()
        return await self._queries.query(text)

    async def find(
        self, kind: Kind, query: SearchQuery, filters: SearchFilters, top_k: int, now: State | None = None
    ) -> list[SearchHit]:
        """`now` is the state of the index, where it was read before."""
        words = [ranking.words(text) for text in query.texts]
        terms = [ranking.with_parts(text) for text in words]
        wanted = list(dict.fromkeys(term for text in terms for term in text))
        if filters.allow == () or top_k <= 0 or (not wanted and query.vectors is None):
            return []
        found = await self._postings.read(kind, filters.caller, wanted, now)
        is_busy = found.count * len(terms) >= scores.BUSY
        lexical = await asyncio.to_thread(found.scores, terms) if is_busy else found.scores(terms)
        near = await self._vectors.of(query.space, found.shards.slots) if query.space else None
        evidence = _Evidence(lexical, near, query.vectors)
        rows = None
        if filters.allow is not None or found.shards.size <= NARROW:
            rows = await self._all(kind, filters, NARROW, now)
        best = sum(found.rarity(term) for term in words[0]) * (ranking.K1 + 1)
        if rows is None:
            return _hits(*await self._candidates(kind, filters, found.shards, evidence, top_k), best, top_k)
        return _hits(*evidence.of_rows(rows, found.shards), best, top_k)

    async def _all(
        self, kind: Kind, filters: SearchFilters, most: int, now: State | None
    ) -> Sequence[asyncpg.Record] | None:
        """All permitted documents; None where they are more than `most`."""
        key = (kind, filters, most)
        rows = self._lists.get(key, now)
        if rows is None:
            rows = await search.some(self.db, kind, filters, most + 1)
            self._lists.keep(key, now, rows)
        return rows if len(rows) <= most else None

    async def _candidates(
        self, kind: Kind, filters: SearchFilters, shards: Shards, evidence: _Evidence, top_k: int
    ) -> tuple[Sequence[asyncpg.Record], _Scored]:
        """The permitted documents that lead by words or by the query's vector, and how well they fit."""
        leading = await evidence.leading()
        # Mostly the index is current and all of them are permitted: then those that decide what is found are enough.
        places = np.unique(np.concatenate(leading))
        scored = evidence.of(places)
        decisive = places[scored.decisive(top_k)]
        rows = await search.at(self.db, kind, filters, shards.numbers(decisive), by_index=True)
        if len(rows) == len(decisive):
            return rows, scored.at(np.searchsorted(places, shards.places(rows)))
        rows = await search.at(self.db, kind, filters, shards.numbers(places))
        there = shards.mask(rows)
        if any(2 * np.count_nonzero(there[led]) < len(led) for led in leading):
            # Documents that are not permitted took too many places: rank again among the permitted ones only.
            leading = await evidence.leading(shards.mask(await search.permitted(self.db, kind, filters)))
            rows = await search.at(self.db, kind, filters, shards.numbers(np.unique(np.concatenate(leading))))
        return evidence.of_rows(rows, shards)


class _Evidence(msgspec.Struct, frozen=True):
    """What words and vectors say of all documents: a row for the whole query, and one for each clause."""

    lexical: Scores
    near: VectorSet | None
    vectors: Vectors | None

    async def leading(self, among: npt.NDArray[np.bool_] | None = None) -> list[Places]:
        """The best indexes by the words of the whole query, by those of each clause, and by the query's vector."""
        lexical = self.lexical if among is None else self.lexical * among
        leading = [top(row, WHOLE if nth == 0 else PER_CLAUSE) for nth, row in enumerate(lexical)]
        if self.near is None or self.vectors is None:
            return leading
        return [*leading, await self.near.nearest(self.vectors[0], NEAREST, among)]

    def of(self, places: Places) -> _Scored:
        similar = None
        if self.near is not None and self.vectors is not None:
            similar = self.near.between(self.vectors, places)
        return _Scored.of(self.lexical[:, places], similar)

    def of_rows(self, rows: Sequence[asyncpg.Record], shards: Shards) -> tuple[Sequence[asyncpg.Record], _Scored]:
        """The rows of documents that were there when the postings were read, and how well they fit."""
        places = shards.places(rows)
        known = [row for row, place in zip(rows, places.tolist(), strict=True) if place >= 0]
        return known, self.of(places[places >= 0])


class _Scored(msgspec.Struct, frozen=True):
    """How well some documents fit, each in comparison with the others."""

    lexical: Scores
    similar: Scores | None
    scores: Scores
    clause: Scores | None

    @classmethod
    def of(cls, lexical: Scores, similar: Scores | None) -> _Scored:
        meanings = [None] * len(lexical) if similar is None else similar
        whole, *clauses = map(ranking.fused, lexical, meanings)
        best = np.maximum.reduce(clauses) if clauses else None
        return cls(lexical, similar, ranking.with_clauses(whole, clauses), best)

    def at(self, nth: Places) -> _Scored:
        """Some of them, with the scores that they have among all."""
        return _Scored(
            self.lexical[:, nth],
            None if self.similar is None else self.similar[:, nth],
            self.scores[nth],
            None if self.clause is None else self.clause[nth],
        )

    def decisive(self, top_k: int) -> Places:
        """The best ones, and those with the highest of each score, by which all are scaled: if all of these are
        permitted, the scores stand."""
        if len(self.scores) <= top_k:
            return np.arange(len(self.scores))
        decide = self.scores >= np.partition(self.scores, -top_k)[-top_k]
        for rows in (self.lexical, self.similar):
            if rows is not None:
                decide[rows.argmax(axis=1)] = True
        return np.flatnonzero(decide)


def _hits(rows: Sequence[asyncpg.Record], found: _Scored, best: float, top_k: int) -> list[SearchHit]:
    """`best`: the highest lexical score that the query's words could reach."""
    names, scores = [row["name"] for row in rows], found.scores
    order = sorted(np.flatnonzero(scores > 0).tolist(), key=lambda nth: (-scores[nth], names[nth]))
    return [
        SearchHit(
            name=names[nth],
            version=rows[nth]["version"],
            score=float(scores[nth]),
            lexical=float(found.lexical[0, nth]) / best if best > 0 else 0.0,
            semantic=float(found.similar[0, nth]) or None if found.similar is not None else None,
            clause=float(found.clause[nth]) if found.clause is not None else None,
        )
        for nth in order[:top_k]
    ]
