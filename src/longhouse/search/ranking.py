"""Ranking: BM25 weights, vector similarity and their fusion; each constant with its reason.

The measurements in the reasons come from public sets of tool queries, run with `longhouse bench search`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

from longhouse.arrays import np, npt
from longhouse.search import tokenizer

Scores: TypeAlias = "npt.NDArray[np.float32]"
Places: TypeAlias = "npt.NDArray[np.intp]"
Field = Literal["name", "short", "long", "labels", "parameters", "details"]

# The constants down to LONGEST_FIELD are part of the index: who changes one raises RECIPE in document.py.
FIELD_WEIGHTS: Final[Mapping[Field, float]] = {
    "name": 2.0,  # A name is the shortest true description; three instead of two changed nothing.
    "short": 1.0,
    "labels": 1.0,  # Tags and categories are chosen words, like a description without the filling.
    "long": 0.5,  # It mostly repeats the short one in more words.
    "parameters": 0.5,  # Queries name what they give (`city`, `date`), but many tools take the same.
    "details": 0.5,  # Descriptions of parameters: with them, two more of a hundred relevant tools are found.
}
PARTS: Final = 0.5
"""The weight of all n-grams of a word together, relative to the word; 0.25 and 1.0 found as many tools."""
K1: Final = 1.2
"""BM25's k1, saturation of repeated terms: the usual value. The weight of a term never exceeds K1 + 1."""
B: Final = 0.85
"""BM25's b, length normalisation; it also makes long keyword lists worth little. By words alone, the top ten held all
relevant tools for 92.6 of 100 queries; for 92.4 at 0.75, the usual value, and for 92.1 at 0.6."""
USUAL_LENGTH: Final = 25.0
"""Weighted terms of an ordinary description. A constant in place of the catalog's average: a weight never changes
because another tool was added or removed."""
MOST_REPEATS: Final = 2
"""Occurrences of a term that count in one field; more are keyword stuffing. With four, a tool that repeats itself in
every field rose from fourth to first; with two, to second. Four found a point more in one of three measures, less than
its noise."""
LONGEST_FIELD: Final = 4000
"""Characters of a field that are read: later text does not say what the tool is for."""

# The constants down to LONGEST_PASSAGE are part of the index: who changes one raises RECIPE in the store's passages.py.
PASSAGE_TITLE: Final = 0.5
"""Who speaks, or under which heading: 0.25, 1.0 and 2.0 found as many turns, none at all a few less."""
PASSAGE_CONTEXT: Final = 0.3
"""A passage that says it itself comes before one that only stands next to it."""
PASSAGE_B: Final = 0.5
USUAL_PASSAGE: Final = 20.0
"""Length matters less than among tools: a long turn says more, it does not repeat itself. Between 0.25 and 0.75, and 10
and 40 terms, as many were found."""
LONGEST_PASSAGE: Final = 16_000
"""Characters of a passage that are read."""

NEIGHBOURS: Final = (0.4, 0.4, 0.2, 0.2)
"""What the scores of the passages one before, one after, two before and two after in a thread add to a passage's own:
people ask in the words of the question that came before an answer. In made-up talks in three languages, the first ten
held 80, 60 and 90 of a hundred answers; without neighbours 59, 42 and 85."""
UNRELATED: Final = 0.15
"""Texts that have nothing to do with each other reach this cosine."""
WORDS_ALONE: Final = 1.5
"""Without vectors, half of a query's words are a good answer: the others are how it asks."""
LEAST_TEXTS: Final = 100
"""Few texts do not show how rare a word is: this many without it are added."""
COMMON: Final = 1.4
"""A query's word that a quarter of all passages have says nothing about meaning: often it is who speaks."""
FEWEST_TEXTS: Final = 40
"""Among fewer passages no word is common."""

LEXICAL: Final = 0.5
SEMANTIC: Final = 0.5
"""Equal weights: measured better than reciprocal rank fusion, which ignores by how much the first was better."""
CLAUSE: Final = 1.0
"""The weight of the best clause of a long query, relative to the whole: each clause may ask for a different tool, and
the whole is an average that fits none of them. At 1.0 the top ten hold all relevant tools for 95 of 100 queries, at
0.25 for 92, without clauses for 84."""
FEWEST_TERMS: Final = 3
"""A clause with fewer terms is joined to the next one: alone it would match anything."""
MOST_CLAUSES: Final = 12
"""Each clause costs a pass over its postings; more than twelve changed nothing."""
MOST_TERMS: Final = 160
"""Distinct terms of a query that are looked up; a longer text repeats itself."""
MOST_PARTS: Final = 400
"""N-grams of a query that are looked up."""
LONGEST_QUERY: Final = 8000
"""Characters of a query that are read."""

BEST_TOOL: Final = 0.5
OWN_TEXT: Final = 0.5
"""An agent is ranked by its own text and by its best tool, with equal weights: either alone found two to nine of a
hundred fewer among the first five."""
WORDS: Final = 1.5
"""The weight of the lexical share relative to the cosine where agents are compared: few words of a question occur in
the text that answers it. Values between one and three change little."""
ENOUGH_WORDS: Final = 0.025
"""The lexical share from which an agent is chosen: the query and the agent share a word that few others have."""
ENOUGH_MEANING: Final = 0.17
"""The cosine from which an agent is chosen. Below both thresholds, the best hit is so by chance."""

