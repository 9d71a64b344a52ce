"""Lexical scores (BM25): adds up the postings of a query's terms over all shards, one score for each document."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

import asyncpg
import msgspec

from longhouse.arrays import np, npt
from longhouse.search import ranking
from longhouse.search.ranking import Scores
from longhouse.search.shards import Shards
from longhouse.store.search.postings import POSTING, POSTING_BYTES

BUSY: Final = 200_000
"""From this many postings on, they are weighted in a thread, and added up in one: almost a millisecond each."""


class TermPostings(msgspec.Struct, frozen=True):
    """The documents that have a term: their array indexes, and what the term counts in each."""

    places: npt.NDArray[np.int32]
    weights: Scores

    @property
    def nbytes(self) -> int:
        return int(self.places.nbytes + self.weights.nbytes)

    def copied(self) -> TermPostings:
        """A copy, so that keeping it does not keep the arrays of a whole query."""
        return TermPostings(self.places.copy(), self.weights.copy())


class QueryPostings(msgspec.Struct, frozen=True):
    """The postings of a query's terms in some shards."""

    shards: Shards
    terms: Mapping[str, TermPostings]

    @property
    def count(self) -> int:
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
                # In place and in single precision: bincount would make a row of doubles for all slots.
                np.add.at(row, places, np.concatenate([one.weights for one in found]))
        return scores

    def having(self, terms: Sequence[str]) -> npt.NDArray[np.bool_]:
        """True at the indexes of documents with any of these terms."""
        mask = np.zeros(self.shards.size, np.bool_)
        for term in terms:
            if term in self.terms:
                mask[self.terms[term].places] = True
        return mask


def weighted(rows: Sequence[asyncpg.Record]) -> QueryPostings:
    """The postings in these rows, without deleted documents, weighted by how rare their terms are in all the shards."""
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
    return ranking.rarity(min(found, shards.documents), shards.documents + besides)


async def weighted_aside(rows: Sequence[asyncpg.Record]) -> QueryPostings:
    """The same; of many, in a thread."""
    if sum(len(row["postings"] or b"") for row in rows) < BUSY * POSTING_BYTES:
        return weighted(rows)
    return await asyncio.to_thread(weighted, rows)
