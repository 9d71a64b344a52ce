"""Search queries: the text, its clauses, and a vector of each where there is an embedding model."""

from __future__ import annotations

import msgspec

from longhouse import arrays
from longhouse.models.protocol import Embedder
from longhouse.search import ranking
from longhouse.search.bounded_embedder import EMBED_WITHIN, BoundedEmbedder
from longhouse.store.database import Database
from longhouse.store.search import index
from longhouse.store.search.vectors import Space, Vectors


class SearchQuery(msgspec.Struct, frozen=True):
    """A search query: the whole text, then its clauses; with a vector of each where there is an embedding model."""

    texts: tuple[str, ...]
    vectors: Vectors | None = None
    space: Space | None = None


class QueryEmbedder:
    """Splits and embeds queries; while the embedding model fails, queries have words alone."""

    def __init__(self, db: Database, embedder: Embedder | None) -> None:
        self._db = db
        self._embedder = embedder
        self._bounded = BoundedEmbedder(embedder, consequence="for a while, searches use words alone")
        self._space: Space | None = None

    def is_complete(self, query: SearchQuery) -> bool:
        """Is nothing missing because the embedding model failed, or has indexed nothing yet?"""
        return query.vectors is not None or self._embedder is None

    async def query(self, text: str) -> SearchQuery:
        return await self.embedded(split(text))

    async def embedded(self, texts: tuple[str, ...], *, within: float = EMBED_WITHIN) -> SearchQuery:
        await arrays.loaded()  # whoever has a query computes with arrays next
        vectors = await self._bounded.embed(texts, within)
        if vectors is None or self._embedder is None:
            return SearchQuery(texts)
        dimensions = vectors.shape[1]
        if self._space is None or self._space.dimensions != dimensions:
            self._space = await index.space(self._db, self._embedder.name)
        if self._space is None or self._space.dimensions != dimensions:
            return SearchQuery(texts)  # nothing is indexed with this model yet
        return SearchQuery(texts, vectors, self._space)


def split(text: str) -> tuple[str, ...]:
    """The text, then its clauses."""
    text = ranking.shortened(text)
    return (text, *ranking.clauses(text))
