"""One index for passages of text: found by words, meaning and the passages next to them, within scopes.

Filters apply before ranking. What is deleted leaves no word behind, see store/search/passages.py.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec
import structlog

from longhouse import arrays, background
from longhouse.arrays import np
from longhouse.errors import ProviderError
from longhouse.models.protocol import Embedder
from longhouse.search import passage_ranking, ranking, scores, tokenizer
from longhouse.search.bounded_embedder import EMBED_WITHIN, RETRY_AFTER, BoundedEmbedder, space_of
from longhouse.search.passage_ranking import PassageRanking, Ranked
from longhouse.search.passage_terms import clean, clean_value, fact_term, gist, group_terms, weights
from longhouse.search.query_embedder import QueryEmbedder, split
from longhouse.search.scores import QueryPostings
from longhouse.store.database import Database, Transaction
from longhouse.store.search import index
from longhouse.store.search import passages as stored
from longhouse.store.search.passage_cache import Columns, Mask, PassageCache
from longhouse.store.search.passages import PassageEntry, Shard
from longhouse.store.search.vectors import Space, packed

log = structlog.get_logger()

EMBEDDED_AT_ONCE: Final = 256
EMBEDDED_TOGETHER: Final = 128
"""Texts of a new document that share one time limit: a long document may take long if each batch comes in time."""
LOOK_EVERY: Final = 300.0
"""Seconds between looks for passages that other processes wrote without vectors."""
FIRST_AFTER: Final = 5.0
"""Seconds from the start of a process until it looks for passages that are not up to date."""
TABLES: Final = "longhouse/"
"""Begins the names of models that are tables of ours: their similarities are on one scale, other models' on others."""
PASSAGE: Final = "passage"
"""Before the number of a passage, in its name."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_SHORT_FORM: Final = re.compile(r"['\u2019](?:s|t|d|m|ll|re|ve)\b", re.IGNORECASE)
"""What is left of a word in `Anna's` and `don't`: no word of its own."""
_WORD: Final = re.compile("[A-Za-z\u00c0-\u024f\u0400-\u04ff]+")


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """A text to be found."""

    scope: str
    """Who may find it; chosen by the caller."""
    kind: str
    """`document`, `interaction`, `note` or `file`."""
    source: str
    """Unique within scope and kind."""
    group: str
    """What it is deleted by: a session, a document, a file. Of an interaction and a note, the session's id."""
    text: str
    """What is shown and found."""
    title: str = ""
    """A speaker, a heading, a file name: found too."""
    context: str = ""
    """Found with less weight, not shown."""
    at: datetime | None = None
    facts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Shown, and filtered by; a list is matched by each of its items."""
    thread: str = ""
    """Passages of one thread are found by their neighbours' words too, with less weight; none: it stands alone."""
    position: int = 0
    """The order within the thread; of two with the same, the one written first comes first."""


class PassageHit(msgspec.Struct, frozen=True, kw_only=True):
    """A found passage."""

    id: int
    scope: str
    kind: str
    source: str
    group: str
    text: str
    title: str
    at: datetime | None
    facts: Mapping[str, Any]
    score: float = 0.0
    """Between 0 and 1; ranks within one search."""
    relevance: float = 0.0
    """Between 0 and 1, comparable between searches: the same sentence is near 1, what has nothing to do with the query
    below 0.3, a good answer in the query's words above 0.5."""
    told: float = 0.0
    """The relevance as documents tell it: a good answer is above 0.5, in other words too."""
    lexical: float = 0.0
    """The share of the query's words that the passage has, rare words counting more."""
    semantic: float | None = None
    """The cosine similarity; None without a vector."""

    @property
    def name(self) -> str:
        """What it is called in journals. What journals tell has the same name when it is made again from them; the
        source of a file may have another text by then."""
        return f"{self.kind}:{self.source}" if self.kind in stored.OF_SESSIONS else f"{PASSAGE}:{self.id}"


class PreparedPassages(msgspec.Struct, frozen=True):
    """Passages that are ready to be stored."""

    entries: Sequence[PassageEntry]
    model: int | None


