"""What it costs to ask another agent: from the call to the other's first request, and from its end back to ours.

Both are measured where the model is: it writes the moment into what it says, and reads it in what it is asked next.
"""

import asyncio
import statistics
from typing import Any

import aiohttp

from bench.house import Ground, House
from bench.model import ASKS, HELPS
from longhouse.agents.template import PromptPack, Template, ToolPolicy
from longhouse.app.publish import publish_files
from longhouse.store.catalog.catalog import Catalog

CALLER = Template(
    name="bench_caller",
    prompt_pack=PromptPack(system_prompt=ASKS),
    tool_policy=ToolPolicy(allowlist=("agent.bench_helper", "finalanswertool")),
)
HELPER = Template(
    name="bench_helper",
    prompt_pack=PromptPack(system_prompt=HELPS),
    tool_policy=ToolPolicy(allowlist=("clocktool", "finalanswertool")),
)


async def prepare(under: Ground) -> None:
    """Puts the two agents into the catalog."""
    await publish_files(Catalog(under.db), (), [HELPER, CALLER])


async def overhead(house: House, *, sessions: int, at_once: int) -> dict[str, Any]:
    """So many sessions in which one agent asks another, so many side by side."""
    down: list[float] = []
    up: list[float] = []
    left = iter(range(sessions))
    async with aiohttp.ClientSession(house.url, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one_after_another() -> None:
            for _ in left:
                there, back = await _one(http)
                down.append(there)
                up.append(back)

        await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    return {
        "at once": at_once,
        "sessions": sessions,
        "call to the other's request p50 ms": _ms(statistics.median(down)),
        "p95 ms": _ms(_late(down)),
        "its end to our next request p50 ms": _ms(statistics.median(up)),
        " p95 ms": _ms(_late(up)),
    }


async def _one(http: aiohttp.ClientSession) -> tuple[float, float]:
    body = {"model": CALLER.name, "messages": [{"role": "user", "content": "go"}]}
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        there, back = (await response.json())["choices"][0]["message"]["content"].split()
    return int(there) / 1e9, int(back) / 1e9


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _late(seconds: list[float]) -> float:
    return sorted(seconds)[int(len(seconds) * 0.95)]
