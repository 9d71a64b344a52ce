"""Ranks the passages that a query may find: by words, by meaning, and by the passages next to them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from longhouse.arrays import np
from longhouse.search import ranking
from longhouse.search.ranking import Scores
from longhouse.search.scores import QueryPostings
from longhouse.store.search.passage_cache import Columns, Mask
from longhouse.store.search.vectors import Places, Vectors, top

WHOLE: Final = 100
"""Candidates by the words of the whole query; more where more results are wanted."""
PER_CLAUSE: Final = 30
NEAREST: Final = 600
"""Candidates by meaning, of which at first only a part is compared."""
MIDDLE: Final = {"en": 0.2, "ru": 0.3, "zh": 0.2}
"""The relevance that is told as 0.5, by the language of the query: above it, at least three of four passages for the
fitted pairs of tests/relevance_pairs.py were right. In Russian, 0.25 found two wrong ones more, and 0.2
seven wrong ones and one right one more: 11 of 18 were right."""
BEHIND: Final = 0.5
"""What is less than half as relevant as the best passage is told as less: the best one is what was asked for."""

_LETTERS: Final = {"ru": re.compile("[\u0400-\u04ff]"), "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff]")}


class Ranked(msgspec.Struct, frozen=True):
    """The places of the best passages, with their scores and similarities."""

    places: Places
    scores: Scores
    cosines: Scores | None


class PassageRanking(msgspec.Struct, frozen=True):
    """Ranks the permitted passages for a query."""

    found: QueryPostings
    columns: Columns
    permitted: Mask
    vectors: Vectors | None
    coarse: Scores | None
    """About the similarity of the whole query, at every place."""

    def best(self, terms: Sequence[Sequence[str]], limit: int) -> Ranked:
        whole, *clauses = self.found.scores(terms)
        # The whole query finds by neighbours too; its clauses are there to find what it says besides.
        leading = [self._leading(whole, max(2 * limit, WHOLE))]
        leading += [top(row * self.permitted, max(2 * limit, PER_CLAUSE)) for row in clauses]
        if self.coarse is not None:
            leading.append(self._leading(np.maximum(self.coarse, 0), max(2 * limit, NEAREST)))
        places = np.unique(np.concatenate(leading))
        similar = self.columns.between(self.vectors[1:], places) if self.vectors is not None else [None] * len(clauses)
        scores = ranking.with_clauses(
            ranking.fused(self._spread(whole, places), self._cosines(places)),
            [ranking.fused(row[places], like) for row, like in zip(clauses, similar, strict=True)],
        )
        # Of two equal ones, the later.
        best = np.lexsort((-places, -scores))[:limit]
        best = best[scores[best] > 0]
        own = self.columns.cosines(self.vectors[0], places[best]) if self.vectors is not None else None
        return Ranked(places[best], scores[best], own)

    def _leading(self, scores: Scores, count: int) -> Places:
        """The permitted places with the highest scores, a part of their neighbours' included.

        One that leads has a high score of its own, or is next to one that has.
        """
        if np.count_nonzero(self.permitted) <= count:
            return np.flatnonzero(self.permitted)
        around = self._around(np.union1d(top(scores, count), top(scores * self.permitted, count)))
        around = around[self.permitted[around]]
        return around[top(self._spread(scores, around), count)]

    def _cosines(self, places: Places) -> Scores | None:
        """The similarity of the whole query at these places, with a part of their neighbours'."""
        if self.vectors is None:
            return None
        compared = self._around(places)
        exact = np.zeros(self.found.shards.size, np.float32)
        exact[compared] = np.maximum(self.columns.between(self.vectors[:1], compared)[0], 0)
        return self._spread(exact, places)

    def _around(self, places: Places) -> Places:
        """These places and those next to them, in order."""
        links = self.columns.links[:, places]
        return np.unique(np.append(links[links >= 0], places))

    def _spread(self, scores: Scores, places: Places) -> Scores:
        return ranking.with_neighbours(scores, self.columns.links, places)


def told(query: str, relevances: Sequence[float]) -> list[float]:
    """The relevance of the passages of one search as documents tell it: from 0.5 on, a passage is likely to answer the
    query. The order stays. Measured on the vectors of the table that comes along."""
    language = "en"
    for name, letters in _LETTERS.items():
        if letters.search(query):
            language = name
    middle = MIDDLE[language]
    near = BEHIND * max(relevances, default=0.0)
    return [_stretched(one, middle) * (min(1.0, one / near) if near > 0 else 1.0) for one in relevances]


def _stretched(relevance: float, middle: float) -> float:
    if relevance < middle:
        return (relevance / middle) ** 2 / 2
    return (1 + (relevance - middle) / (1 - middle)) / 2
