"""The embeddings that ship with us."""

import math

from longhouse.models import embedded


async def test_texts_of_the_same_meaning_are_near_to_each_other() -> None:
    embedder = await embedded.load()
    assert embedder is not None
    rain, weather, tax = await embedder.embed(["Will it rain tomorrow?", "weather forecast", "income tax declaration"])
    assert near(rain, weather) > near(rain, tax)


async def test_vectors_have_length_one_and_the_same_dimensions() -> None:
    embedder = await embedded.load()
    assert embedder is not None
    vectors = await embedder.embed(["one", "", "два", "三", "x" * 50_000, *("many" for _ in range(40))])
    assert {len(vector) for vector in vectors} == {embedder.dimensions}
    assert all(math.isclose(near(vector, vector), 1, abs_tol=1e-3) for vector in vectors)
    assert await embedder.embed([]) == []


async def test_it_is_read_once() -> None:
    first, second = await embedded.load(), await embedded.load()
    assert first is not None
    assert second is not None
    assert first.name == second.name
    assert await first.embed(["same"]) == await second.embed(["same"])


def near(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
