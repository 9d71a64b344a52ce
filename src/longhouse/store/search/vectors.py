"""Embedding vectors: their stored format, the cache of a process, and cosine similarity.

The nearest are found without reading all numbers of all vectors, and none is missed. Turned so that they differ most in
their first dimensions, vectors are compared by these alone; the others add at most the product of their lengths (the
inequality of Cauchy and Schwarz). Only those that can be among the nearest are compared in full.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from longhouse.store.database import Database

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Number = TypeVar("Number", bound=np.floating[Any])
else:
    from longhouse import arrays as np

Vectors: TypeAlias = "npt.NDArray[np.float32]"
"""A row for each document."""
Places: TypeAlias = "npt.NDArray[np.intp]"

STORED: Final = "<f2"
"""The stored format of a vector's numbers: half precision, little-endian."""
MOST: Final = 64 * 2**20
"""Bytes of a process's vector cache; the least recently used shards are dropped, but none of the present search."""

BUSY: Final = 1_000_000
"""From this many numbers on, vectors are decoded in a thread, so that the event loop is not blocked."""
LONG: Final = 4 * BUSY
"""From this many numbers on, vectors are compared in a thread: it costs more than the millisecond that fewer take."""

HEAD: Final = 3 / 8
"""The share of dimensions by which all are compared first: of 100,000 tools, some 400 can then be among the 30 nearest.
With a quarter it was 3,500 of them, with half 110."""
SHORTEST_HEAD: Final = 96
ITERATIONS: Final = 4
SAMPLE: Final = 2048
"""Vectors by which a shard's are turned; others make the head less telling, and nothing wrong."""
ROUNDING: Final = 1e-5
"""Far more than the squares of lengths, about 1, lose to rounding."""

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


class Part(msgspec.Struct, frozen=True):
    """The vectors of one shard, a row for each slot; zeros for a document that has none."""

    rows: npt.NDArray[np.float16]
    """As they are stored."""
    turn: Vectors | None
    """Directions at right angles, a column for each number of a head; None where a head is the whole vector."""
    heads: Vectors
    """Column by column in memory: a vector is compared with all of them in two thirds of the time, or nearly."""
    tails: Vectors
    """The length of what a head leaves of a vector."""
    turned_by: int
    """The number of rows when the directions were chosen."""

    @classmethod
    def empty(cls, dimensions: int) -> Part:
        none = np.zeros((0, dimensions), np.float16)
        return cls(none, None, *_split(none, None), 0)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.heads.nbytes + self.tails.nbytes

    def first(self, slots: int) -> Part:
        if slots == len(self.rows):
            return self
        return replace(self, rows=self.rows[:slots], heads=self.heads[:slots], tails=self.tails[:slots])

    def grown(self, new: Mapping[int, bytes], slots: int) -> Part:
        """With the vectors of new slots."""
        rows = grown(self.rows, new, slots)
        if slots >= 2 * self.turned_by:
            turn = directions(rows)
            return Part(rows, turn, *_split(rows, turn), slots)
        heads, tails = _split(rows[len(self.rows) :], self.turn)
        return Part(
            rows, self.turn, np.concatenate((self.heads, heads)), np.concatenate((self.tails, tails)), self.turned_by
        )

    def most(self, vector: Vectors) -> Vectors:
        """What the cosine similarity of the vector is at most, in each slot."""
        head, tail = _split(vector[None], self.turn)
        most: Vectors = self.heads @ head[0] + tail * self.tails
        return most


