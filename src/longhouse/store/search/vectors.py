"""Embedding vectors: their stored format, the cache of a process, and cosine similarity.

Of many, those are compared in full that are probably the nearest by their signs: a bit for each number tells much of
where a vector points, and the bits of 100,000 vectors are compared in two milliseconds. Measured with 104,000 tools,
200 questions of people and the table of embeddings that ships with us: 98 in a hundred of the thirty nearest were found
so, and 99 of the ten nearest; and as many when all vectors were turned to one side, as those of some models are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from longhouse.arrays import np, npt
from longhouse.store.database import Database

if TYPE_CHECKING:
    Number = TypeVar("Number", bound=np.floating[Any])

Vectors: TypeAlias = "npt.NDArray[np.float32]"
"""A row for each document."""
Signs: TypeAlias = "npt.NDArray[np.uint64]"
Places: TypeAlias = "npt.NDArray[np.intp]"
Part = TypeVar("Part")

STORED: Final = "<f2"
"""The stored format of a vector's numbers: half precision, little-endian."""
MOST: Final = 64 * 2**20
"""Bytes of a process's vector cache; the least recently used shards are dropped, but none of the present search."""

BUSY: Final = 1_000_000
"""From this many numbers on, vectors are decoded and compared in a thread, so that the event loop is not blocked."""
CLOSE: Final = 50
"""Times the number that is wanted are compared in full: those that are probably the nearest."""
COMPARED_AT_ONCE: Final = 8_000_000
"""Numbers whose signs are compared, by whole shards, before others have their turn: about half a millisecond."""
FEWEST_SIGNS: Final = 128
"""Vectors of fewer numbers are all compared in full: their signs would tell too little."""
PLANES: Final = 2
"""Bits by which a query's numbers are told from each other. Two at most, since 64 * (2**PLANES - 1) are added up in a
byte; a third bit finds few more."""
LARGE: Final = 2.5
"""From this many times the usual size of a query's numbers on, one counts as much as a larger one."""
MIDDLE_SAMPLE: Final = 2048
"""Vectors by which the middle of a shard's is found."""
SIGN_AND_REST: Final = 0x8FFFE000 - 2**32
"""The bits of a number in half precision once they are in place; between them are copies of its sign."""

SCORE_SAMPLE: Final = 16
"""One score in so many is sorted first, to see about how high the wanted ones are."""
MARGIN, SPARE = 2, 8
"""The floor is so many times as far down in the sample as the last wanted score would be, and so many scores more. If
too few are as high, all are looked through."""

READ: Final = "SELECT slot, vector FROM search_documents WHERE shard = :shard AND slot >= :first AND model = :model"


class Space(msgspec.Struct, frozen=True):
    """The vector space of one embedding model."""

    model: int
    dimensions: int


def packed(vectors: Vectors) -> list[bytes]:
    """The stored form of vectors."""
    return [row.tobytes() for row in vectors.astype(STORED)]


def widened(halves: npt.NDArray[np.float16]) -> Vectors:
    """In single precision, the same numbers; none of them is infinite. The bits are put in place, and a factor sets the
    exponent right: that takes a quarter of the time of numpy's conversion."""
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= SIGN_AND_REST
    numbers: Vectors = bits.view(np.float32)
    numbers *= np.float32(2.0**112)
    return numbers


def pgvector_literal(vector: bytes) -> str:
    """The text form that pgvector reads. Half precision needs at most five digits for numbers below one."""
    numbers = np.round(np.frombuffer(vector, STORED).astype(np.float64), 5)
    return msgspec.json.encode(numbers.tolist()).decode()


