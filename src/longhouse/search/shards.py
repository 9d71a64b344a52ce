"""The shards of the index that a caller may see, as one array: an index for each slot, in the order of the shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import asyncpg

from longhouse.arrays import np, npt
from longhouse.store.search.postings import GONE, SLOTS

Signature: TypeAlias = tuple[tuple[int, int, int], ...]
"""Id, number of slots and number of deleted documents of each shard: while they stay the same, so do all postings."""


class Shards:
    """All shards that a caller may see, one array index for each slot."""

    def __init__(self, rows: Sequence[asyncpg.Record]) -> None:
        shards = {row["id"]: row for row in rows}
        self.signature: Signature = tuple((row["id"], row["slots"], row["gone"]) for row in shards.values())
        self.documents = sum(row["slots"] - row["gone"] for row in shards.values())
        self._ids = np.array(list(shards), np.int64)
        self._starts = np.cumsum([0, *(row["slots"] for row in shards.values())])
        self.start_of = dict(zip(shards, self._starts.tolist(), strict=False))
        self.live = np.ones(self.size, np.bool_)
        for row in rows:
            if row["term"] == GONE:
                self.live[np.frombuffer(row["postings"], ">i2").astype(np.intp) + self.start_of[row["id"]]] = False

    @property
    def size(self) -> int:
        return int(self._starts[-1])

    @property
    def slots(self) -> dict[int, int]:
        """Shard id -> its number of slots."""
        return {shard: slots for shard, slots, _ in self.signature}

    def numbers(self, places: npt.NDArray[np.intp]) -> list[int]:
        """The shard and slot at each of these indexes, as one number: a shorter list is cheaper to send."""
        nth = np.searchsorted(self._starts, places, side="right") - 1
        numbers: list[int] = (self._ids[nth] * SLOTS + places - self._starts[nth]).tolist()
        return numbers

    def places(self, rows: Sequence[asyncpg.Record]) -> npt.NDArray[np.intp]:
        """The indexes of the shards and slots in these rows; -1 for rows added after the postings were read."""
        if not rows or not self.signature:
            return np.full(len(rows), -1, np.intp)
        shards = np.array([row["shard"] for row in rows], np.int64)
        slots = np.array([row["slot"] for row in rows], np.int64)
        nth = np.minimum(np.searchsorted(self._ids, shards), len(self._ids) - 1)
        places = self._starts[nth] + slots
        known = (self._ids[nth] == shards) & (places < self._starts[nth + 1])
        return np.where(known, places, -1).astype(np.intp)

    def mask(self, rows: Sequence[asyncpg.Record]) -> npt.NDArray[np.bool_]:
        """True at the indexes of these rows."""
        mask = np.zeros(self.size, np.bool_)
        places = self.places(rows)
        mask[places[places >= 0]] = True
        return mask
