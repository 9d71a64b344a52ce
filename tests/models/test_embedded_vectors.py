"""The embeddings that ship with us."""

import numpy as np
import pytest

from longhouse.models import embedded


async def test_texts_of_the_same_meaning_are_near_to_each_other() -> None:
    embedder = await embedded.load()
    assert embedder is not None
    rain, weather, tax = await embedder.embed(["Will it rain tomorrow?", "weather forecast", "income tax declaration"])
    assert rain @ weather > rain @ tax


async def test_vectors_have_length_one_and_the_same_dimensions() -> None:
    embedder = await embedded.load()
    assert embedder is not None
    vectors = await embedder.embed(["one", "", "два", "三", "x" * 50_000, *("many" for _ in range(40))])
    assert vectors.shape == (45, embedder.dimensions)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-3)
    assert (await embedder.embed([])).shape == (0, embedder.dimensions)


async def test_it_is_read_once() -> None:
    first, second = await embedded.load(), await embedded.load()
    assert first is not None
    assert second is not None
    assert first.name == second.name
    assert np.array_equal(await first.embed(["same"]), await second.embed(["same"]))
