"""An hour of plain turns: whether the memory of a serving process comes to rest. `python -m bench.soak [SECONDS]`."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp
import uvloop

from bench.house import House, ground, house
from bench.report import console, machine, show

AN_HOUR: Final = 3_600.0
CLIENTS: Final = 3
LOOKS: Final = 12


async def measure(seconds: float) -> list[dict[str, Any]]:
    async with ground() as under, house(under, worker_slots="8") as served:
        return [row async for row in _looks(served, seconds)]


async def _looks(served: House, seconds: float) -> AsyncIterator[dict[str, Any]]:
    sessions = 0
    until = time.monotonic() + seconds

    async def talk(http: aiohttp.ClientSession) -> None:
        nonlocal sessions
        body = {"model": "tool_calling_agent", "messages": [{"role": "user", "content": "plain"}]}
        while time.monotonic() < until:
            async with http.post("/v1/chat/completions", json=body) as response:
                await response.read()
                response.raise_for_status()
            sessions += 1

    async with aiohttp.ClientSession(served.url) as http, asyncio.TaskGroup() as clients:
        for _ in range(CLIENTS):
            clients.create_task(talk(http))
        for nth in range(LOOKS + 1):
            yield {
                "minutes": round(nth * seconds / LOOKS / 60, 1),
                "sessions": sessions,
                "RSS MB": round(served.rss() / 1e6, 1),
                "descriptors": served.process.num_fds(),
                "threads": served.process.num_threads(),
            }
            if nth < LOOKS:
                await asyncio.sleep(seconds / LOOKS)


async def main(seconds: float) -> None:
    console.print(machine())
    show("a serving process under plain turns", await measure(seconds))


if __name__ == "__main__":
    uvloop.run(main(float(sys.argv[1]) if sys.argv[1:] else AN_HOUR))
