"""How well a text answers a query: the constants of the ranking, each with its reason, and what is done with them.

The figures behind the reasons come from public sets of tool queries, measured with `longhouse bench search`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from longhouse.search import tokenizer

Scores = npt.NDArray[np.float32]
Field = Literal["name", "short", "long", "labels", "parameters", "details"]

FIELD_WEIGHTS: Final[Mapping[Field, float]] = {
    "name": 2.0,  # A name is the shortest true description; three instead of two changed nothing.
    "short": 1.0,
    "labels": 1.0,  # Tags and categories are chosen words, like a description without the filling.
    "long": 0.5,  # It mostly repeats the short one in more words.
    "parameters": 0.5,  # Queries name what they give (`city`, `date`), but many tools take the same.
    "details": 0.5,  # Descriptions of parameters: with them, two more of a hundred relevant tools are found.
}
PARTS: Final = 0.5
"""What all parts of a word weigh together beside the word itself; a quarter and one found as much."""
K1: Final = 1.2
"""How soon a repeated word stops counting: the usual value. A word's weight never passes K1 + 1."""
B: Final = 0.85
"""How much length counts against a text, which also makes long lists of keywords worth little. By words alone, the top
ten held all relevant tools for 92.6 of 100 queries; for 92.4 at 0.75, the usual value, and for 92.1 at 0.6."""
USUAL_LENGTH: Final = 25.0
"""Weighted terms of an ordinary description. A constant instead of the catalog's average: no weight ever changes
because another tool came or went."""
MOST_REPEATS: Final = 2
"""Of one word in one field; more are stuffing. A tool that repeats itself in every field rose from fourth to first with
four, to second with two; four found a point more in one of three measures, less than its noise."""
LONGEST_FIELD: Final = 4000
"""Characters of a field that are read: what is not said by then is not what the tool is for."""

LEXICAL: Final = 0.5
SEMANTIC: Final = 0.5
"""Half and half: measured better than reciprocal ranks, which forget by how much the first was better."""
CLAUSE: Final = 1.0
"""The best single clause of a long query counts as much as the whole: each clause asks for a tool of its own, and the
whole is an average that none of them answers. At 1.0 the top ten hold all relevant tools for 95 of 100 queries, at 0.25
for 92, without clauses for 84."""
FEWEST_TERMS: Final = 3
"""A clause with fewer joins the next one: alone it would be answered by anything."""
MOST_CLAUSES: Final = 12
"""Each costs a pass over its postings; more than twelve changed nothing."""
MOST_TERMS: Final = 160
"""Different terms of a query that are looked up; a longer text repeats itself."""
MOST_PARTS: Final = 400
"""Parts of its words that are looked up."""
LONGEST_QUERY: Final = 8000
"""Characters of a query that are read."""

BEST_TOOL: Final = 0.5
OWN_TEXT: Final = 0.5
"""An agent is found by what it says of itself and by the best of its tools, half and half: either alone found two to
nine of a hundred fewer among the first five."""
WORDS: Final = 1.5
"""What the share of a query's words counts beside a cosine, where agents are compared by how much speaks for them: few
words of a question are in the text that answers it. Between one and three, nothing changes much."""
ENOUGH_WORDS: Final = 0.025
"""The share of a query's words from which an agent is chosen by them: some word that few others have."""
ENOUGH_MEANING: Final = 0.17
"""The cosine from which an agent is chosen by it. Below these two, what is best is so by chance."""

_BREAKS: Final = re.compile(
    r"(?<=[.!?]) |[\n;。！？；]+"
    r"|, (?=\w+ \w+ \w+)|，"  # a comma before three words begins a clause; before fewer it lists things
    r"| (?:and then|then|also|затем|потом|а также) |然后|接着"
)


def weights(fields: Mapping[Field, str]) -> dict[str, float]:
    """BM25 without the rarity, which is known only when a query is asked: term -> weight in this text."""
    found: dict[str, float] = {}
    length = 0.0
    for field, text in fields.items():
        factor = FIELD_WEIGHTS[field]
        times: dict[str, int] = {}
        for term in tokenizer.terms(text[:LONGEST_FIELD]) if text else ():
            before = times.get(term, 0)
            if before < MOST_REPEATS:
                times[term] = before + 1
                found[term] = found.get(term, 0.0) + factor
                length += factor
                parts = tokenizer.parts(term)
                for part in parts:
                    found[part] = found.get(part, 0.0) + factor * PARTS / len(parts)
    for name in tokenizer.joined(fields.get("name", "")):
        found.setdefault(name, FIELD_WEIGHTS["name"])
    norm = K1 * (1 - B + B * length / USUAL_LENGTH)
    return {term: count * (K1 + 1) / (count + norm) for term, count in found.items()}


def with_parts(words: Sequence[str]) -> list[str]:
    """A query's words, and the parts of those that have some."""
    parts = dict.fromkeys(part for word in words for part in tokenizer.parts(word))
    return [*words, *list(parts)[:MOST_PARTS]]


def rarity(found_in: int, texts: int) -> float:
    """What a term is worth that `found_in` of all texts have."""
    return float(np.log1p((texts - found_in + 0.5) / (found_in + 0.5)))


def shortened(query: str) -> str:
    """A query with its spaces tidied; of a long one the beginning and the end, where people say what they want."""
    lines = (" ".join(line.split()) for line in query.splitlines())
    tidy = "\n".join(line for line in lines if line)
    half = LONGEST_QUERY // 2
    return tidy if len(tidy) <= LONGEST_QUERY else f"{tidy[:half]}\n{tidy[-half:]}"


def clauses(query: str) -> list[str]:
    """The parts of a long query that may each ask for something else; none where the query is one thought."""
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
    """Between nothing and the best. Nothing is zero in both legs, so the floor is known and need not be found."""
    best = scores.max(initial=np.float32(0))
    return np.maximum(scores, np.float32(0)) / best if best > 0 else np.zeros_like(scores)


def fused(lexical: Scores, semantic: Scores | None) -> Scores:
    """One score between 0 and 1 for each candidate; where there is no vector (a cosine of 0), words decide alone."""
    words = scaled(lexical)
    if semantic is None:
        return words
    meaning = scaled(semantic)
    meaning[semantic == 0] = words[semantic == 0]
    return LEXICAL * words + SEMANTIC * meaning


def with_clauses(whole: Scores, parts: Sequence[Scores]) -> Scores:
    """The whole query's scores and the best clause's, between 0 and 1."""
    return (whole + CLAUSE * np.maximum.reduce(parts)) / (1 + CLAUSE) if parts else whole
