"""What a session costs: statements, WAL, CPU, bytes on disk and connections, for each way in which it can go.

`python -m bench.costs`. One `longhouse serve` with a worker; what it asks while nothing happens is measured first and
taken off. The rows are counted when everything that follows a turn (its ledger, its index) is written.
"""

import asyncio
import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import uvloop

from bench import delegation
from bench.house import Ground, House, ground, house
from bench.report import console, machine, show

SESSIONS: Final = 200
AT_ONCE: Final = 4
IDLE_FOR: Final = 10.0
KINDS: Final = {
    "plain turn": ("tool_calling_agent", "plain"),
    "turn with three tool calls": ("tool_calling_agent", "three tools"),
    "one agent asks another": (delegation.CALLER.name, "go"),
    "turn that ends in a question": ("tool_calling_agent", "ask"),
}
STATEMENTS: Final = "SELECT COALESCE(sum(calls), 0)::bigint FROM pg_stat_statements WHERE query NOT LIKE '%pg_%'"
DISK: Final = """
    SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c
    WHERE c.relkind = 'r' AND c.relnamespace = current_schema()::regnamespace
"""
CONNECTIONS: Final = """
    SELECT count(*) - 1 FROM pg_stat_activity WHERE application_name = 'longhouse' AND datname = current_database()
"""


@dataclass(frozen=True)
class _Look:
    """What was spent so far."""

    at: float
    statements: int
    wal: int
    disk: int
    cpu: float
    postgres_cpu: float


async def _look(under: Ground, served: House) -> _Look:
    _, wal = await under.written()
    statements, disk = await under.db.value(STATEMENTS), await under.db.value(DISK)
    return _Look(time.perf_counter(), statements, wal, disk, served.cpu(), under.postgres_cpu())


async def measure(under: Ground) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What each kind costs, and what an idle process costs in a second."""
    await delegation.prepare(under)
    rows = []
    async with (
        house(under) as served,
        aiohttp.ClientSession(served.url, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        for kind in KINDS.values():
            await _play(http, *kind, sessions=20)  # warm-up
        await under.settled()
        before = await _look(under, served)
        await asyncio.sleep(IDLE_FOR)
        after = await _look(under, served)
        idle = {
            "statements/s": (after.statements - before.statements) / (after.at - before.at),
            "WAL bytes/s": (after.wal - before.wal) / (after.at - before.at),
            "CPU ms/s": 1000 * (after.cpu - before.cpu) / (after.at - before.at),
            "Postgres CPU ms/s": 1000 * (after.postgres_cpu - before.postgres_cpu) / (after.at - before.at),
            "connections": await under.db.value(CONNECTIONS),
        }
        for name, kind in KINDS.items():
            before = await _look(under, served)
            await _play(http, *kind, sessions=SESSIONS)
            busy = await under.db.value(CONNECTIONS)
            await under.settled()
            rows.append(_row(name, before, await _look(under, served), idle) | {"connections": busy})
    return rows, [{name: f"{value:,.1f}" for name, value in idle.items()}]


def _row(name: str, before: _Look, after: _Look, idle: dict[str, float]) -> dict[str, Any]:
    seconds = after.at - before.at

    def each(spent: float, at_rest: str) -> float:
        return (spent - idle[at_rest] * seconds) / SESSIONS

    postgres_cpu = 1000 * (after.postgres_cpu - before.postgres_cpu)
    return {
        "a session": name,
        "statements": f"{each(after.statements - before.statements, 'statements/s'):.1f}",
        "WAL kB": f"{each(after.wal - before.wal, 'WAL bytes/s') / 1000:.1f}",
        "on disk kB": f"{(after.disk - before.disk) / SESSIONS / 1000:.1f}",
        "CPU ms": f"{each(1000 * (after.cpu - before.cpu), 'CPU ms/s'):.1f}",
        "Postgres CPU ms": f"{each(postgres_cpu, 'Postgres CPU ms/s'):.1f}",
    }


async def _play(http: aiohttp.ClientSession, agent: str, task: str, *, sessions: int) -> None:
    left = iter(range(sessions))
    body = {"model": agent, "messages": [{"role": "user", "content": task}]}

    async def one_after_another() -> None:
        for _ in left:
            async with http.post("/v1/chat/completions", json={**body, "chat_id": str(uuid.uuid4())}) as response:
                assert response.status == 200, await response.text()
                await response.read()

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))


async def main() -> None:
    console.print(machine())
    async with ground(counts=True) as under:
        costs, idle = await measure(under)
    show("what a session costs", costs)
    show("what a process costs in which nothing happens", idle)


if __name__ == "__main__":
    uvloop.run(main())