def directions(rows: npt.NDArray[np.float16]) -> Vectors | None:
    """The directions, at right angles, in which these vectors are about the longest: those of their first principal
    components, by iteration. None for a few, which are compared soon enough as they are."""
    if rows.size < BUSY:
        return None
    sample = rows[:: -(-len(rows) // SAMPLE)].astype(np.float32)
    square, dimensions = sample.T @ sample, rows.shape[1]
    found: Vectors = np.eye(dimensions, max(int(dimensions * HEAD), min(SHORTEST_HEAD, dimensions)), dtype=np.float32)
    for _ in range(ITERATIONS):
        found = np.linalg.qr(square @ found)[0]
    return found


def _split(rows: npt.NDArray[np.floating[Any]], turn: Vectors | None) -> tuple[Vectors, Vectors]:
    """Heads, and the lengths of the rest, never too short."""
    vectors = rows.astype(np.float32)
    if turn is None:
        return vectors, np.full(len(rows), ROUNDING**0.5, np.float32)
    heads = np.asfortranarray(vectors @ turn)
    rest = np.vecdot(vectors, vectors) - np.vecdot(heads, heads)
    return heads, np.sqrt(np.maximum(rest, 0) + np.float32(ROUNDING))


class VectorCache:
    """A cache of vectors by shard. A slot is given out once, so a cached vector never changes."""

    def __init__(self, db: Database, most: int = MOST) -> None:
        self._db = db
        self._most = most
        self.shards: OrderedDict[tuple[int, int], Part] = OrderedDict()

    async def of(self, space: Space, shards: Mapping[int, int]) -> VectorSet:
        """The vectors of all slots of these shards."""
        near = VectorSet([(await self._read(shard, slots, space)).first(slots) for shard, slots in shards.items()])
        while len(self.shards) > len(shards) and sum(part.nbytes for part in self.shards.values()) > self._most:
            self.shards.popitem(last=False)
        return near

    async def _read(self, shard: int, slots: int, space: Space) -> Part:
        key = (shard, space.model)
        known = self.shards.get(key) or Part.empty(space.dimensions)
        if len(known.rows) < slots:
            rows = await self._db.rows(READ, shard=shard, first=len(known.rows), model=space.model)
            new = {row["slot"]: row["vector"] for row in rows if row["slot"] < slots}
            is_busy = slots * space.dimensions >= BUSY
            read = await asyncio.to_thread(known.grown, new, slots) if is_busy else known.grown(new, slots)
            # Meanwhile another search may have read more slots.
            known = self.shards[key] = max(read, self.shards.get(key, read), key=lambda part: len(part.rows))
        self.shards.move_to_end(key)
        return known


def grown(known: npt.NDArray[Number], new: Mapping[int, bytes], slots: int) -> npt.NDArray[Number]:
    """The vectors of a shard, extended by those of new slots; zeros for a document that has none."""
    longer = np.zeros((slots, known.shape[1]), known.dtype)
    longer[: len(known)] = known
    if new:
        longer[list(new)] = np.frombuffer(b"".join(new.values()), STORED).reshape(len(new), -1)
    return longer


class VectorSet:
    """The vectors of several shards in sequence; a place is the number of a slot in this sequence."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part.rows) for part in parts)])

    async def nearest(self, vector: Vectors, count: int, among: npt.NDArray[np.bool_] | None = None) -> Places:
        """The places with the highest cosine similarities above zero; `among` says at which of all they may be."""
        is_long = sum(part.heads.size for part in self._parts) >= LONG
        arguments = (vector, count, among)
        return await asyncio.to_thread(self._nearest, *arguments) if is_long else self._nearest(*arguments)

    def _nearest(self, vector: Vectors, count: int, among: npt.NDArray[np.bool_] | None) -> Places:
        most = np.concatenate([part.most(vector) for part in self._parts] or [np.zeros(0, np.float32)])
        if among is not None:
            most *= among
        # As many as are wanted are no farther than the last but so many of those that are probably near.
        probable = self.between(vector[None], top(most, 2 * count, (0.75, 0.5, 0)))[0]
        enough = np.partition(probable, -count)[-count] if len(probable) >= count else np.float32(0)
        possible = np.flatnonzero((most > 0) & (most >= enough))
        return possible[top(self.between(vector[None], possible)[0], count)]

    def between(self, vectors: Vectors, places: Places) -> Vectors:
        """The cosine similarities at some places, a row for each vector."""
        cosines = np.zeros((len(vectors), len(places)), np.float32)
        order = np.argsort(places)
        bounds = np.searchsorted(places[order], self._starts).tolist()
        for part, start, first, end in zip(self._parts, self._starts.tolist(), bounds, bounds[1:], strict=False):
            if first < end:
                here = order[first:end]
                cosines[:, here] = vectors @ part.rows[places[here] - start].astype(np.float32).T
        return cosines


def top(scores: Vectors, count: int, floors: Sequence[float] = (0.5, 0.25, 0)) -> Places:
    """The indexes of the highest scores above zero. Those below a share of the best are dropped before sorting, where
    enough are left."""
    best = scores.max(initial=np.float32(0))
    for share in floors:
        above = np.flatnonzero(scores > best * np.float32(share))
        if len(above) >= count:
            return above[np.argpartition(scores[above], -count)[-count:]]
    return above
