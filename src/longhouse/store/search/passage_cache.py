"""What a process keeps of the passages that it searches: vectors, times, and who stands next to whom.

Vectors are compared by `vecdot`, not by `@`: BLAS would start threads for each small shard and wait for them, longer
than they work.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import asyncpg
import msgspec

from longhouse.arrays import np, npt
from longhouse.store.database import Database
from longhouse.store.search.passages import COLUMNS, Shard
from longhouse.store.search.vectors import Places, Space, Vectors, by_part, grown

MOST: Final = 64 * 2**20
"""Bytes that are kept; the least recently used shards are dropped, but none of the present search."""
BUSY: Final = 512
"""From this many slots on, columns are decoded and compared in threads, so that the event loop is not blocked."""
COARSE: Final = 3 / 8
"""The share of dimensions by which all passages are compared first: what takes time is to read their memory. Among
20,000 passages with vectors of the built-in table, the best 600 by these have 96 of a hundred of the 60 nearest, and
all but a few of the ten nearest."""
FEWEST_DIMENSIONS: Final = 96

FEW: Final = 50
"""The mean counts so many vectors without a direction: the first few passages have nothing in common yet."""
DRIFT: Final = 0.02
"""Up to this distance an older mean is good enough: a new one costs a pass over all vectors."""
TINY: Final = 1e-6
MOST_JOINED: Final = 8
"""Scopes, or sets of them, whose columns are kept joined."""

Times: TypeAlias = "npt.NDArray[np.float64]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"


class _Part(msgspec.Struct, frozen=True):
    """The columns of one shard, a row for each slot; a slot is given out once, so that rows are only added."""

    vectors: Vectors
    at: Times
    thread: npt.NDArray[np.int64]
    position: npt.NDArray[np.int64]
    gone: int
    links: Places
    total: Vectors
    """The sum of all vectors."""
    known: int
    """How many have a vector."""

    @property
    def nbytes(self) -> int:
        return self.vectors.nbytes + 24 * len(self.at) + self.links.nbytes


class CentredVectors(msgspec.Struct, frozen=True):
    """The vectors of one shard, and the first dimensions of each, apart from the mean; 0 without a vector."""

    vectors: Vectors
    scale: Vectors
    """One over the distance of each vector from the mean; 0 without a vector."""
    coarse: Vectors


class Columns(msgspec.Struct, frozen=True):
    """The columns of several shards in sequence; a place is the number of a slot in this sequence."""

    shards: tuple[Shard, ...]
    near: Sequence[CentredVectors]
    mean: Vectors
    """What all have in common, near zero for a few: it says nothing about any of them."""
    at: Times
    """Seconds since 1970; NaN where a passage has no time."""
    links: Places
    """Rows of places: those one before, one after, two before and two after in the thread; -1 where there is none."""

    async def coarse(self, vector: Vectors) -> Vectors:
        """About the similarity everywhere, by the first dimensions alone; 0 without a vector."""
        asked = self._apart(vector[None])[0, : _dimensions(self.mean)]
        if len(self.at) < BUSY:
            return _compared(asked, self.near)
        half = len(self.near) // 2
        parts = (self.near[:half], self.near[half:])
        return np.concatenate(await asyncio.gather(*(asyncio.to_thread(_compared, asked, part) for part in parts)))

    def between(self, vectors: Vectors, places: Places) -> Vectors:
        """The similarity at some places, apart from what all have in common, a row for each vector."""
        asked = self._apart(vectors)
        common = np.vecdot(asked, self.mean)[:, None]
        found = np.zeros((len(asked), len(places)), np.float32)
        for part, here, slots in self._parts(places):
            found[:, here] = (np.vecdot(part.vectors[slots], asked[:, None]) - common) * part.scale[slots]
        return found

    def cosines(self, vector: Vectors, places: Places) -> Vectors:
        """The cosine similarity at some places; 0 without a vector."""
        found = np.zeros(len(places), np.float32)
        for part, here, slots in self._parts(places):
            found[here] = np.vecdot(part.vectors[slots], vector)
        return found

    def _parts(self, places: Places) -> Iterator[tuple[CentredVectors, Places, Places]]:
        """The shards that some places are in, with where these are in the sequence given and their slots."""
        return by_part(self.near, np.cumsum([0, *(shard.slots for shard in self.shards)]), places)

    def _apart(self, vectors: Vectors) -> Vectors:
        asked = vectors - self.mean
        asked /= np.maximum(np.linalg.norm(asked, axis=1, keepdims=True), TINY)
        return asked


def _compared(asked: Vectors, near: Sequence[CentredVectors]) -> Vectors:
    found = [np.vecdot(part.coarse, asked) for part in near]
    return np.concatenate(found) if found else np.zeros(0, np.float32)


class PassageCache:
    """A cache of columns by shard, and joined as they were searched last."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._parts: OrderedDict[tuple[int, int, int], _Part] = OrderedDict()
        self._joined: OrderedDict[tuple[int, ...], Columns] = OrderedDict()

    async def of(self, space: Space | None, shards: Sequence[Shard], live: Mask) -> Columns:
        """The columns of all slots of these shards; `live` says at which places passages are."""
        key = (space.model if space else -1, *(shard.id for shard in shards))
        known = self._joined.get(key)
        if known is None or known.shards != tuple(shards):
            parts = await self._read(space, shards, live)
            is_busy = sum(shard.slots for shard in shards) >= BUSY
            arguments = (parts, tuple(shards), known)
            known = await asyncio.to_thread(_joined, *arguments) if is_busy else _joined(*arguments)
            self._joined[key] = known
        self._joined.move_to_end(key)
        while len(self._joined) > 1 and self._is_full():
            self._joined.popitem(last=False)
        return known

    def _is_full(self) -> bool:
        held = sum(near.coarse.nbytes for columns in self._joined.values() for near in columns.near)
        return len(self._joined) > MOST_JOINED or held > MOST

    async def _read(self, space: Space | None, shards: Sequence[Shard], live: Mask) -> list[_Part]:
        parts, start = [], 0
        for shard in shards:
            parts.append(await self._part(space, shard, live[start : start + shard.slots]))
            start += shard.slots
        while len(self._parts) > len(shards) and sum(part.nbytes for part in self._parts.values()) > MOST:
            self._parts.popitem(last=False)
        return parts

    async def _part(self, space: Space | None, shard: Shard, live: Mask) -> _Part:
        model, dimensions = (space.model, space.dimensions) if space else (-1, 0)
        key = (shard.id, shard.revision, model)
        known = self._parts.get(key) or _empty(dimensions)
        if len(known.at) < shard.slots or known.gone != shard.gone:
            first = len(known.at)
            is_longer = first < shard.slots
            rows = await self._db.rows(COLUMNS, shard=shard.id, first=first, model=model) if is_longer else []
            is_busy = shard.slots - first >= BUSY
            part = (
                await asyncio.to_thread(_grown, known, rows, shard, live)
                if is_busy
                else _grown(known, rows, shard, live)
            )
            # Meanwhile another search may have read more slots.
            there = self._parts.get(key, part)
            known = self._parts[key] = part if len(there.at) <= len(part.at) else there
        self._parts.move_to_end(key)
        return known


