"""Embeddings from an OpenAI-compatible `/embeddings` endpoint. Every failure becomes a ProviderError."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from longhouse.arrays import np, npt
from longhouse.errors import ProviderError
from longhouse.models.http.client import Endpoint
from longhouse.models.http.failure import HttpFailure
from longhouse.models.openai import provider_error

AT_ONCE: Final = 128
"""Texts in one request: some endpoints accept no more."""
MOST_DIMENSIONS: Final = 4000
"""The limit of an index over half-precision vectors."""
WITHIN: Final = 30.0
"""Seconds for one request."""
MOST_BYTES: Final = 64 * 2**20


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _EmbeddingsAnswer(msgspec.Struct):
    data: list[_Vector]


class EndpointEmbedder:
    """An embedding model behind an endpoint. Its dimensions are known after the first answer."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self.name = model
        self.dimensions = 0
        self._endpoint = endpoint.at("embeddings")

    async def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        parts = [np.zeros((0, self.dimensions), np.float32)]
        for start in range(0, len(texts), AT_ONCE):
            parts.append(await self._embed([text or " " for text in texts[start : start + AT_ONCE]]))
        return np.concatenate(parts[1:] or parts)

    async def _embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        name = self._endpoint.name
        body = msgspec.json.encode({"model": self.name, "input": texts, "encoding_format": "float"})
        try:
            async with self._endpoint.post(body, most_bytes=MOST_BYTES) as answer:
                found = msgspec.json.decode(await answer.body(), type=_EmbeddingsAnswer).data
            found.sort(key=lambda one: one.index)
            vectors: npt.NDArray[np.float32] = np.array([one.embedding for one in found], np.float32)
        except HttpFailure as failure:
            raise provider_error(self._endpoint, failure) from None
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProviderError(f"{name} answered with something that is not embeddings", retryable=False) from error
        self._check(vectors, len(texts))
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        lengths[lengths == 0] = 1
        vectors /= lengths
        return vectors

    def _check(self, vectors: npt.NDArray[np.float32], count: int) -> None:
        name = self._endpoint.name
        if vectors.ndim != 2 or len(vectors) != count or not np.isfinite(vectors).all():
            raise ProviderError(f"{name} did not answer with one vector for each text", retryable=False)
        dimensions = vectors.shape[1]
        if not 0 < dimensions <= MOST_DIMENSIONS or self.dimensions not in (0, dimensions):
            raise ProviderError(
                f"{name} answered with vectors of {dimensions} dimensions: up to {MOST_DIMENSIONS} can be kept, and"
                " a model always has the same",
                retryable=False,
            )
        self.dimensions = dimensions