class PassageIndex:
    """Writes, deletes and searches passages; without an embedding model, by words alone."""

    def __init__(self, db: Database, embedder: Embedder | None) -> None:
        self.db = db
        self._embedder = embedder
        self._queries = QueryEmbedder(db, embedder)
        self._cache = PassageCache(db)
        self._bounded = BoundedEmbedder(embedder, consequence="new passages are found by words alone until it works")
        self._is_working = False
        self._lacks_vectors = asyncio.Event()
        self._wait: float | None = FIRST_AFTER
        self._has_led = False

    @asynccontextmanager
    async def working(self) -> AsyncIterator[PassageIndex]:
        """Brings passages up to date in the background while the block lasts."""
        async with background.running("passage_index", self._poll):
            self._is_working = True
            try:
                yield self
            finally:
                self._is_working = False

    async def _poll(self) -> None:
        """Catches up at the start, after a failure of the model, and when passages were written without vectors."""
        if self._wait is None:
            await self._until_vectors_lack()
        else:
            await asyncio.sleep(self._wait)
        self._lacks_vectors.clear()
        self._wait = RETRY_AFTER  # if Postgres fails meanwhile
        self._wait = None if await self.catch_up() else RETRY_AFTER

    async def _until_vectors_lack(self) -> None:
        """Looks from time to time as well: a command has nobody who would embed later."""
        while not self._lacks_vectors.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._lacks_vectors.wait()
            if self._embedder is not None and await stored.lacking(self.db, None, after=0, limit=1):
                return

    async def catch_up(self) -> bool:
        """Weighs the terms of older releases again, and embeds passages without a vector; False if the model failed.

        Passages with vectors of another model are embedded once in the life of a process: two processes with different
        models would otherwise embed everything for ever.
        """
        for shard in await stored.outdated(self.db):
            while await self.db.together(lambda tx, of=shard: stored.move(tx, of, _weigh)):  # type: ignore[misc]
                pass
        if self._embedder is None:
            return True
        try:
            space = await space_of(self.db, self._embedder)
            others = [] if self._has_led else await stored.other_models(self.db, space.model)
            for model in (None, *others):
                await self._embed_all(model, space)
        except ProviderError as error:
            self._bounded.failed(error)
            return False
        self._has_led = True
        return True

    async def _embed_all(self, model: int | None, space: Space) -> None:
        """Embeds the passages that have vectors of this model, or none."""
        assert self._embedder is not None
        after = 0
        while rows := await stored.lacking(self.db, model, after=after, limit=EMBEDDED_AT_ONCE):
            vectors = packed(await self._embedder.embed([gist(row["kind"], row["title"], row["text"]) for row in rows]))
            await stored.embed(self.db, rows, vectors, space.model)
            after = rows[-1]["id"]
            log.info("passages_embedded", count=len(rows))

    async def write(self, passages: Sequence[Passage]) -> None:
        """Writes passages in one transaction, in the place of those with the same scope, kind and source."""
        if passages:
            ready = await self.prepare(passages)
            await self.db.together(lambda tx: self.store(tx, ready))

    async def prepare(self, passages: Sequence[Passage], *, within: float = EMBED_WITHIN) -> PreparedPassages:
        """Computes what is slow, for `store` in a transaction that does more than that.

        Passages whose vectors take longer than these seconds are stored without, and are embedded in the background.
        """
        await arrays.loaded()
        vectors, space = await self._vectors([gist(one.kind, one.title, one.text) for one in passages], within)
        entries = await asyncio.to_thread(lambda: [_entry(*one) for one in zip(passages, vectors, strict=True)])
        return PreparedPassages(entries, space.model if space else None)

    async def store(
        self, tx: Transaction, ready: PreparedPassages, kept: Callable[[PassageEntry], bool] = lambda entry: True
    ) -> None:
        """Writes prepared passages, those that are `kept`; a transaction that also removes some removes them before."""
        await stored.write(tx, list(filter(kept, ready.entries)), ready.model)

    async def read(self, names: Sequence[str], scopes: Sequence[str]) -> list[PassageHit]:
        """The passages of these scopes with these names that still are there, in the order given."""
        parts = [name.partition(":")[::2] for name in names]
        numbers = [int(rest) for kind, rest in parts if kind == PASSAGE and _NUMBER.fullmatch(rest)]
        sources = [part for part in parts if part[0] in stored.OF_SESSIONS]
        if not numbers and not sources:
            return []
        hits = [_hit(row) for row in await stored.read(self.db, scopes, numbers, sources)]
        # What was recalled before names were stable has a number.
        there = {f"{PASSAGE}:{hit.id}": hit for hit in hits} | {hit.name: hit for hit in hits}
        return [there[name] for name in names if name in there]

    async def search(
        self,
        query: str,
        scopes: Sequence[str],
        *,
        kinds: Sequence[str],
        limit: int,
        groups: Sequence[str] | None = None,
        not_groups: Sequence[str] = (),
        facts: Mapping[str, Sequence[str]] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        within: float = EMBED_WITHIN,
    ) -> list[PassageHit]:
        """The best passages first. `since` is included, `until` is not; of each fact, any of its values will do.

        By words alone, if the query's vectors take longer than `within` seconds.
        """
        if limit <= 0 or not scopes or not kinds:
            return []
        texts = split(_SHORT_FORM.sub(" ", clean(query)))
        words = [ranking.words(text) for text in texts]
        terms = [ranking.with_parts(text) for text in words]
        only = [group_terms(groups)] if groups is not None else []
        only += [[fact_term(name, value) for value in values] for name, values in (facts or {}).items()]
        if not all(only):
            return []
        without = group_terms(not_groups)
        wanted = dict.fromkeys(term for text in (*terms, *only, without) for term in text)
        rows = await stored.read_shards(self.db, scopes, kinds, list(wanted))
        if not rows:
            return []
        found = await scores.weighted_aside(rows)
        asked = await self._queries.embedded(tuple(_telling(text, found) for text in texts), within=within)
        columns = await self._cache.of(asked.space, _shards(rows), found.shards.live)
        permitted = found.shards.live & _within(columns, since, until)
        for allowed in only:
            permitted &= found.having(allowed)
        if without:
            permitted &= ~found.having(without)
        coarse = await columns.coarse(asked.vectors[0]) if asked.vectors is not None else None
        rank = PassageRanking(found, columns, permitted, asked.vectors, coarse)
        ranked = await asyncio.to_thread(rank.best, terms, limit)
        hits = await self._hits(ranked, found, words[0])
        told = [hit.relevance for hit in hits]
        if asked.vectors is not None and self._embedder and self._embedder.name.startswith(TABLES):
            told = passage_ranking.told(query, told)
        return [msgspec.structs.replace(hit, told=one) for hit, one in zip(hits, told, strict=True)]

    async def _hits(self, ranked: Ranked, found: QueryPostings, words: Sequence[str]) -> list[PassageHit]:
        numbers = found.shards.numbers(ranked.places)
        rows = await stored.at(self.db, numbers)
        worth = {word: found.rarity(word, ranking.LEAST_TEXTS) for word in words}
        hits = []
        for nth, number in enumerate(numbers):
            if row := rows.get(number):
                lexical = coverage(worth, f"{row['title']}\n{row['text']}")
                semantic = float(ranked.cosines[nth]) or None if ranked.cosines is not None else None
                relevance, score = ranking.relevance(lexical, semantic), float(ranked.scores[nth])
                hits.append(_hit(row, score=score, relevance=relevance, lexical=lexical, semantic=semantic))
        return hits

    async def _vectors(self, gists: Sequence[str], within: float) -> tuple[Sequence[bytes | None], Space | None]:
        """A stored vector for each text and their space; None for texts that the model gave none in time."""
        found: list[bytes | None] = []
        space = None
        # A command that ends leaves nobody who would embed later: it waits as long as the model takes.
        limit = within if self._is_working else math.inf
        started = asyncio.get_running_loop().time()
        while len(found) < len(gists):
            # Who is in a hurry waits once, however many texts there are.
            waited = asyncio.get_running_loop().time() - started if limit < EMBED_WITHIN else 0.0
            if waited >= limit:
                break
            some = gists[len(found) : len(found) + EMBEDDED_TOGETHER]
            vectors = await self._bounded.embed(some, limit - waited)
            if vectors is None or self._embedder is None:
                break
            space = space or await index.make_space(self.db, self._embedder.name, vectors.shape[1])
            found += packed(vectors)
        if len(found) < len(gists) and self._embedder is not None:
            self._lacks_vectors.set()
        return [*found, *[None] * (len(gists) - len(found))], space


