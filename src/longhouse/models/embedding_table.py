"""The built-in static embeddings: a table with one vector per word piece. A text is the sum of its vectors.

They need no network, no key and no extra compiled package. `training/` builds the table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from longhouse.arrays import np, npt
from longhouse.errors import SetupError
from longhouse.models.wordpiece import WordPiece

Vectors: TypeAlias = "npt.NDArray[np.float32]"

TABLE: Final = Path(__file__).parent / "table"
FEW: Final = 16
"""Up to this many texts are embedded in the event loop, within a millisecond; more run in a thread."""
PAIR: Final = 65_536
"""Two adjacent tokens as one number: the first times this factor, plus the second."""


class Card(msgspec.Struct, frozen=True):
    """Metadata of a table. Its name is stored in the index: vectors of two tables are never compared."""

    name: str
    dimensions: int


class Table:
    """Quantised rows, each with one scale, and the token pairs that have a row of their own.

    Rows stay packed in memory. Rows of pairs follow the rows of tokens, and are added to those of the two tokens: the
    tokenizer makes each Han character a word, and most Chinese words have two characters.
    """

    def __init__(self, packed: npt.NDArray[np.uint8], scales: Vectors, pairs: npt.NDArray[np.int64]) -> None:
        self._packed = packed
        self._scales = scales
        self._pairs = pairs
        self._first_pair = len(packed) - len(pairs)

    def vector(self, tokens: Sequence[int]) -> Vectors:
        """The unit vector of a text; zeros for a text without tokens, which is similar to nothing."""
        ids = np.array(tokens, np.int64)
        ids = np.concatenate((ids, self._first_pair + self._known_pairs(ids)))
        summed: Vectors = self._scales[ids] @ unpacked(self._packed[ids]).astype(np.float32)
        return summed / max(float(np.linalg.norm(summed)), 1e-9)

    def _known_pairs(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if len(ids) < 2 or not len(self._pairs):
            return ids[:0]
        keys = ids[:-1] * PAIR + ids[1:]
        places = np.minimum(np.searchsorted(self._pairs, keys), len(self._pairs) - 1)
        known: npt.NDArray[np.int64] = places[self._pairs[places] == keys]
        return known


def unpacked(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.int8]:
    """Unpacks two 4-bit numbers from -7 to 7 from each byte, the lower half first."""
    rows = np.empty((len(packed), packed.shape[1] * 2), np.int8)
    rows[:, 0::2] = (packed & 15).astype(np.int8) - 8
    rows[:, 1::2] = (packed >> 4).astype(np.int8) - 8
    return rows


class EmbeddedEmbedder:
    """Loads its table at the first text: a process that never searches does not hold it in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or TABLE
        try:
            card = msgspec.json.decode((self._folder / "table.json").read_bytes(), type=Card)
        except (OSError, msgspec.MsgspecError) as error:
            raise SetupError(
                f"{self._folder} contains no table of embeddings: `python -m training.pack` writes one, with a"
                f" table.json ({error})."
            ) from None
        self.name = f"longhouse/{card.name}"
        self.dimensions = card.dimensions
        self._held: tuple[WordPiece, Table] | None = None

    async def embed(self, texts: Sequence[str]) -> Vectors:
        if self._held is None:
            self._held = await asyncio.to_thread(_read, self._folder)
        if len(texts) <= FEW:
            return self._embedded(*self._held, texts)
        return await asyncio.to_thread(self._embedded, *self._held, texts)

    def _embedded(self, words: WordPiece, table: Table, texts: Sequence[str]) -> Vectors:
        vectors = [table.vector(words.encode(text)) for text in texts]
        return np.array(vectors, np.float32).reshape(len(texts), self.dimensions)


@cache
def _read(folder: Path) -> tuple[WordPiece, Table]:
    """Cached for the process: the table never changes."""
    with np.load(folder / "table.npz") as arrays:
        table = Table(arrays["q"], arrays["s"].astype(np.float32), arrays["pairs"].astype(np.int64))
    return WordPiece((folder / "vocab.txt").read_text(encoding="utf-8").split("\n")), table
