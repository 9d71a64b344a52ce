"""A hundred thousand turns of one person's talks: what an append costs, and how fast they are found again."""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np

from bench.house import Ground
from bench.search import PLACES, QUALITIES, THINGS, VERBS
from longhouse.memory.dates import date_words
from longhouse.models import embedding_table
from longhouse.search.passages import Passage, PassageIndex

SCOPE: Final = "bench"
KIND: Final = "interaction"
IN_SESSION: Final = 40
AT_ONCE: Final = 500
ASKED: Final = 100
APPENDED: Final = 200
FIRST: Final = datetime(2026, 1, 1, tzinfo=UTC)
_OPENINGS: Final = (
    "I think that we should", "Could you please", "Last week my colleague tried to", "Yes, and then they had to",
    "Nobody told me how to", "It took all morning to", "You were right, it is easier to",
)  # fmt: skip
_JOINTS: Final = (
    "because nobody had seen", "before they ask for", "while we wait for", "unless there is", "and it cost more than",
    "so that everybody finds", "which reminds me of", "though she never liked", "or perhaps we forget",
)  # fmt: skip


def turns_of(first: int, count: int) -> list[Passage]:
    """Turns of made-up talks, the same in every run; each session has one trace and one of ten agents."""
    return [_turn(number) for number in range(first, first + count)]


def _turn(number: int) -> Passage:
    chance, session = random.Random(number), number // IN_SESSION
    said = [_sentence(chance) for _ in range(chance.randint(1, 3))]
    by_user = number % 2 == 0
    facts = {"agent": f"agent-{session % 10}", "trace_id": f"trace-{session}", "type": "input" if by_user else "output"}
    text, at = " ".join(said), FIRST + timedelta(minutes=number)
    return Passage(
        scope=SCOPE,
        kind=KIND,
        source=str(number),
        group=f"session-{session}",
        text=text,
        title="user" if by_user else "assistant",
        context=date_words(at, text),
        at=at,
        thread=f"session-{session}",
        position=number,
        facts=facts,
    )


def _sentence(chance: random.Random) -> str:
    thing, other = chance.sample(THINGS, 2)
    return (
        f"{chance.choice(_OPENINGS)} {chance.choice(VERBS)} the {chance.choice(QUALITIES)} {thing} of the"
        f" {chance.choice(PLACES)}, {chance.choice(_JOINTS)} the {chance.choice(QUALITIES)} {other}"
        f" {chance.randrange(5000)}."
    )


async def measure(ground: Ground, count: int = 100_000) -> dict[str, Any]:
    embedder = embedding_table.EmbeddedEmbedder()
    await embedder.embed([])  # loads the table
    index = PassageIndex(ground.db, embedder)
    await index.write(turns_of(0, AT_ONCE))
    at_start = await _appends(index, AT_ONCE)
    begun, written = time.perf_counter(), AT_ONCE + APPENDED
    for first in range(written, count - APPENDED, AT_ONCE):
        await index.write(turns_of(first, min(AT_ONCE, count - APPENDED - first)))
    rate = (count - APPENDED - written) / (time.perf_counter() - begun)
    await ground.db.run("ANALYZE passages, passage_postings, passage_shards")
    at_end = await _appends(index, count - APPENDED)
    until = FIRST + timedelta(minutes=count // 2)
    found = await _searches(lambda text: index.search(text, [SCOPE], kinds=[KIND], limit=10))
    filtered = await _searches(
        lambda text: index.search(text, [SCOPE], kinds=[KIND], limit=10, facts={"agent": ["agent-3"]}, until=until)
    )
    return {
        "passages": count,
        "query p50 ms": f"{found[0]:.1f}",
        "query p95 ms": f"{found[1]:.1f}",
        "filtered p50 ms": f"{filtered[0]:.1f}",
        "filtered p95 ms": f"{filtered[1]:.1f}",
        "append at the start ms": f"{at_start:.2f}",
        "append at the end ms": f"{at_end:.2f}",
        "times": f"{at_end / at_start:.2f}",
        "written in batches /s": f"{rate:.0f}",
    }


async def _appends(index: PassageIndex, first: int) -> float:
    """Milliseconds, the median of turns that are written one by one."""
    return float(np.median(await _timed(index.write, [turns_of(first + nth, 1) for nth in range(APPENDED)])))


async def _searches(search: Callable[[str], Awaitable[object]]) -> tuple[float, float]:
    chance = random.Random(3)
    queries = [f"Who wanted to {_sentence(chance).partition(' the ')[2]}" for _ in range(ASKED)]
    await _timed(search, queries[:10])  # the first one reads all vectors
    p50, p95 = np.percentile(await _timed(search, queries), [50, 95])
    return float(p50), float(p95)


async def _timed(work: Callable[[Any], Awaitable[object]], given: Sequence[Any]) -> list[float]:
    taken = []
    for one in given:
        begun = time.perf_counter()
        await work(one)
        taken.append(1000 * (time.perf_counter() - begun))
    return taken
