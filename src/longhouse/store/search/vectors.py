"""Embedding vectors: their stored format, the cache of a process, and cosine similarity."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from longhouse.store.database import Database

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from longhouse import arrays as np

Vectors: TypeAlias = "npt.NDArray[np.float32]"
"""A row for each document."""

STORED: Final = "<f2"
"""The stored format of a vector's numbers: half precision, little-endian."""
MOST: Final = 64 * 2**20
"""Bytes of a process's vector cache; the least recently used shards are dropped, but none of the present search."""

BUSY: Final = 1_000_000
"""From this many numbers on, vectors are decoded in a thread, so that the event loop is not blocked."""
LONG: Final = 4 * BUSY
"""From this many numbers on, vectors are compared in a thread: it costs more than the millisecond that fewer take."""

READ: Final = "SELECT slot, vector FROM search_documents WHERE shard = :shard AND slot >= :first AND model = :model"


class Space(msgspec.Struct, frozen=True):
    """The vector space of one embedding model."""

    model: int
    dimensions: int


def packed(vectors: Vectors) -> list[bytes]:
    """The stored form of vectors."""
    return [row.tobytes() for row in vectors.astype(STORED)]


def pgvector_literal(vector: bytes) -> str:
    """The text form that pgvector reads. Half precision needs at most five digits for numbers below one."""
    numbers = np.round(np.frombuffer(vector, STORED).astype(np.float64), 5)
    return msgspec.json.encode(numbers.tolist()).decode()


class VectorCache:
    """A cache of vectors by shard. A slot is given out once, so a cached vector never changes."""

    def __init__(self, db: Database, most: int = MOST) -> None:
        self._db = db
        self._most = most
        self.shards: OrderedDict[tuple[int, int], Vectors] = OrderedDict()

    async def of(self, space: Space, shards: Mapping[int, int]) -> VectorSet:
        """The vectors of all slots of these shards."""
        near = VectorSet([(await self._read(shard, slots, space))[:slots] for shard, slots in shards.items()])
        while len(self.shards) > len(shards) and sum(part.nbytes for part in self.shards.values()) > self._most:
            self.shards.popitem(last=False)
        return near

    async def _read(self, shard: int, slots: int, space: Space) -> Vectors:
        key = (shard, space.model)
        known = self.shards.get(key, np.zeros((0, space.dimensions), np.float32))
        if len(known) < slots:
            rows = await self._db.rows(READ, shard=shard, first=len(known), model=space.model)
            new = {row["slot"]: row["vector"] for row in rows if row["slot"] < slots}
            is_busy = len(new) * space.dimensions >= BUSY
            read = await asyncio.to_thread(grown, known, new, slots) if is_busy else grown(known, new, slots)
            # Meanwhile another search may have read more slots.
            known = self.shards[key] = max(read, self.shards.get(key, read), key=len)
        self.shards.move_to_end(key)
        return known


def grown(known: Vectors, new: Mapping[int, bytes], slots: int, *, order: Literal["C", "F"] = "F") -> Vectors:
    """The vectors of a shard, extended by those of new slots; zeros for a document that has none.

    Column-major in memory, if nothing else is said: comparing a vector with all of a large shard takes two thirds of
    the time.
    """
    longer = np.zeros((slots, known.shape[1]), np.float32, order=order)
    longer[: len(known)] = known
    if new:
        longer[list(new)] = np.frombuffer(b"".join(new.values()), STORED).reshape(len(new), -1)
    return longer


class VectorSet:
    """The vectors of several shards in sequence; a place is the number of a slot in this sequence."""

    def __init__(self, parts: Sequence[Vectors]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    async def to(self, vector: Vectors) -> Vectors:
        """The cosine similarity of the vector at every place."""
        is_long = sum(part.size for part in self._parts) >= LONG
        return await asyncio.to_thread(self.cosines, vector) if is_long else self.cosines(vector)

    def cosines(self, vector: Vectors) -> Vectors:
        """The same, without a thread of its own."""
        return np.concatenate([part @ vector for part in self._parts] or [np.zeros(0, np.float32)])

    def between(self, vectors: Vectors, places: npt.NDArray[np.intp]) -> Vectors:
        """The cosine similarities at some places, a row for each vector."""
        cosines = np.zeros((len(vectors), len(places)), np.float32)
        for part, start in zip(self._parts, self._starts.tolist(), strict=False):
            here = (places >= start) & (places < start + len(part))
            cosines[:, here] = vectors @ part[places[here] - start].T
        return cosines