class ShardVectors(msgspec.Struct, frozen=True):
    """The vectors of one shard, a row for each slot; zeros for a document that has none."""

    rows: npt.NDArray[np.float16]
    """As they are stored."""
    middle: Vectors
    """The vectors of some models all point about one way: what tells them apart is how they differ from the middle."""
    measured_by: int
    """The number of rows when the middle was found."""
    signs: Signs
    """Where the numbers of a vector are above those of the middle."""
    scales: Vectors
    """How much a sign tells: the length of what differs, by the sum of its numbers."""
    along: Vectors
    """The product of the middle and each difference from it; minus infinity for a document without a vector."""

    @classmethod
    def empty(cls, dimensions: int) -> ShardVectors:
        return cls.of(np.zeros((0, dimensions), np.float16))

    @classmethod
    def of(cls, rows: npt.NDArray[np.float16]) -> ShardVectors:
        sample = widened(rows[:: len(rows) // MIDDLE_SAMPLE + 1])
        sample = sample[sample.any(axis=1)]
        middle = sample.mean(axis=0) if len(sample) else np.zeros(rows.shape[1], np.float32)
        return cls(rows, middle, len(rows), *_quantized(rows, middle))

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.signs.nbytes + self.scales.nbytes + self.along.nbytes

    def first(self, slots: int) -> ShardVectors:
        if slots == len(self.rows):
            return self
        told = {"signs": self.signs[:, :slots], "scales": self.scales[:slots], "along": self.along[:slots]}
        return replace(self, rows=self.rows[:slots], **told)

    def grown(self, new: Mapping[int, bytes], slots: int) -> ShardVectors:
        """With the vectors of new slots."""
        rows = grown(self.rows, new, slots)
        if slots >= 2 * self.measured_by:
            return ShardVectors.of(rows)
        signs, scales, along = _quantized(rows[len(self.rows) :], self.middle)
        return replace(
            self,
            rows=rows,
            signs=np.concatenate((self.signs, signs), axis=1),
            scales=np.concatenate((self.scales, scales)),
            along=np.concatenate((self.along, along)),
        )


def _quantized(rows: npt.NDArray[np.float16], middle: Vectors) -> tuple[Signs, Vectors, Vectors]:
    """The signs of vectors, their scales, and what they have along with the middle."""
    vectors = widened(rows)
    has_vector = vectors.any(axis=1)
    vectors -= middle
    along = np.where(has_vector, vectors @ middle, np.float32(-np.inf))
    scales = np.vecdot(vectors, vectors) / np.maximum(np.abs(vectors).sum(axis=1), np.float32(1e-9))
    return signs_of(vectors > 0), scales, along


def signs_of(bits: npt.NDArray[np.bool_]) -> Signs:
    """A column for each row of these, 64 bits in a number."""
    packed = np.packbits(bits, axis=1)
    whole = np.zeros((len(bits), -(-packed.shape[1] // 8) * 8), np.uint8)
    whole[:, : packed.shape[1]] = packed
    return np.ascontiguousarray(whole.view(np.uint64).T)


class Query:
    """A vector, as the signs of some shards are compared with it: a disagreement counts by the size of the number, from
    0 to 3."""

    def __init__(self, vector: Vectors, parts: Sequence[ShardVectors]) -> None:
        middles, steps = np.array([part.middle for part in parts]), 2**PLANES - 1
        differs = vector - middles
        usual = np.sqrt(np.mean(np.square(differs), axis=1, keepdims=True))
        units = np.maximum(LARGE * usual / steps, np.float32(1e-9))
        sizes = np.minimum(np.rint(np.abs(differs) / units), steps).astype(np.uint8)
        self._units, self._all, self._common = units[:, 0], sizes.sum(axis=1), middles @ vector
        self._signs = signs_of(differs > 0)
        self._planes = [signs_of((sizes >> plane & 1).astype(np.bool_)) for plane in range(PLANES)]

    def likely(self, part: ShardVectors, nth: int) -> Vectors:
        """About the cosine similarities with the vectors of the shard of this number."""
        apart = np.zeros(len(part.rows), np.uint16)
        planes = (bits[:, nth] for bits in self._planes)
        # 64 numbers at a time: what is computed in between stays in the processor's cache.
        for theirs, ours, *sizes in zip(part.signs, self._signs[:, nth], *planes, strict=True):
            differ = theirs ^ ours
            # The highest bit first, doubled for each one below it: numpy shifts bytes one by one.
            count = np.bitwise_count(differ & sizes[-1])
            for bits in reversed(sizes[:-1]):
                count += count
                count += np.bitwise_count(differ & bits)
            apart += count
        # (all - 2 * apart) * scale * unit, in place.
        likely: Vectors = apart.astype(np.float32)
        likely -= np.float32(self._all[nth]) / 2
        likely *= part.scales
        likely *= -2 * self._units[nth]
        likely += part.along
        likely += self._common[nth]
        return likely


class VectorCache:
    """A cache of vectors by shard. A slot is given out once, so a cached vector never changes."""

    def __init__(self, db: Database, most: int = MOST) -> None:
        self._db = db
        self._most = most
        self.shards: OrderedDict[tuple[int, int], ShardVectors] = OrderedDict()

    async def of(self, space: Space, shards: Mapping[int, int]) -> VectorSet:
        """The vectors of all slots of these shards."""
        near = VectorSet([(await self._read(shard, slots, space)).first(slots) for shard, slots in shards.items()])
        while len(self.shards) > len(shards) and sum(part.nbytes for part in self.shards.values()) > self._most:
            self.shards.popitem(last=False)
        return near

    async def _read(self, shard: int, slots: int, space: Space) -> ShardVectors:
        key = (shard, space.model)
        known = self.shards.get(key) or ShardVectors.empty(space.dimensions)
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

    def __init__(self, parts: Sequence[ShardVectors]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *(len(part.rows) for part in parts)])

    async def nearest(self, vector: Vectors, count: int, among: npt.NDArray[np.bool_] | None = None) -> Places:
        """The places with the highest cosine similarities above zero, nearly all of them; `among` says at which of all
        they may be."""
        if not vector.any():
            return np.zeros(0, np.intp)
        close = await self._close(vector, CLOSE * count, among)
        is_busy, arguments = len(close) * len(vector) >= BUSY, (vector[None], close)
        cosines = await asyncio.to_thread(self.between, *arguments) if is_busy else self.between(*arguments)
        return close[top(cosines[0], count)]

    async def _close(self, vector: Vectors, count: int, among: npt.NDArray[np.bool_] | None) -> Places:
        """The places of vectors that are probably the nearest, by their signs; of a few, all."""
        size = int(self._starts[-1])
        if size <= count or len(vector) < FEWEST_SIGNS:
            return np.arange(size) if among is None else np.flatnonzero(among)
        query, found, compared = Query(vector, self._parts), list[Vectors](), 0
        for nth, part in enumerate(self._parts):
            found.append(query.likely(part, nth))
            compared += len(part.rows) * len(vector)
            if compared >= COMPARED_AT_ONCE:
                compared = 0
                await asyncio.sleep(0)  # Others have their turn. A thread would take longer than all of this.
        likely = np.concatenate(found)
        if among is not None:
            likely[~among] = -np.inf
        return top(likely, count, above=-np.inf)

    def between(self, vectors: Vectors, places: Places) -> Vectors:
        """The cosine similarities at some places, a row for each vector."""
        cosines = np.zeros((len(vectors), len(places)), np.float32)
        for part, here, slots in by_part(self._parts, self._starts, places):
            cosines[:, here] = vectors @ widened(part.rows[slots]).T
        return cosines


def by_part(parts: Sequence[Part], starts: Places, places: Places) -> Iterator[tuple[Part, Places, Places]]:
    """The parts that some places are in, with where these are in the sequence given and their slots."""
    order = np.argsort(places)
    bounds = np.searchsorted(places[order], starts).tolist()
    for part, start, first, end in zip(parts, starts.tolist(), bounds, bounds[1:], strict=False):
        if first < end:
            here = order[first:end]
            yield part, here, places[here] - start


def top(scores: Vectors, count: int, above: float = 0.0) -> Places:
    """The indexes of the `count` highest scores above `above`, in no order. A sample gives a floor that about twice as
    many reach; only those are compared with each other."""
    sample, nth = np.sort(scores[::SCORE_SAMPLE]), MARGIN * count // SCORE_SAMPLE + SPARE
    floor = sample[-nth] if nth <= len(sample) else above
    places = np.flatnonzero(scores >= floor if floor > above else scores > above)
    if len(places) < count:
        places = np.flatnonzero(scores > above)
    return places if len(places) <= count else places[np.argpartition(scores[places], -count)[-count:]]
