"""Finds tools and templates by what they do: words and vectors, filtered before they are ranked."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import asyncpg
import numpy as np
import numpy.typing as npt

from longhouse.agents import ranking, terms
from longhouse.agents.document import RISKS
from longhouse.agents.ranking import Scores
from longhouse.agents.tool import RiskLevel
from longhouse.store import postings
from longhouse.store.database import Database
from longhouse.store.postings import Found
from longhouse.store.shelf import Kind
from longhouse.store.vectors import Kept, Near, Space, Vectors

Places = npt.NDArray[np.intp]

WHOLE: Final = 60
"""Candidates by the words of the whole query."""
PER_CLAUSE: Final = 20
"""Candidates by the words of each clause."""
NEAREST: Final = 30
"""Candidates by the whole query's vector. Most are found by words too; these are for queries in other words."""
NARROW: Final = 1000
"""Up to so many permitted texts, all of them are candidates."""

# The index follows the catalog by a moment; what the catalog says now is what counts. LIMIT keeps the planner from
# starting at the catalog, which it would do after many were published at once.
NOW: Final = """
    CROSS JOIN LATERAL (
        SELECT active FROM catalog_names n
        WHERE n.kind = d.kind AND n.name = d.name AND n.retired_at IS NULL AND (n.owner IS NULL OR n.owner = $1) LIMIT 1
    ) n
"""
AT: Final = f"""
    CROSS JOIN LATERAL (
        SELECT * FROM search_documents d
        WHERE d.shard = (c.place / {postings.SLOTS})::int AND d.slot = (c.place % {postings.SLOTS})::int LIMIT 1
    ) d
"""

USERS: Final = """
    SELECT d.name, n.active AS version, d.tools FROM search_documents d
    JOIN catalog_names n ON n.kind = 'template' AND n.name = d.name AND n.active IS NOT NULL AND n.retired_at IS NULL
    WHERE d.kind = 'template' AND d.tools && $2::text[]
      AND (d.owner IS NULL OR d.owner = $1) AND (n.owner IS NULL OR n.owner = $1)
    ORDER BY d.name
"""


@dataclass(frozen=True, slots=True)
class Filters:
    """Who asks, and what may be found at all."""

    caller: str | None = None
    """An owner; None sees what is everybody's."""
    allow: tuple[str, ...] | None = None
    """Names, or `<prefix>.*`; None: all."""
    deny: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    max_risk: RiskLevel = "high"
    template: str | None = None
    """Whose agent asks."""
    is_sub: bool = False

    def conditions(self, args: list[object]) -> str:
        """What must hold of a text `d`. Only what is asked for is asked: each condition costs every text its time."""

        def given(value: object) -> str:
            args.append(value)
            return f"${len(args)}"

        caller, template = given(self.caller), given(self.template)
        held = [f"(d.owner IS NULL OR d.owner = {caller}::text)"]
        held.append(f"(d.templates IS NULL OR {template}::text = ANY(d.templates))")
        if self.allow is not None:
            names, beneath = split(self.allow)
            held.append(f"(d.name = ANY({given(names)}::text[]) OR d.name LIKE ANY({given(beneath)}::text[]))")
        if self.deny:
            names, beneath = split(self.deny)
            held.append(f"NOT (d.name = ANY({given(names)}::text[]) OR d.name LIKE ANY({given(beneath)}::text[]))")
        if self.types:
            held.append(f"d.type = ANY({given(list(self.types))}::text[])")
        if self.tags:
            held.append(f"d.tags && {given(list(self.tags))}::text[]")
        if self.max_risk != "high":
            held.append(f"d.risk <= {RISKS[self.max_risk]:d}")
        if self.is_sub:
            held.append("d.sub_agents")
        return " AND ".join(held)


@dataclass(frozen=True, slots=True)
class Query:
    """What is looked for: the whole, then its clauses; with a vector of each where there is a model for it."""

    texts: tuple[str, ...]
    vectors: Vectors | None = None
    space: Space | None = None

    @property
    def words(self) -> list[list[str]]:
        """The terms of each text."""
        return [list(dict.fromkeys(terms.terms(text)))[: ranking.MOST_TERMS] for text in self.texts]


def texts_of(query: str) -> tuple[str, ...]:
    """The query and its clauses."""
    query = ranking.shortened(query)
    return (query, *ranking.clauses(query))


@dataclass(frozen=True, slots=True)
class Hit:
    """Something found. Scores rank within one search; the legs can be compared between searches."""

    name: str
    version: int
    score: float
    lexical: float
    """The part of what the query's words could bring at most."""
    semantic: float | None
    """The cosine; None where there is no vector."""
    clause: float | None
    """The best clause's score; None where the query has no clauses."""


