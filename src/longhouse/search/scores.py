"""Lexical scores (BM25): adds up the postings of a query's terms over all shards, one score for each document."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg
import msgspec

from longhouse.search import ranking
from longhouse.search.ranking import Scores
from longhouse.store.search.postings import GONE, POSTING, POSTING_BYTES, SLOTS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from longhouse import arrays as np

BUSY: Final = 200_000
"""From this many postings on, scores are computed in a thread, so that the event loop stays free."""

Signature: TypeAlias = tuple[tuple[int, int, int], ...]
"""The id, slots and deleted documents of each shard: while they stay the same, so do all postings."""


class TermPostings(msgspec.Struct, frozen=True):
    """The documents that have a term: their array indexes, and what the term counts in each."""

    places: npt.NDArray[np.int32]
    weights: Scores

    @property
    def nbytes(self) -> int:
        return int(self.places.nbytes + self.weights.nbytes)

    def copied(self) -> TermPostings:
        """By itself, without the arrays that it is a part of."""
        return TermPostings(self.places.copy(), self.weights.copy())


class Shards:
    """All shards that a caller may see, one array index for each slot."""

    def __init__(self, rows: Sequence[asyncpg.Record]) -> None:
        shards = {row["id"]: row for row in rows}
        self.signature: Signature = tuple((row["id"], row["slots"], row["gone"]) for row in shards.values())
        self.texts = sum(row["slots"] - row["gone"] for row in shards.values())
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


class QueryPostings:
    """The postings of a query's terms in some shards."""

    def __init__(self, shards: Shards, terms: Mapping[str, TermPostings]) -> None:
        self.shards, self.terms = shards, terms

    @property
    def postings(self) -> int:
        return sum(len(one.places) for one in self.terms.values())

    def of(self, term: str) -> TermPostings:
        return self.terms.get(term) or TermPostings(np.empty(0, np.int32), np.empty(0, np.float32))

    def rarity(self, term: str, besides: int = 0) -> float:
        """The inverse document frequency, with so many documents without the term besides."""
        return _rarity(len(self.of(term).places), self.shards, besides)

    def scores(self, texts: Sequence[Sequence[str]]) -> Scores:
        """One row of scores for each text, one column for each slot."""
        scores = np.zeros((len(texts), self.shards.size), np.float32)
        for row, text in zip(scores, texts, strict=True):
            if found := [self.terms[term] for term in text if term in self.terms]:
                places = np.concatenate([one.places for one in found])
                np.add.at(row, places, np.concatenate([one.weights for one in found]))
        return scores

    def having(self, terms: Sequence[str]) -> npt.NDArray[np.bool_]:
        """True at the indexes of documents with any of these terms."""
        mask = np.zeros(self.shards.size, np.bool_)
        for term in terms:
            if term in self.terms:
                mask[self.terms[term].places] = True
        return mask


def decoded(rows: Sequence[asyncpg.Record]) -> QueryPostings:
    """The postings in these rows, of all shards that are in them."""
    shards = Shards(rows)
    # Postings of a term are adjacent, whatever shards they come from: each term is one slice of the arrays.
    known = sorted((row for row in rows if row["term"]), key=itemgetter("term"))
    counts = [len(row["postings"]) // POSTING_BYTES for row in known]
    postings = np.frombuffer(b"".join(row["postings"] for row in known), POSTING)
    starts = np.array([shards.start_of[row["id"]] for row in known], np.int32)
    places, weights = postings["slot"] + np.repeat(starts, counts), postings["weight"].astype(np.float32)
    ends = np.cumsum([0, *counts])
    if not shards.live.all():
        kept = shards.live[places]
        places, weights, ends = places[kept], weights[kept], np.concatenate(([0], np.cumsum(kept)))[ends]
    slices: dict[str, slice] = {}
    for row, start, end in zip(known, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        before = slices.get(row["term"])
        slices[row["term"]] = slice(before.start if before else start, end)
    for part in slices.values():
        weights[part] *= _rarity(part.stop - part.start, shards)
    terms = {term: TermPostings(places[part], weights[part]) for term, part in slices.items()}
    return QueryPostings(shards, terms)


def _rarity(found: int, shards: Shards, besides: int = 0) -> float:
    return ranking.rarity(min(found, shards.texts), shards.texts + besides)


async def of_rows(rows: Sequence[asyncpg.Record]) -> QueryPostings:
    if sum(len(row["postings"] or b"") for row in rows) < BUSY * POSTING_BYTES:
        return decoded(rows)
    return await asyncio.to_thread(decoded, rows)
