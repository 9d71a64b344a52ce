"""The ledger of a long conversation: a page through each filter, and what telling one more turn costs."""

import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from bench.house import Ground
from longhouse.journal import events
from longhouse.memory.ledger import Ledger
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.search.passages import PassageIndex
from longhouse.store import journals

OWNER, CONVERSATION, SESSION = "bench", "ledger", "ledger_bench"
LIMITS = events.Limits(max_iterations=1, max_clarifications=1, time_budget=1)
OPEN = """
    INSERT INTO sessions (id, owner, "user", conversation_id, side, agent, head, due, version, created_at, updated_at)
    VALUES (:session, :owner, :owner, :conversation, 'root', 'master', 0, false, 1, now(), now())
"""
FILL = """
    INSERT INTO ledger (id, conversation_id, trace_id, source, source_type, target, target_type, content, type,
                        timestamp, pair_id, owner, session_id, seq, agent, depth, shown)
    SELECT 'filled:' || n, :conversation, 'trace' || n / 40, said.source, said.source_type, said.target,
           said.target_type, 'Something that was said, number ' || n || ' ' || repeat(md5(n::text), 8),
           CASE WHEN n % 2 = 0 THEN 'input' ELSE 'output' END, '2026-01-01'::timestamptz + n * interval '1 minute',
           'filled:' || n - n % 2, :owner, 'filled', n, 'master', 0, true
    FROM generate_series(1, :count::int) AS n CROSS JOIN LATERAL (
        SELECT CASE WHEN n % 2 = 0 THEN 'agent' || n % 20 ELSE 'tool' || n % 500 END AS source,
               CASE WHEN n % 2 = 0 THEN 'agent' WHEN n % 1000 = 1 THEN 'knowledge' ELSE 'tool' END AS source_type,
               CASE WHEN n % 2 = 0 THEN 'user' ELSE 'agent' || n % 20 END AS target,
               CASE WHEN n % 2 = 0 THEN 'user' ELSE 'agent' END AS target_type
    ) said
"""
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"agent": "agent7"},
    {"trace_id": "trace1000"},
    {"source_type": "knowledge"},
    {"type": "input", "target_type": "user"},
)


async def measure(under: Ground, count: int) -> dict[str, Any]:
    """Milliseconds, p50: pages of 50 at `count` interactions; a turn told at the start and at the end."""
    ledger = Ledger(under.db, LedgerProjector(under.db, PassageIndex(under.db, None)))
    await under.db.run(OPEN, session=SESSION, owner=OWNER, conversation=CONVERSATION)
    await _turns(ledger, 20)  # warm-up
    start = await _turns(ledger, 50)
    await under.db.run(FILL, conversation=CONVERSATION, owner=OWNER, count=count)
    # What the filling left to do is not the turns' work.
    for settle in ("VACUUM (ANALYZE) ledger", "CHECKPOINT"):
        await under.db.run(settle)

    async def read(filters: dict[str, Any]) -> None:
        await ledger.retrieve(OWNER, CONVERSATION, limit=50, **filters)

    pages = {", ".join(one) or "no filter": await _p50(partial(read, one), 50) for one in FILTERS}
    end = await _turns(ledger, 50)
    return {"interactions": count, **pages, "a turn told, ms": end, "against the start": round(end / start, 2)}


async def _turns(ledger: Ledger, times: int) -> float:
    async def turn() -> None:
        await ledger.projector.catch_up([SESSION])

    took = []
    for _ in range(times):
        await _append(ledger)
        took.append(await _p50(turn, 1))
    return round(statistics.median(took), 2)


async def _append(ledger: Ledger) -> None:
    head = await ledger.db.value("SELECT head FROM sessions WHERE id = :id", id=SESSION)
    trace = f"turn{head}"
    new = (
        events.Prompted(trace=trace, content=("What is written on the bridge?",)),
        events.Started(trace=trace, prompt=head + 1, version=1, instance="i", limits=LIMITS, date="2026-01-01"),
        events.Replied(text="The year in which it was built."),
        events.Finished(answer="The year in which it was built."),
    )
    await journals.note(ledger.db, SESSION, new, trace=trace)


async def _p50(call: Callable[[], Awaitable[None]], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return round(statistics.median(took) * 1000, 2)