def _telling(text: str, found: QueryPostings) -> str:
    """The text without words that a large part of the passages has; whole, if nothing else is left."""
    if found.shards.documents < ranking.FEWEST_TEXTS:
        return text

    def is_common(word: str) -> bool:
        terms = tokenizer.terms(word)
        return bool(terms) and all(found.rarity(term) < ranking.COMMON for term in terms)

    left = _WORD.sub(lambda word: "" if is_common(word[0]) else word[0], text)
    return left if tokenizer.terms(left) else text


def coverage(worth: Mapping[str, float], text: str) -> float:
    """The share of the query's words, by their worth, that a text has; a word that has related ones counts in part."""
    total = sum(worth.values())
    if total <= 0:
        return 0.0
    there = set(tokenizer.terms(text))
    parts = {part for term in there for part in tokenizer.parts(term)}
    return sum(share * _shared(term, there, parts) for term, share in worth.items()) / total


def _shared(term: str, there: set[str], parts: set[str]) -> float:
    if term in there:
        return 1.0
    own = tokenizer.parts(term)
    return ranking.PARTS * sum(part in parts for part in own) / len(own) if own else 0.0


def _within(columns: Columns, since: datetime | None, until: datetime | None) -> Mask:
    """A passage without a time is in no range."""
    mask: Mask = np.ones(len(columns.at), np.bool_)
    if since is not None:
        mask &= columns.at >= since.timestamp()
    if until is not None:
        mask &= columns.at < until.timestamp()
    return mask


def _shards(rows: Sequence[asyncpg.Record]) -> list[Shard]:
    last = {row["id"]: row for row in rows}
    return [Shard(row["id"], row["revision"], row["slots"], row["gone"]) for row in last.values()]


def _entry(passage: Passage, vector: bytes | None) -> PassageEntry:
    given = clean_value(msgspec.structs.asdict(passage)) | {"at": passage.at}
    facts = given.pop("facts")
    terms = weights(given["text"], given["title"], given["context"], passage.group, facts)
    return PassageEntry(**given, facts=msgspec.json.encode(facts).decode(), weights=terms, vector=vector)


def _weigh(row: asyncpg.Record) -> dict[str, float]:
    return weights(row["text"], row["title"], row["context"], row["group"], msgspec.json.decode(row["facts_text"]))


def _hit(row: asyncpg.Record, **ranked: Any) -> PassageHit:
    shown = {name: row[name] for name in ("id", "scope", "kind", "source", "group", "text", "title", "at")}
    return PassageHit(**shown, facts=msgspec.json.decode(row["facts"]), **ranked)
