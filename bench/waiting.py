"""A hundred thousand sessions that wait for a person: what do they cost a server that has nothing to do with them?

`python -m bench.waiting`. One `longhouse serve`, worker included, before and after. All that follows a turn, such as
the ledger, is done for them, as it is for sessions that have waited for a while.
"""

import asyncio
from typing import Any, Final

import aiohttp
import uvloop

from bench import filling, million
from bench.house import Ground, House, ground, house
from bench.report import console, machine, show
from bench.spine import one_session
from longhouse.store import leases

WAITING: Final = 100_000
CONNECTIONS: Final = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'longhouse' AND pid <> ALL(:own)"


async def measure(under: Ground) -> list[dict[str, Any]]:
    rows = []
    async with house(under) as served, aiohttp.ClientSession(served.url) as http:
        for _ in range(30):
            await one_session(http)  # warm-up
        for number in (0, WAITING):
            if number:
                await filling.fill(
                    under.db, "asked", number, state="WAITING_FOR_CLARIFICATION", told=filling.ASKED, is_old=True
                )
                await filling.settle(under.db)
            await under.settled()
            rows.append(await _look(under, served, number))
    return rows


async def _look(under: Ground, served: House, number: int) -> dict[str, Any]:
    await asyncio.sleep(3)  # some sweeps
    memory = []
    for _ in range(10):
        memory.append(served.rss())
        await asyncio.sleep(0.25)
    idle = [row["pid"] for row in await under.db.rows("SELECT pg_backend_pid() AS pid")]
    return {
        "waiting": f"{number:,}",
        "RSS MiB": f"{min(memory) / 2**20:.1f}",
        "threads": served.process.num_threads(),
        "connections": await under.db.value(CONNECTIONS, own=idle),
        **await _claims(under),
    }


async def _claims(under: Ground) -> dict[str, Any]:
    """A claim and what a sweep asks, p50 in ms, by a worker of its own that the other takes for alive."""
    own = await million.own_session(under, owner="bench")
    await under.db.run("UPDATE sessions SET holder = 'bench' WHERE id = :id", id=own)

    async def claim() -> None:
        assert (await leases.claim(under.db, own, "bench")).lease

    async with under.db.connection() as connection:
        await leases.register_worker(connection, "bench", node="bench", pid=0, slots=1)
        await under.db.run("UPDATE workers SET beat_at = now() + interval '1 day' WHERE id = 'bench'")
        found = {
            "claim p50 ms": await million.p50(claim, 1_000),
            "RUNNABLE p50 ms": await million.p50(lambda: leases.runnable(under.db, "bench", 128, running=[own])),
            "FIRE p50 ms": await million.p50(lambda: leases.fire(under.db)),
        }
        await under.db.run("DELETE FROM sessions WHERE id = :id", id=own)
        await leases.retire(under.db, "bench")
    return found


async def main() -> None:
    console.print(machine())
    async with ground() as under:
        show("sessions that wait", await measure(under))


if __name__ == "__main__":
    uvloop.run(main())