def _empty(dimensions: int) -> _Part:
    none, nothing = np.zeros(0, np.int64), np.zeros(dimensions, np.float32)
    return _Part(
        np.zeros((0, dimensions), np.float32), np.zeros(0), none, none, -1, np.zeros((4, 0), np.intp), nothing, 0
    )


def _grown(known: _Part, rows: Sequence[asyncpg.Record], shard: Shard, live: Mask) -> _Part:
    new = [row for row in rows if row["slot"] < shard.slots]
    slots = [row["slot"] for row in new]
    before, size = len(known.at), max(shard.slots, len(known.at))
    at = np.full(size, np.nan)
    thread, position = np.zeros(size, np.int64), np.zeros(size, np.int64)
    at[:before], thread[:before], position[:before] = known.at, known.thread, known.position
    if new:
        at[slots] = [np.nan if row["at"] is None else row["at"] for row in new]
        thread[slots] = [row["thread"] if row["has_thread"] else 0 for row in new]
        position[slots] = [row["position"] for row in new]
    added = {row["slot"]: row["vector"] for row in new if row["vector"] is not None}
    vectors = grown(known.vectors, added, size) if size > len(known.vectors) else known.vectors
    links = linked(thread, position, live if len(live) == size else np.ones(size, np.bool_))
    total = known.total + vectors[before:].sum(axis=0)
    return _Part(vectors, at, thread, position, shard.gone, links, total, known.known + len(added))


def linked(thread: npt.NDArray[np.int64], position: npt.NDArray[np.int64], live: Mask) -> Places:
    """For each place, the live places one and two before and after it in its thread; -1 where there is none."""
    links = np.full((4, len(thread) + 1), -1, np.intp)  # the last column is the place -1
    threaded = np.flatnonzero(live & (thread != 0))
    order = threaded[np.lexsort((threaded, position[threaded], thread[threaded]))]
    are_next = thread[order[1:]] == thread[order[:-1]]
    first, second = order[:-1][are_next], order[1:][are_next]
    links[0, second], links[1, first] = first, second
    links[2], links[3] = links[0, links[0]], links[1, links[1]]
    return links[:, :-1]


def _joined(parts: Sequence[_Part], shards: tuple[Shard, ...], before: Columns | None) -> Columns:
    sizes = [shard.slots for shard in shards]
    starts = np.cumsum([0, *sizes]).tolist()
    links = [_moved(part.links[:, :size], start) for part, start, size in zip(parts, starts, sizes, strict=False)]
    at = [part.at[:size] for part, size in zip(parts, sizes, strict=True)]
    mean = _mean(parts)
    if before is not None and np.linalg.norm(mean - before.mean) < DRIFT:
        mean = before.mean
    else:
        before = None
    near = [near_of(part.vectors[:size], mean, before) for part, size in zip(parts, sizes, strict=True)]
    return Columns(
        shards,
        near,
        mean,
        np.concatenate(at) if at else np.zeros(0),
        np.concatenate(links, axis=1) if links else np.zeros((4, 0), np.intp),
    )


def _mean(parts: Sequence[_Part]) -> Vectors:
    total = np.sum([part.total for part in parts], axis=0) if parts else np.zeros(0)
    mean: Vectors = (total / (sum(part.known for part in parts) + FEW)).astype(np.float32)
    return mean


def near_of(vectors: Vectors, mean: Vectors, before: Columns | None) -> CentredVectors:
    """Taken over from before, where the shard has not grown."""
    for part in before.near if before else ():
        if part.vectors.shape == vectors.shape and part.vectors.ctypes.data == vectors.ctypes.data:
            return part
    distances = np.sqrt(np.maximum(1 - 2 * np.vecdot(vectors, mean) + mean @ mean, TINY))
    scale = np.where(vectors.any(axis=1), 1 / distances, 0).astype(np.float32)
    count = _dimensions(mean)
    return CentredVectors(vectors, scale, (vectors[:, :count] - mean[:count]) * scale[:, None])


def _dimensions(mean: Vectors) -> int:
    return max(FEWEST_DIMENSIONS, int(len(mean) * COARSE))


def _moved(links: Places, start: int) -> Places:
    """Slots as places. A neighbour that was written after the search had begun is none."""
    return np.where((links >= 0) & (links < links.shape[1]), links + start, -1)