_BREAKS: Final = re.compile(
    r"(?<=[.!?]) |[\n;。！？；]+"
    r"|, (?=\w+ \w+ \w+)|，"  # a comma before three words starts a clause; before fewer it separates items of a list
    r"| (?:and then|then|also|затем|потом|а также) |然后|接着"
)


def weights(fields: Mapping[Field, str]) -> dict[str, float]:
    """BM25 without the inverse document frequency, which is applied at query time: term -> weight in this text."""
    counts, length = _counted([(text[:LONGEST_FIELD], FIELD_WEIGHTS[field]) for field, text in fields.items()])
    for name in tokenizer.joined(fields.get("name", "")):
        counts.setdefault(name, FIELD_WEIGHTS["name"])
    return _saturated(counts, K1 * (1 - B + B * length / USUAL_LENGTH))


def passage_weights(text: str, title: str, context: str) -> dict[str, float]:
    """The same for a passage."""
    fields = ((text, 1.0), (title, PASSAGE_TITLE), (context, PASSAGE_CONTEXT))
    counts, length = _counted([(field[:LONGEST_PASSAGE], factor) for field, factor in fields])
    return _saturated(counts, K1 * (1 - PASSAGE_B + PASSAGE_B * length / USUAL_PASSAGE))


def _counted(fields: Sequence[tuple[str, float]]) -> tuple[dict[str, float], float]:
    """Term -> how often it occurs, weighted; and the weighted number of all terms."""
    found = defaultdict[str, float](float)
    length = 0.0
    for text, factor in fields:
        times = defaultdict[str, int](int)
        for term in tokenizer.terms(text) if text else ():
            if times[term] < MOST_REPEATS:
                times[term] += 1
                found[term] += factor
                length += factor
                parts = tokenizer.parts(term)
                for part in parts:
                    found[part] += factor * PARTS / len(parts)
    return found, length


def _saturated(counts: Mapping[str, float], norm: float) -> dict[str, float]:
    return {term: count * (K1 + 1) / (count + norm) for term, count in counts.items()}


def words(query: str) -> list[str]:
    """The distinct terms of a query that are looked up."""
    return list(dict.fromkeys(tokenizer.terms(query)))[:MOST_TERMS]


def with_parts(words: Sequence[str]) -> list[str]:
    """The words of a query with their n-grams."""
    parts = dict.fromkeys(part for word in words for part in tokenizer.parts(word))
    return [*words, *list(parts)[:MOST_PARTS]]


def rarity(found_in: int, texts: int) -> float:
    """The inverse document frequency of a term that `found_in` of all texts contain."""
    return float(np.log1p((texts - found_in + 0.5) / (found_in + 0.5)))


def shortened(query: str) -> str:
    """Normalises white space; keeps the beginning and the end of a long query, where people say what they want."""
    lines = (" ".join(line.split()) for line in query.splitlines())
    tidy = "\n".join(line for line in lines if line)
    half = LONGEST_QUERY // 2
    return tidy if len(tidy) <= LONGEST_QUERY else f"{tidy[:half]}\n{tidy[-half:]}"


def clauses(query: str) -> list[str]:
    """The clauses of a long query, each of which may ask for something else; empty where the query is one clause."""
    found: list[str] = []
    part: list[str] = []
    known: set[str] = set()
    for piece in _BREAKS.split(query):
        part.append(piece)
        known.update(tokenizer.terms(piece))
        if len(known) >= FEWEST_TERMS:
            found.append(" ".join(part))
            part, known = [], set()
    if part and found:
        found[-1] = " ".join((found[-1], *part))
    while len(found) > MOST_CLAUSES:
        found = [" ".join(found[start : start + 2]) for start in range(0, len(found), 2)]
    return found if len(found) > 1 else []


def scaled(scores: Scores) -> Scores:
    """Scales scores to 0..1 by the best one. No minimum is needed: zero means no match in words and in vectors."""
    best = scores.max(initial=np.float32(0))
    return np.maximum(scores, np.float32(0)) / best if best > 0 else np.zeros_like(scores)


def fused(lexical: Scores, semantic: Scores | None) -> Scores:
    """One score between 0 and 1 for each candidate; without a vector (cosine 0), the lexical score counts alone."""
    words = scaled(lexical)
    if semantic is None:
        return words
    meaning = scaled(semantic)
    meaning[semantic == 0] = words[semantic == 0]
    return LEXICAL * words + SEMANTIC * meaning


def with_clauses(whole: Scores, parts: Sequence[Scores]) -> Scores:
    """Combines the scores of the whole query with those of the best clause, between 0 and 1."""
    return (whole + CLAUSE * np.maximum.reduce(parts)) / (1 + CLAUSE) if parts else whole


def with_neighbours(scores: Scores, links: Places, places: Places) -> Scores:
    """The scores at these places, with a part of those of their neighbours; in `links`, -1 stands for none."""
    beside = links[:, places]
    parts = np.where(beside >= 0, scores[beside], np.float32(0)) * np.array(NEIGHBOURS, np.float32)[:, None]
    spread: Scores = scores[places] + parts.sum(axis=0)
    return spread


def relevance(lexical: float, semantic: float | None) -> float:
    """How well a passage answers a query, between 0 and 1, by the share of the query's words and the cosine."""
    if semantic is None:
        return 1 - float((1 - lexical) ** WORDS_ALONE)
    near = max(semantic - UNRELATED, 0.0) / (1 - UNRELATED)
    return 1 - (1 - lexical) * (1 - min(near, 1.0))
