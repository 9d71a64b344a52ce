"""Vectors: as Postgres keeps them, and those that a process has read."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from longhouse.store.database import Database

Vectors = npt.NDArray[np.float32]
"""A row for each text."""

STORED: Final = np.dtype("<f2")
"""How a number of a vector is kept: half precision, the low byte first."""
MOST: Final = 64 * 2**20
"""Bytes that a process keeps beside those of the present search; what was not asked for the longest makes room."""

READ: Final = "SELECT slot, vector FROM search_documents WHERE shard = $1 AND slot >= $2 AND model = $3"


@dataclass(frozen=True, slots=True)
class Space:
    """The vectors of one embedding model."""

    model: int
    dimensions: int


def packed(vectors: Vectors) -> list[bytes]:
    """As Postgres keeps them."""
    return [row.tobytes() for row in vectors.astype(STORED)]


def read(kept: Sequence[bytes | None], space: Space) -> Vectors:
    """As they were kept; zeros for a text that has none."""
    none = bytes(STORED.itemsize * space.dimensions)
    joined = b"".join(vector or none for vector in kept)
    return np.frombuffer(joined, STORED).reshape(len(kept), space.dimensions).astype(np.float32)


def spelled(vector: bytes) -> str:
    """As text that the extension reads. Half precision has no use for more than five digits of numbers below one."""
    numbers = np.round(np.frombuffer(vector, STORED).astype(np.float64), 5)
    return msgspec.json.encode(numbers.tolist()).decode()


class Kept:
    """Vectors by shard. A slot is given out once, so what was read of it stays true."""

    def __init__(self, db: Database, most: int = MOST) -> None:
        self._db = db
        self._most = most
        self.shards: OrderedDict[tuple[int, int], Vectors] = OrderedDict()

    async def of(self, space: Space, shards: Mapping[int, int]) -> "Near":
        """The vectors of all slots of these shards."""
        near = Near([(await self._read(shard, slots, space))[:slots] for shard, slots in shards.items()])
        while len(self.shards) > len(shards) and sum(part.nbytes for part in self.shards.values()) > self._most:
            self.shards.popitem(last=False)
        return near

    async def _read(self, shard: int, slots: int, space: Space) -> Vectors:
        key = (shard, space.model)
        known = self.shards.get(key)
        if known is None or len(known) < slots:
            begun = 0 if known is None else len(known)
            rows = await self._db.rows(READ, shard, begun, space.model)
            longer = np.zeros((slots, space.dimensions), np.float32)
            if known is not None:
                longer[:begun] = known
            there = [row for row in rows if row["slot"] < slots]
            if there:
                longer[[row["slot"] for row in there]] = read([row["vector"] for row in there], space)
            known = self.shards[key] = longer
        self.shards.move_to_end(key)
        return known


class Near:
    """The vectors of some shards, one after the other: a place for each slot."""

    def __init__(self, parts: Sequence[Vectors]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    def to(self, vector: Vectors) -> Vectors:
        """The cosine at every place."""
        return np.concatenate([part @ vector for part in self._parts] or [np.zeros(0, np.float32)])

    def between(self, vectors: Vectors, places: npt.NDArray[np.intp]) -> Vectors:
        """The cosines at some places, a row for each vector."""
        cosines = np.zeros((len(vectors), len(places)), np.float32)
        for part, start in zip(self._parts, self._starts.tolist(), strict=False):
            here = (places >= start) & (places < start + len(part))
            cosines[:, here] = vectors @ part[places[here] - start].T
        return cosines
