"""Search queries: the text, its clauses, and a vector of each where there is an embedding model."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from longhouse.errors import ProviderError
from longhouse.models.protocol import Embedder
from longhouse.search import ranking
from longhouse.store.database import Database
from longhouse.store.search import index
from longhouse.store.search.vectors import Space, Vectors

log = structlog.get_logger()

EMBED_TIMEOUT: Final = 5.0
"""Timeout in seconds for the embedding of a query."""
RETRY_AFTER: Final = 30.0
"""Seconds before a failed embedding model is tried again."""


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """A search query: the whole text, then its clauses; with a vector of each where there is an embedding model."""

    texts: tuple[str, ...]
    vectors: Vectors | None = None
    space: Space | None = None


class QueryEmbedder:
    """Splits and embeds queries; while the embedding model fails, queries have words alone."""

    def __init__(self, db: Database, embedder: Embedder | None) -> None:
        self._db = db
        self._embedder = embedder
        self._space: Space | None = None
        self._retry_at = 0.0

    async def query(self, text: str) -> SearchQuery:
        return await self.embedded(split(text))

    async def embedded(self, texts: tuple[str, ...]) -> SearchQuery:
        vectors = await self._embedded(texts)
        if vectors is None or self._embedder is None:
            return SearchQuery(texts)
        dimensions = vectors.shape[1]
        if self._space is None or self._space.dimensions != dimensions:
            self._space = await index.space(self._db, self._embedder.name)
        if self._space is None or self._space.dimensions != dimensions:
            return SearchQuery(texts)  # nothing is indexed with this model yet
        return SearchQuery(texts, vectors, self._space)

    async def _embedded(self, texts: Sequence[str]) -> Vectors | None:
        """None without a model, and for a while after a failure: a search does not wait for the timeout each time."""
        now = asyncio.get_running_loop().time()
        if self._embedder is None or now < self._retry_at:
            return None
        try:
            async with asyncio.timeout(EMBED_TIMEOUT):
                return await self._embedder.embed(texts)
        except (ProviderError, TimeoutError) as error:
            self._retry_at = now + RETRY_AFTER
            why = str(error) or f"no answer within {EMBED_TIMEOUT:.0f} seconds"
            message = "The embedding model failed; for a while, searches use words alone."
            log.warning("embedding_failed", message=message, error=why)
            return None


def split(text: str) -> tuple[str, ...]:
    """The text, then its clauses."""
    text = ranking.shortened(text)
    return (text, *ranking.clauses(text))
