"""Two workers of twenty slots against one: does a second one bring twice as many sessions to their end?

`python -m bench.slots`. The model takes 200 ms for each of the ten replies of a session, so that a slot is busy for two
seconds while a session costs some 30 ms of CPU: the slots are the limit, not the cores.
"""

import asyncio
import time
from typing import Any, Final

import aiohttp
import psutil
import uvloop
from aiohttp import web

from bench import model
from bench.house import Ground, ground, house, listening
from bench.report import console, machine, show
from bench.spine import one_session
from bench.workers import working
from longhouse.models.scripted_server import Server

LATENCY: Final = 0.2
SLOTS: Final = 20
SESSIONS: Final = 200


async def measure(under: Ground) -> list[dict[str, Any]]:
    script = Server(model.reply, remember=False)

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(LATENCY)
        return await script.handle(request)

    rows: list[dict[str, Any]] = []
    async with (
        listening(answer) as url,
        house(under, "serve", "--port", "0", "--no-worker", llm_base_url=url) as gateway,
        aiohttp.ClientSession(gateway.url, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        for number in (1, 2):
            async with working(under, number, llm_base_url=url, worker_slots=str(SLOTS)):
                await asyncio.gather(*(one_session(http) for _ in range(SLOTS * number)))  # warm-up
                cpu, began = _cpu(), time.perf_counter()
                await asyncio.gather(*(one_session(http) for _ in range(SESSIONS)))
                seconds = time.perf_counter() - began
                rows.append(_row(number, SESSIONS / seconds, (_cpu() - cpu) / seconds, rows))
    return rows


def _row(workers: int, per_second: float, cores: float, before: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "workers": workers,
        "slots": workers * SLOTS,
        "sessions at once": SESSIONS,
        "sessions/s": f"{per_second:.2f}",
        "slots allow": f"{workers * SLOTS / (model.STEPS * LATENCY):.0f}",
        "against one": f"{per_second / float(before[0]['sessions/s']):.2f}" if before else "1",
        "cores busy": f"{cores:.2f}",
    }


def _cpu() -> float:
    """Seconds for which the cores of this machine were busy."""
    times = psutil.cpu_times()
    return float(times.user + times.system)


async def main() -> None:
    console.print(machine())
    async with ground() as under:
        show("one worker and two", await measure(under))


if __name__ == "__main__":
    uvloop.run(main())