class Search:
    def __init__(self, db: Database, kind: Kind, kept: Kept) -> None:
        self.db = db
        self.kind = kind
        self._kept = kept

    async def find(self, query: Query, filters: Filters, top_k: int) -> list[Hit]:
        words = query.words
        asked = [ranking.with_parts(text) for text in words]
        wanted = list(dict.fromkeys(term for text in asked for term in text))
        if filters.allow == () or top_k <= 0 or (not wanted and query.vectors is None):
            return []
        found = await postings.read(self.db, self.kind, filters.caller, wanted)
        scores = await _scored(found, asked)
        near = await self._kept.of(query.space, found.shards) if query.space else None
        rows = await self._candidates(query, filters, found, scores, near)
        places = found.places(rows)
        rows = [row for row, place in zip(rows, places.tolist(), strict=True) if place >= 0]
        places = places[places >= 0]
        similar = near.between(query.vectors, places) if near is not None and query.vectors is not None else None
        best = sum(found.rarity(term) for term in words[0]) * (ranking.K1 + 1)
        return _ranked(rows, scores[:, places], similar, best, top_k)

    async def nearest(self, query: Query, count: int) -> list[str]:
        """Everybody's by the vector alone."""
        assert query.space is not None
        assert query.vectors is not None
        found = await postings.read(self.db, self.kind, None, ())
        cosines = await (await self._kept.of(query.space, found.shards)).to(query.vectors[0])
        rows = await self._at(Filters(), found, [_top(cosines, count)])
        places = found.places(rows)
        order = sorted(np.flatnonzero(places >= 0).tolist(), key=lambda nth: -cosines[places[nth]])
        return [rows[nth]["name"] for nth in order]

    async def _candidates(
        self, query: Query, filters: Filters, found: Found, scores: Scores, near: Near | None
    ) -> Sequence[asyncpg.Record]:
        if filters.allow is not None or found.size <= NARROW:
            rows = await self._all(filters)
            if len(rows) <= NARROW:
                return rows
        cosines = await near.to(query.vectors[0]) if near is not None and query.vectors is not None else None
        leading = _leading(scores, cosines)
        rows = await self._at(filters, found, leading)
        there = found.mask(rows)
        if all(2 * np.count_nonzero(there[places]) >= len(places) for places in leading):
            return rows
        # What is not permitted took the places of what is: only what is permitted may compete for them.
        mask = found.mask(await self._permitted(filters))
        return await self._at(filters, found, _leading(scores * mask, None if cosines is None else cosines * mask))

    async def _all(self, filters: Filters) -> Sequence[asyncpg.Record]:
        """Whatever is permitted, as far as it is not too much."""
        args: list[object] = []
        sql = self._select("search_documents d", filters.conditions(args))
        return await self.db.rows(f"{sql} LIMIT {NARROW + 1}", *args)

    async def _permitted(self, filters: Filters) -> Sequence[asyncpg.Record]:
        args: list[object] = []
        held = filters.conditions(args)
        return await self.db.rows(
            f"SELECT d.shard, d.slot FROM search_documents d WHERE d.kind = '{self.kind}' AND {held}", *args
        )

    async def _at(self, filters: Filters, found: Found, leading: Sequence[Places]) -> Sequence[asyncpg.Record]:
        """Those at the places."""
        args: list[object] = []
        held = filters.conditions(args)
        args.append(found.where(np.unique(np.concatenate(leading))))
        candidates = f"unnest(${len(args)}::bigint[]) AS c (place)"
        return await self.db.rows(self._select(f"{candidates} {AT}", held), *args)

    def _select(self, candidates: str, held: str) -> str:
        return f"""
            SELECT d.name, n.active AS version, d.shard, d.slot
            FROM {candidates} {NOW}
            WHERE d.kind = '{self.kind}' AND n.active IS NOT NULL AND {held}
        """


@dataclass(frozen=True, slots=True)
class User:
    """A template that names tools."""

    name: str
    version: int
    tools: tuple[str, ...]


async def users_of(db: Database, tools: Sequence[str], caller: str | None) -> list[User]:
    """The templates that name any of these tools."""
    rows = await db.rows(USERS, caller, list(tools))
    return [User(row["name"], row["version"], tuple(row["tools"])) for row in rows]


async def _scored(found: Found, asked: list[list[str]]) -> Scores:
    if found.postings * len(asked) < postings.BUSY:
        return found.scores(asked)
    return await asyncio.to_thread(found.scores, asked)


def _leading(scores: Scores, cosines: Scores | None) -> list[Places]:
    """The places that lead by the words of the whole query, of each clause, and by the query's vector."""
    leading = [_top(row, WHOLE if nth == 0 else PER_CLAUSE) for nth, row in enumerate(scores)]
    return leading if cosines is None else [*leading, _top(cosines, NEAREST)]


def _top(scores: Scores, count: int) -> Places:
    """The places of the highest scores. Those far below the best are passed over before any sorting."""
    best = scores.max(initial=np.float32(0))
    for floor in (best / 2, best / 4, np.float32(0)):
        above = np.flatnonzero(scores > floor)
        if len(above) >= count:
            return above[np.argpartition(scores[above], -count)[-count:]]
    return above


def _ranked(
    rows: Sequence[asyncpg.Record], lexical: Scores, similar: Scores | None, best: float, top_k: int
) -> list[Hit]:
    if not rows:
        return []
    parts = [ranking.fused(words, similar[nth] if similar is not None else None) for nth, words in enumerate(lexical)]
    scores = ranking.with_clauses(parts[0], parts[1:])
    clause = np.maximum.reduce(parts[1:]) if parts[1:] else None
    names = [row["name"] for row in rows]
    order = sorted(np.flatnonzero(scores > 0).tolist(), key=lambda nth: (-scores[nth], names[nth]))
    return [
        Hit(
            name=names[nth],
            version=rows[nth]["version"],
            score=float(scores[nth]),
            lexical=float(lexical[0, nth]) / best if best > 0 else 0.0,
            semantic=float(similar[0, nth]) or None if similar is not None else None,
            clause=float(clause[nth]) if clause is not None else None,
        )
        for nth in order[:top_k]
    ]


def split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Plain names, and patterns for those that stand for all beneath them."""
    plain = [name for name in names if not name.endswith(".*")]
    beneath = [name[:-1] for name in names if name.endswith(".*")]
    escaped = [name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for name in beneath]
    return plain, [f"{name}%" for name in escaped]
