"""How the installation does: workers, sessions, model endpoints, Postgres and the mirror, as numbers and sentences."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal, TypedDict

import asyncpg
import msgspec

import longhouse
from longhouse import clock
from longhouse.api import auth, pagination, wire
from longhouse.api.admin import docs
from longhouse.api.http.json_route import of_app, strict_router
from longhouse.api.pagination import Page
from longhouse.api.watching.statistics import Statistics
from longhouse.store import leases
from longhouse.store.database import Database
from longhouse.store.leases import WorkerFacts, WorkerRow
from longhouse.store.lists import statistics
from longhouse.store.lists.statistics import END_STATES, Count
from longhouse.tools.toolbox import Toolbox, ToolSource

LOOKED_EVERY: Final = 3.0
"""Seconds; whoever asks sooner is told what was found last."""
MOST_WORKERS: Final = 100
LATE: Final = 10.0
"""Seconds: a session that nobody takes for so long is worth a sentence."""
BEHIND: Final = 30.0
"""Seconds: a mirror that is so far behind is worth a sentence."""

Tone = Literal["good", "wait", "bad"]

EXAMPLE: Final[dict[str, Any]] = {
    "version": "0.3.0",
    "workers": [{"id": "worker_1", **{name: value for name, value in docs.WORKER.items() if name != "worker_id"}}],
    "states": {"COMPLETED": 210, "RESEARCHING": 3},
    "history": [{"at": "2026-01-31T11:00:00Z", "states": {"COMPLETED": 12, "ASKED": 1}}],
    "runnable": 0,
    "oldest_runnable_seconds": None,
    "models": [
        {
            "model": "gpt-4o-mini",
            "calls": 420,
            "errors": 1,
            "retries": 3,
            "p50_seconds": 1.4,
            "last_error": {"at": "2026-01-31T11:20:00Z", "text": "The model endpoint answered 503."},
        }
    ],
    "postgres": {
        "bytes": 81_000_000,
        "growth_bytes_24h": 2_100_000,
        "connections": 9,
        "pool": {"size": 5, "idle": 4},
    },
    "mirror": {"enabled": False, "lag_seconds": None},
    "mcp": [],
    "sentences": [{"tone": "good", "text": "1 worker is at work with 32 slots; 3 of them are taken."}],
}
SERVER: Final[dict[str, Any]] = {
    "name": "depot",
    "is_connected": False,
    "trouble": "the connection was lost",
    "tools": ["depot.stock"],
    "last_words": [{"at": "2026-01-31T11:20:00Z", "text": "error: no such shelf"}],
}


class Sentence(msgspec.Struct, frozen=True):
    tone: Tone
    text: str


class ShownWorker(WorkerFacts, frozen=True):
    id: str


class HourOfTurns(TypedDict):
    at: datetime
    states: dict[str, int]


class SaidAt(TypedDict):
    at: datetime | None
    text: str


class AskedModel(TypedDict):
    """What a model was asked in the last day."""

    model: str
    calls: int
    errors: int
    retries: int
    p50_seconds: float | None
    last_error: SaidAt | None


class ConnectionPool(TypedDict):
    size: int
    idle: int


class ShownPostgres(TypedDict):
    bytes: int
    growth_bytes_24h: int | None
    connections: int
    pool: ConnectionPool


class ShownMirror(TypedDict):
    enabled: bool
    lag_seconds: float | None


class McpServer(TypedDict):
    name: str
    is_connected: bool
    trouble: str | None
    tools: list[str]
    last_words: list[SaidAt]


class Looked(TypedDict):
    version: str
    workers: list[ShownWorker]
    states: dict[str, int]
    history: list[HourOfTurns]
    runnable: int
    oldest_runnable_seconds: float | None
    models: list[AskedModel]
    postgres: ShownPostgres
    mirror: ShownMirror
    mcp: list[McpServer]


class ShownOperations(Looked):
    """How the installation does."""

    sentences: list[Sentence]


class Operations(msgspec.Struct):
    """Looks at the installation, at most every few seconds for all who ask."""

    db: Database
    counts: Statistics
    toolbox: Toolbox
    is_mirrored: bool
    found: ShownOperations | None = None
    looked_at: float = float("-inf")
    looking: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)

    async def shown(self) -> ShownOperations:
        async with self.looking:
            loop = asyncio.get_running_loop()
            if self.found is None or loop.time() - self.looked_at >= LOOKED_EVERY:
                self.found, self.looked_at = await self._look(), loop.time()
            return self.found

    async def _look(self) -> ShownOperations:
        db, now = self.db, clock.now()
        workers = await leases.workers(db, before=None, limit=MOST_WORKERS)
        rows = await self.counts.rows()
        [waiting] = await db.rows(statistics.WAITING)
        [troubled] = await db.rows(statistics.TROUBLED)
        failures = await db.rows(statistics.MODEL_FAILED)
        [size] = await db.rows(statistics.SIZE)
        lag = await db.value(statistics.MIRROR_LAG) if self.is_mirrored else None
        found: Looked = {
            "version": longhouse.__version__,
            "workers": [_worker(one) for one in workers],
            "states": dict(sorted((str(state), number) for state, number in await db.rows(statistics.STATES))),
            "history": list(history(rows, now)),
            "runnable": waiting["number"],
            "oldest_runnable_seconds": waiting["oldest"],
            "models": models(rows),
            "postgres": {
                "bytes": size["bytes"],
                "growth_bytes_24h": size["growth"],
                "connections": size["connections"],
                "pool": {"size": db.pool.size, "idle": db.pool.idle},
            },
            "mirror": {"enabled": self.is_mirrored, "lag_seconds": lag or 0.0 if self.is_mirrored else None},
            "mcp": servers(self.toolbox),
        }
        told = sentences(found, workers, troubled["number"], troubled["seconds"])
        return {**found, "sentences": [*_of_endpoints(failures), *told]}


def _worker(row: WorkerRow) -> ShownWorker:
    facts = msgspec.structs.asdict(row)
    return ShownWorker(id=facts.pop("worker_id"), **facts)


def history(rows: Sequence[Count], now: datetime) -> Iterator[HourOfTurns]:
    """For each hour of the last day: turns by the state in which they ended, and questions to people as `ASKED`."""
    states: defaultdict[datetime, Counter[str]] = defaultdict(Counter)
    for row in rows:
        if row.kind in ("turn", "asked"):
            hour = row.slice.replace(minute=0)
            states[hour][END_STATES.get(row.what, "ASKED")] += row.times
    first = now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=23)
    for nth in range(24):
        hour = first + timedelta(hours=nth)
        yield {"at": hour, "states": dict(states[hour])}


def models(rows: Sequence[Count]) -> list[AskedModel]:
    """What each model was asked in the last day, the busiest first."""
    replies, errors = _by_model(rows, "reply"), _by_model(rows, "error")
    found: list[AskedModel] = []
    for model in sorted(replies.keys() | errors.keys()):
        asked, failed = replies[model], errors[model]
        last = max(failed, key=lambda row: row.last_at or row.slice, default=None)
        found.append(
            {
                "model": model,
                "calls": sum(row.times for row in asked),
                "errors": sum(row.times for row in failed),
                "retries": sum(row.retries for row in asked),
                "p50_seconds": statistics.percentile(asked, 0.5),
                "last_error": {"at": last.last_at, "text": last.last_words or ""} if last else None,
            }
        )
    return sorted(found, key=lambda one: -one["calls"])


def _by_model(rows: Sequence[Count], kind: statistics.Kind) -> defaultdict[str, list[Count]]:
    found: defaultdict[str, list[Count]] = defaultdict(list)
    for row in rows:
        if row.kind == kind and (row.times or row.retries):
            found[row.what].append(row)
    return found


def servers(toolbox: Toolbox) -> list[McpServer]:
    """The MCP servers of this process."""
    return [_server(one()) for _, one in sorted(toolbox.sources.items())]


def _server(source: ToolSource) -> McpServer:
    words: list[SaidAt] = [{"at": at, "text": text} for at, text in source.last_words]
    return {
        "name": source.name,
        "is_connected": not source.trouble,
        "trouble": source.trouble or None,
        "tools": sorted(source.tools),
        "last_words": words,
    }


def sentences(
    found: Looked, workers: Sequence[WorkerRow], troubled: int, troubled_seconds: float | None
) -> Iterator[Sentence]:
    """What an operator would want to be told, the bad news first."""
    noticed = [
        *_of_workers(workers),
        *_of_sessions(found),
        *_of_models(found, troubled, troubled_seconds),
        *_of_postgres(found["postgres"]),
        *_of_mirror(found["mirror"]),
        *_of_servers(found["mcp"]),
    ]
    for tone in ("bad", "wait", "good"):
        yield from (one for one in noticed if one.tone == tone)


def _of_workers(workers: Sequence[WorkerRow]) -> Iterator[Sentence]:
    alive = [one for one in workers if one.is_alive]
    if not alive:
        yield Sentence("bad", "No worker is alive: sessions are stored, but nobody works on them. Start `longhouse`.")
        return
    slots, taken = sum(one.slots for one in alive), sum(one.sessions for one in alive)
    at_work = f"{_number(len(alive), 'worker')} {'is' if len(alive) == 1 else 'are'} at work"
    if taken >= slots:
        yield Sentence("wait", f"{at_work}, and all {slots} slots are taken: new sessions wait. Start another worker.")
    else:
        yield Sentence("good", f"{at_work} with {_number(slots, 'slot')}; {taken or 'none'} of them taken.")
    for one in workers:
        if not one.is_alive:
            yield Sentence("bad", f"Worker {one.worker_id} on {one.node} is silent; others take its sessions over.")
    versions = sorted({one.version or "an earlier release" for one in alive})
    if len(versions) > 1:
        yield Sentence("wait", f"Workers run different versions: {', '.join(versions)}. Finish the upgrade.")


def _of_sessions(found: Looked) -> Iterator[Sentence]:
    oldest, number = found["oldest_runnable_seconds"], found["runnable"]
    if oldest is not None and oldest > LATE:
        yield Sentence(
            "bad", f"{_number(number, 'session')} could go on but nobody takes them; the oldest for {_span(oldest)}."
        )
    else:
        yield Sentence("good", "No session waits for a worker.")
    asking = sum(found["states"].get(f"WAITING_FOR_{what}", 0) for what in ("CLARIFICATION", "APPROVAL"))
    if asking:
        waits = "waits" if asking == 1 else "wait"
        yield Sentence("wait", f"{_number(asking, 'session')} {waits} for a person: see the inbox.")
    ends = Counter[str]()
    for hour in found["history"]:
        ends.update(hour["states"])
    turns = sum(ends[state] for state in END_STATES.values())
    if turns and ends["FAILED"]:
        tone: Tone = "bad" if ends["FAILED"] > turns / 10 else "wait"
        yield Sentence(tone, f"{ends['FAILED']} of {_number(turns, 'turn')} failed in the last 24 hours.")
    elif turns:
        yield Sentence("good", f"{_number(turns, 'turn')} ended in the last 24 hours; none failed.")


def _of_models(found: Looked, troubled: int, seconds: float | None) -> Iterator[Sentence]:
    if troubled:
        since = f", the first since {_span(seconds)}" if seconds else ""
        yield Sentence(
            "bad", f"A model does not answer: {_number(troubled, 'session')} must wait{since}; it is asked again."
        )
    for one in found["models"]:
        name = one["model"] or "A model"
        if one["errors"]:
            yield Sentence("bad", f"{name} failed {_number(one['errors'], 'turn')} in the last 24 hours.")
        elif one["retries"]:
            times = _number(one["retries"], "time")
            yield Sentence("wait", f"{name} had to be asked again {times} in the last 24 hours; no turn failed of it.")


def _of_endpoints(failures: Sequence[asyncpg.Record]) -> Iterator[Sentence]:
    """Quotes the model endpoint that failed last, as a worker heard it."""
    for failure in failures:
        yield Sentence("bad", f"{_span(failure['seconds'])} ago: {failure['words']}")


def _of_postgres(postgres: ShownPostgres) -> Iterator[Sentence]:
    growth = postgres["growth_bytes_24h"]
    size = f"The database holds {_bytes(postgres['bytes'])}"
    if growth is None:
        yield Sentence("good", f"{size}; its growth is known after a day.")
    else:
        change = f"{_bytes(abs(growth))} {'more' if growth >= 0 else 'less'} than a day ago"
        yield Sentence("good", f"{size}, {change}.")


def _of_mirror(mirror: ShownMirror) -> Iterator[Sentence]:
    if mirror["enabled"] and (mirror["lag_seconds"] or 0.0) > BEHIND:
        behind = _span(mirror["lag_seconds"] or 0.0)
        yield Sentence("bad", f"The Redis mirror is {behind} behind. Nothing is lost: it catches up by itself.")
    elif mirror["enabled"]:
        yield Sentence("good", "The Redis mirror is up to date.")


def _of_servers(found: Sequence[McpServer]) -> Iterator[Sentence]:
    for one in found:
        if one["trouble"]:
            yield Sentence("bad", f"The MCP server {one['name']} cannot be reached: {one['trouble']}.")


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(seconds: float) -> str:
    for size, noun in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= 2 * size:
            return f"{int(seconds / size)} {noun}s"
    return _number(max(1, round(seconds)), "second")


def _bytes(number: int) -> str:
    size = float(number)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


router = strict_router("Admin", auth.admin)


@router.get("/admin/operations", responses={200: wire.answer("How the installation does.", EXAMPLE)})
async def get_operations(operations: Annotated[Operations, of_app("operations")]) -> wire.Json[ShownOperations]:
    """Workers, sessions by state, what ended per hour, model endpoints, Postgres, the mirror; and sentences that say
    what matters of it. A few seconds old at most; `models`, `history` and `growth` are about the last 24 hours."""
    return wire.Json(await operations.shown())


@router.get("/admin/mcp", responses={200: docs.listed("The MCP servers.", SERVER)})
async def list_mcp_servers(toolbox: Annotated[Toolbox, of_app("toolbox")]) -> wire.Json[Page[McpServer]]:
    """The MCP servers of the process that answers: whether they are connected, their tools, and their last lines."""
    return wire.Json(pagination.page(servers(toolbox)))
