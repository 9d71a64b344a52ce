"""Lexical scores (BM25): adds up the postings of a query's terms over all shards, one score for each document."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import asyncpg

from longhouse.search import ranking
from longhouse.search.ranking import Scores
from longhouse.store.database import Database
from longhouse.store.search import postings
from longhouse.store.search.postings import GONE, POSTING, POSTING_BYTES, SLOTS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from longhouse import arrays as np

BUSY: Final = 200_000
"""From this many postings on, scores are computed in a thread, so that the event loop stays free."""


class QueryPostings:
    """The postings of a query's terms in all shards that the caller may see, one array index for each slot."""

    def __init__(self, rows: Sequence[asyncpg.Record]) -> None:
        shards = {row["id"]: row for row in rows}
        self.texts = sum(row["slots"] - row["gone"] for row in shards.values())
        self._shards = np.array(list(shards), np.int64)
        self._starts = np.cumsum([0, *(row["slots"] for row in shards.values())])
        start_of = dict(zip(shards, self._starts.tolist(), strict=False))
        # Postings of a term are adjacent, whatever shards they come from: each term is one slice of the arrays.
        known = sorted((row for row in rows if row["term"]), key=itemgetter("term"))
        counts = [len(row["postings"]) // POSTING_BYTES for row in known]
        postings = np.frombuffer(b"".join(row["postings"] for row in known), POSTING)
        starts = np.array([start_of[row["id"]] for row in known], np.intp)
        self._places = postings["slot"] + np.repeat(starts, counts)
        self._weights = postings["weight"].astype(np.float64)
        ends = np.cumsum([0, *counts])
        self.live = np.ones(self.size, np.bool_)
        if gone := [row for row in rows if row["term"] == GONE]:
            for row in gone:
                self.live[np.frombuffer(row["postings"], ">i2").astype(np.intp) + start_of[row["id"]]] = False
            kept = self.live[self._places]
            self._places, self._weights = self._places[kept], self._weights[kept]
            ends = np.concatenate(([0], np.cumsum(kept)))[ends]
        self._slices: dict[str, slice] = {}
        for row, start, end in zip(known, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            before = self._slices.get(row["term"])
            self._slices[row["term"]] = slice(before.start if before else start, end)
        for term, part in self._slices.items():
            self._weights[part] *= self.rarity(term)

    @property
    def postings(self) -> int:
        return len(self._places)

    @property
    def shards(self) -> dict[int, int]:
        """Shard id -> its number of slots."""
        return dict(zip(self._shards.tolist(), np.diff(self._starts).tolist(), strict=True))

    @property
    def size(self) -> int:
        return int(self._starts[-1])

    def rarity(self, term: str, besides: int = 0) -> float:
        """The inverse document frequency, with so many documents without the term besides."""
        found = self._slices.get(term, slice(0, 0))
        return ranking.rarity(min(found.stop - found.start, self.texts), self.texts + besides)

    def scores(self, texts: Sequence[Sequence[str]]) -> Scores:
        """One row of scores for each text, one column for each slot."""
        scores = np.zeros((len(texts), self.size), np.float32)
        for row, text in enumerate(texts):
            if found := [self._slices[term] for term in text if term in self._slices]:
                places = np.concatenate([self._places[part] for part in found])
                scores[row] = np.bincount(places, np.concatenate([self._weights[part] for part in found]), self.size)
        return scores

    def having(self, terms: Sequence[str]) -> npt.NDArray[np.bool_]:
        """True at the indexes of documents with any of these terms."""
        mask = np.zeros(self.size, np.bool_)
        for term in terms:
            mask[self._places[self._slices.get(term, slice(0, 0))]] = True
        return mask

    def numbers(self, places: npt.NDArray[np.intp]) -> list[int]:
        """The shard and slot at each of these indexes, as one number: a shorter list is cheaper to send."""
        nth = np.searchsorted(self._starts, places, side="right") - 1
        numbers: list[int] = (self._shards[nth] * SLOTS + places - self._starts[nth]).tolist()
        return numbers

    def places(self, rows: Sequence[asyncpg.Record]) -> npt.NDArray[np.intp]:
        """The indexes of the shards and slots in these rows; -1 for rows added after the postings were read."""
        if not rows or not len(self._shards):
            return np.full(len(rows), -1, np.intp)
        shards = np.array([row["shard"] for row in rows], np.int64)
        slots = np.array([row["slot"] for row in rows], np.int64)
        nth = np.minimum(np.searchsorted(self._shards, shards), len(self._shards) - 1)
        places = self._starts[nth] + slots
        known = (self._shards[nth] == shards) & (places < self._starts[nth + 1])
        return np.where(known, places, -1).astype(np.intp)

    def mask(self, rows: Sequence[asyncpg.Record]) -> npt.NDArray[np.bool_]:
        """True at the indexes of these rows."""
        mask = np.zeros(self.size, np.bool_)
        places = self.places(rows)
        mask[places[places >= 0]] = True
        return mask


async def read(db: Database, kind: str, caller: str | None, terms: Sequence[str]) -> QueryPostings:
    return await of_rows(await postings.read(db, kind, caller, terms))


async def of_rows(rows: Sequence[asyncpg.Record]) -> QueryPostings:
    if sum(len(row["postings"] or b"") for row in rows) < BUSY * POSTING_BYTES:
        return QueryPostings(rows)
    return await asyncio.to_thread(QueryPostings, rows)
