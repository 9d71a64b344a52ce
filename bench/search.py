"""Tool search among thousands: how fast it indexes, how fast it selects, what is missed of the nearest."""

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from bench.house import Ground
from longhouse.agents.template import Template, ToolPolicy
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.journal.events import Limits, Prompted
from longhouse.journal.session import Session, Turn
from longhouse.models import embedding_table
from longhouse.models.protocol import Embedder
from longhouse.search import document, ranking, scores, tokenizer
from longhouse.search.document import ToolFacts
from longhouse.search.finder import Finder
from longhouse.search.indexer import Indexer
from longhouse.search.selection import ToolSearchService
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.search import index, postings
from longhouse.store.search import query as search
from longhouse.store.search.index import IndexedText
from longhouse.store.search.query import SearchFilters
from longhouse.store.search.vectors import VectorCache, Vectors

# Words of made-up services: what is done, with what, of which kind, where.
_VERBS = """
    get list find create update delete send schedule cancel compare convert translate summarize analyze estimate
    validate export import merge split archive restore approve reject assign track monitor forecast classify
    extract upload download render book refund invoice subscribe publish review rank filter group encrypt
    decrypt sign verify
"""
_THINGS = """
    invoice payment customer order shipment warehouse contract employee salary vacation meeting calendar email
    message document report spreadsheet image video audio recording transcript photo map route flight hotel
    train ticket restaurant recipe ingredient allergy patient prescription diagnosis symptom appointment vaccine
    hospital insurance claim policy loan mortgage account transfer currency stock bond portfolio dividend tax
    budget expense receipt project task milestone bug release deployment server container database backup log
    metric alert incident repository branch commit pipeline secret certificate domain website page form survey
    campaign audience advertisement lead opportunity quote product catalog inventory supplier purchase return
    review rating weather forecast earthquake river forest species sensor turbine battery vehicle parking
    charger road bridge building apartment lease tenant repair elevator course lesson exam student teacher grade
    library book article citation
"""
_QUALITIES = """
    daily weekly monthly overdue recent archived public private shared regional international domestic urgent
    pending approved rejected duplicate incomplete encrypted compressed anonymous verified seasonal historical
    upcoming remote local corporate personal medical legal financial industrial agricultural maritime academic
    municipal rural urban electric digital printed handwritten automatic manual
"""
_PLACES = """
    country city region department team branch supplier customer project year quarter category language
"""
VERBS = _VERBS.split()
THINGS = _THINGS.split()
QUALITIES = _QUALITIES.split()
PLACES = _PLACES.split()


def catalog_of(count: int, seed: int = 7) -> list[ToolDescriptor]:
    """Tools of made-up services, the same in every run."""
    chance = random.Random(seed)
    return [_tool(number, chance) for number in range(count)]


def _tool(number: int, chance: random.Random) -> ToolDescriptor:
    verb, quality, place = chance.choice(VERBS), chance.choice(QUALITIES), chance.choice(PLACES)
    thing, other = chance.sample(THINGS, 2)
    names = [f"{thing}_id", place, chance.choice(("start_date", "limit", "format", "status")), f"{other}_name"]
    properties = {name: {"type": "string", "description": f"The {name.replace('_', ' ')} to use"} for name in names}
    return ToolDescriptor(
        name=f"{verb}_{quality}_{thing}_{number}",
        description_short=f"{verb.capitalize()} the {quality} {thing} of a {place}, together with its {other}.",
        input_schema={"type": "object", "properties": properties},
        runtime_binding=RuntimeBinding(remote_endpoint="https://tools.invalid/"),
    )


def queries_of(count: int, seed: int = 11) -> list[str]:
    """Some ask for one thing, some for two in a row."""
    chance = random.Random(seed)
    texts = []
    for number in range(count):
        first, second = chance.sample(THINGS, 2)
        text = f"Please {chance.choice(VERBS)} the {chance.choice(QUALITIES)} {first} for my {chance.choice(PLACES)}."
        if number % 2:
            text += f" Then {chance.choice(VERBS)} each {chance.choice(QUALITIES)} {second} and tell me what you found."
        texts.append(text)
    return texts


