"""The embeddings that ship with us: vectors of words, averaged. They need no network, no key and no torch."""

import asyncio
import importlib.util
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import structlog

log = structlog.get_logger()

PACKAGE: Final = "wordllama"
CONFIG: Final = "l2_supercat"
DIMENSIONS: Final = 256
FEW: Final = 16
"""Up to so many texts are embedded at once, within a millisecond; more go to a thread."""


MISSING: Final = "the embeddings that ship with us are not installed here: tools are found by their words alone"


class EmbeddedEmbedder:
    name = f"{PACKAGE}/{CONFIG}-{DIMENSIONS}"
    dimensions = DIMENSIONS

    def __init__(self, words: Any) -> None:
        self._words = words

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if len(texts) <= FEW:
            return self._embed(texts)
        return await asyncio.to_thread(self._embed, texts)

    def _embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if not texts:
            return np.zeros((0, DIMENSIONS), np.float32)
        # The model knows no empty text: a space has a vector, if one that is near to nothing.
        return np.asarray(self._words.embed([text or " " for text in texts], norm=True), np.float32)


async def load() -> EmbeddedEmbedder | None:
    """The embedder; None, said once in the log, where its package is not there for this machine."""
    words = await asyncio.to_thread(_load)
    if words is None:
        log.warning(MISSING, package=PACKAGE)
        return None
    return EmbeddedEmbedder(words)


@cache
def _load() -> Any:
    """Read once for the whole process: the weights are sixteen megabytes and never change."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    # Threads of its own for a handful of texts cost more than they bring, and they do not survive a fork.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from wordllama import WordLlama  # noqa: PLC0415 - a second of imports, and not there on every machine

    # The tokenizer lies beside the weights, and is looked for in the cache only: the package is its own cache.
    folder = Path(spec.submodule_search_locations[0])
    return WordLlama.load(CONFIG, cache_dir=folder, dim=DIMENSIONS, disable_download=True)


class LazyEmbedder:
    """The same, read when the first text comes: a process that searches for nothing does not spend the second."""

    name = EmbeddedEmbedder.name
    dimensions = EmbeddedEmbedder.dimensions

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return await EmbeddedEmbedder(await asyncio.to_thread(_load)).embed(texts)


def lazy() -> LazyEmbedder | None:
    """None, said in the log, where the package is not there for this machine."""
    if importlib.util.find_spec(PACKAGE) is None:
        log.warning(MISSING, package=PACKAGE)
        return None
    return LazyEmbedder()
