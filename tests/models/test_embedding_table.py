"""The embeddings that ship with us, and tables of one's own."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from longhouse.errors import SetupError
from longhouse.models import embedding_table

# The first six numbers of a text's vector and its last one: a table or a way of reading that changes them needs a new
# name, or old vectors would be compared with new ones.
PINNED = [
    ("Will it rain in Oslo tomorrow?", [0.0689, 0.0357, 0.1469, -0.0782, -0.0036, -0.1214, 0.0134]),
    ("Какая завтра погода в Казани?", [0.1566, 0.0071, 0.0185, -0.0843, -0.0280, -0.0512, 0.0087]),
    ("明天上海会下雨吗", [0.0977, 0.0680, -0.0290, -0.1237, 0.0448, -0.0226, 0.0339]),
    ("Send the отчёт 报告 to Bob via API v2", [-0.2093, 0.0774, -0.1371, -0.0355, -0.0376, -0.1144, -0.0700]),
    ("\x00 ½ ☃ zzqqxx %%", [-0.0253, 0.0116, -0.1155, 0.0914, -0.0331, 0.0086, 0.0171]),
]


async def test_five_vectors_are_what_they_always_were() -> None:
    embedder = embedding_table.EmbeddedEmbedder()
    assert (embedder.name, embedder.dimensions) == ("longhouse/table-1-110cce34", 256)
    vectors = await embedder.embed([text for text, _ in PINNED])
    for vector, (text, numbers) in zip(vectors, PINNED, strict=True):
        assert [*vector[:6], vector[-1]] == pytest.approx(numbers, abs=1e-4), text


async def test_texts_of_the_same_meaning_are_near_to_each_other_in_every_language() -> None:
    embedder = embedding_table.EmbeddedEmbedder()
    weather = await embedder.embed(["weather forecast", "прогноз погоды", "天气预报"])
    taxes = await embedder.embed(["income tax return", "налоговая декларация", "个人所得税申报"])
    for same in (weather, taxes):
        assert (same @ same.T).min() > 0.3
    assert (weather @ taxes.T).max() < 0.1


async def test_vectors_have_length_one_or_are_nothing() -> None:
    embedder = embedding_table.EmbeddedEmbedder()
    vectors = await embedder.embed(
        ["one", "", "два", "三", "x" * 50_000, " \n\0", "the of a, и не. 的吗?", *("text" for _ in range(40))]
    )
    assert vectors.shape == (47, embedder.dimensions)
    lengths = np.linalg.norm(vectors, axis=1)
    assert [nth for nth, length in enumerate(lengths) if length == 0] == [1, 5, 6], "without a word that says something"
    assert lengths[lengths > 0] == pytest.approx(1, abs=1e-3)
    assert (await embedder.embed([])).shape == (0, embedder.dimensions)


async def test_few_texts_and_many_have_the_same_vectors() -> None:
    embedder, texts = embedding_table.EmbeddedEmbedder(), [f"the {n}th text" for n in range(embedding_table.FEW + 1)]
    assert np.array_equal(await embedder.embed(texts), np.concatenate([await embedder.embed([text]) for text in texts]))


def written(folder: Path, **card: object) -> Path:
    """A table of four pieces and one pair, two dimensions."""
    folder.mkdir(exist_ok=True)
    (folder / "table.json").write_bytes(msgspec.json.encode({"name": "toy", "dimensions": 2, **card}))
    (folder / "vocab.txt").write_text("[UNK]\nrain\n天\n气", encoding="utf-8")
    rows = np.array([[0, 0], [7, 0], [0, 7], [0, 7], [-7, -7]]) + 8
    packed = (rows[:, 0::2] | rows[:, 1::2] << 4).astype(np.uint8)
    np.savez(folder / "table.npz", q=packed, s=np.ones(5, np.float16), pairs=np.array([2 * embedding_table.PAIR + 3]))
    return folder


async def test_a_table_of_ones_own_is_read_and_has_its_own_name(tmp_path: Path) -> None:
    embedder = embedding_table.EmbeddedEmbedder(written(tmp_path / "toy"))
    assert (embedder.name, embedder.dimensions) == ("longhouse/toy", 2)
    rain, sky, weather = await embedder.embed(["Rain", "天", "天气"])
    assert rain.tolist() == [1, 0]
    assert sky.tolist() == [0, 1]
    assert weather == pytest.approx([-np.sqrt(0.5), np.sqrt(0.5)]), "a known pair adds a row of its own"


def test_a_folder_without_a_table_is_a_mistake_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="contains no table of embeddings"):
        embedding_table.EmbeddedEmbedder(tmp_path)
    with pytest.raises(SetupError, match="contains no table of embeddings"):
        embedding_table.EmbeddedEmbedder(written(tmp_path, dimensions="many"))