async def measure(ground: Ground, count: int, *, asked: int = 200) -> dict[str, Any]:
    """One catalog: published, indexed twice, searched."""
    db, tools = ground.db, catalog_of(count)
    await db.run("TRUNCATE catalog_names, catalog_versions")
    catalog, embedder = Catalog(db), embedding_table.EmbeddedEmbedder()
    await embedder.embed([])  # loads the table
    for start in range(0, count, 2000):
        await catalog.tools.publish(tools[start : start + 2000], by="bench")
    lexical = await _timed(Indexer(db, None))
    complete = await _timed(Indexer(db, embedder))
    finder = Finder(db, embedder)
    service, queries = ToolSearchService(catalog, finder), queries_of(asked)
    seconds = await _selects(service, queries)
    vectors = await embedder.embed([_read(tool).gist for tool in tools])
    brute = _brute(tools, queries[:5]) + _exact(vectors, await embedder.embed(queries[:5]))
    p50, p95 = statistics.median(seconds), float(np.percentile(seconds, 95))
    return {
        "tools": count,
        "select p50 ms": f"{1000 * p50:.1f}",
        "select p95 ms": f"{1000 * p95:.1f}",
        "brute force ms": f"{1000 * brute:.0f}",
        "times faster": f"{brute / p50:.0f}",
        "lexical tools/s": f"{count / lexical:.0f}",
        "complete tools/s": f"{count / complete:.0f}",
        "recall of 10 nearest": f"{await _recall(NearestTools(finder), embedder, tools, vectors, queries[:100]):.3f}",
    }


async def _timed(indexer: Indexer) -> float:
    begun = time.perf_counter()
    await index.empty(indexer.db)
    await indexer.catch_up()
    return time.perf_counter() - begun


async def _selects(service: ToolSearchService, queries: Sequence[str]) -> list[float]:
    template, session = Template(name="bench", tool_policy=ToolPolicy()), _session()
    for query in queries[:20]:
        await service.select(template, session, query, 12, "research")
    seconds = []
    for query in queries:
        begun = time.perf_counter()
        await service.select(template, session, query, 12, "research")
        seconds.append(time.perf_counter() - begun)
    return seconds


def _session() -> Session:
    limits = Limits(max_iterations=10, max_clarifications=3, time_budget=600)
    turn = Turn(
        trace="t",
        prompt=1,
        version=1,
        instance="i",
        limits=limits,
        date="",
        started_at=datetime.now(UTC),
        worked_at=datetime.now(UTC),
        prompted=Prompted(trace="t", content=("bench",)),
    )
    return Session(id="bench_1", agent="bench", owner="local", conversation="c", turn=turn)


def _brute(tools: Sequence[ToolDescriptor], queries: Sequence[str]) -> float:
    """Seconds to score every tool's words, kept in memory, by a plain loop."""
    texts = [_read(tool).weights for tool in tools]
    begun = time.perf_counter()
    for query in queries:
        worth = _worth(texts, set(tokenizer.terms(query)))
        scores = [sum(worth[term] * text[term] for term in worth if term in text) for text in texts]
        sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[:12]
    return (time.perf_counter() - begun) / len(queries)


def _read(tool: ToolDescriptor) -> IndexedText:
    return document.of_tool(
        ToolFacts(name=tool.name, description_short=tool.description_short, input_schema=tool.input_schema or {})
    )


def _worth(texts: Sequence[Mapping[str, float]], asked: set[str]) -> dict[str, float]:
    return {term: ranking.rarity(sum(term in text for text in texts), len(texts)) for term in asked}


class NearestTools:
    """The nearest public tools by vector similarity alone."""

    def __init__(self, finder: Finder) -> None:
        self._finder, self._vectors = finder, VectorCache(finder.db)

    async def find(self, text: str, count: int) -> list[str]:
        asked = await self._finder.query(text)
        if asked.space is None or asked.vectors is None:
            return []
        shards = scores.weighted(await postings.read(self._finder.db, "tool", None, ())).shards
        near = await (await self._vectors.of(asked.space, shards.slots)).nearest(asked.vectors[0], count)
        rows = await search.at(self._finder.db, "tool", SearchFilters(), shards.numbers(near))
        return [row["name"] for row in rows]


def _exact(vectors: Vectors, asked: Vectors) -> float:
    """Seconds to compare a query's vector with every tool's."""
    begun = time.perf_counter()
    for query in asked:
        np.argpartition(vectors @ query, -12)
    return (time.perf_counter() - begun) / len(asked)


async def _recall(
    nearest_tools: NearestTools,
    embedder: Embedder,
    tools: Sequence[ToolDescriptor],
    vectors: Vectors,
    queries: Sequence[str],
) -> float:
    """How many of the ten nearest, by the embedder's own vectors, are among those that a search looks at."""
    names = [tool.name for tool in tools]
    found = 0
    for query, asked in zip(queries, await embedder.embed(queries), strict=True):
        nearest = {names[nth] for nth in np.argsort(-(vectors @ asked))[:10].tolist()}
        found += len(nearest & set(await nearest_tools.find(query, 40)))
    return found / (10 * len(queries))
