"""An embedding model that nobody waits for longer than they can: without vectors, words find what they find."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final

import structlog

from longhouse.errors import ProviderError
from longhouse.models.embedding_table import EmbeddedEmbedder
from longhouse.models.protocol import Embedder
from longhouse.store.database import Database
from longhouse.store.search import index
from longhouse.store.search.vectors import Space, Vectors

log = structlog.get_logger()

EMBED_WITHIN: Final = 5.0
"""Seconds that somebody waits for vectors."""
HURRIED_WITHIN: Final = 0.5
"""The same where a chat waits, or may come to wait."""
RETRY_AFTER: Final = 30.0
"""Seconds before a model that failed is asked again."""
FIRST_PAUSE: Final = 1.0
"""The same after one slow answer, which every model gives now and then; twice as long after each further one."""


async def space_of(db: Database, embedder: Embedder) -> Space:
    """The vector space of an embedding model, which is asked for its dimensions if it does not say."""
    dimensions = embedder.dimensions or len((await embedder.embed(["dimensions"]))[0])
    return await index.make_space(db, embedder.name, dimensions)


class BoundedEmbedder:
    """Asks an embedding model, with a limit; after a failure, for a while not at all."""

    def __init__(self, embedder: Embedder | None, *, consequence: str) -> None:
        """`consequence`: what follows from a failure, for the log."""
        self._embedder = embedder
        self._consequence = consequence
        self._retry_at = 0.0
        self._in_vain = 0.0
        self._pause = 0.0

    async def embed(self, texts: Sequence[str], within: float = math.inf) -> Vectors | None:
        """None without a model, if it fails or gives no answer within these seconds, and for a while after that.

        A caller with a longer limit than the failed one still asks: the model may only be slow.
        """
        if self._embedder is None or (within <= self._in_vain and self._now() < self._retry_at):
            return None
        # A table in this process has nothing to wait for, however busy the machine is.
        is_here = isinstance(self._embedder, EmbeddedEmbedder)
        try:
            async with asyncio.timeout(None if is_here or math.isinf(within) else within):
                vectors = await self._embedder.embed(texts)
        except TimeoutError:
            pause = min(max(2 * self._pause, FIRST_PAUSE), RETRY_AFTER)
            self._stop_asking(f"no answer within {within:g} seconds", within, pause)
        except ProviderError as error:
            self.failed(error)
        else:
            self._retry_at = self._in_vain = self._pause = 0.0
            return vectors
        return None

    def failed(self, error: ProviderError) -> None:
        """Nobody asks for a while."""
        self._stop_asking(str(error), math.inf, RETRY_AFTER)

    def _stop_asking(self, why: str, waited: float, pause: float) -> None:
        log.warning("embedding_failed", message=f"The embedding model failed; {self._consequence}.", error=why)
        is_paused = self._now() < self._retry_at
        self._in_vain = max(waited, self._in_vain) if is_paused else waited
        # From now on, and not from when it was asked: the wait is no part of the pause.
        self._pause, self._retry_at = pause, self._now() + pause

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
