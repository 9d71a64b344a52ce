"""Two workers of twenty slots against one: does a second one bring twice as many sessions to their end?

`python -m bench.slots`. The model takes 200 ms for each of the ten replies of a session, so that a slot is busy for two
seconds while a session costs some 50 ms of CPU: the slots are the limit, not the cores. The clients leave once their
prompt is accepted: 200 open streams would cost the two cores more than the workers do.
"""

import asyncio
import time
import uuid
from typing import Any, Final

import aiohttp
import psutil
import uvloop
from aiohttp import web

from bench import model
from bench.house import Ground, ground, house, listening
from bench.report import console, machine, show
from bench.workers import working
from longhouse.models.scripted_server import ScriptedServer

LATENCY: Final = 0.2
SLOTS: Final = 20
SESSIONS: Final = 200
ENDED: Final = """
    SELECT count(*) FROM sessions WHERE starts_with(conversation_id, :conversation) AND state = 'COMPLETED'
"""


async def measure(under: Ground) -> list[dict[str, Any]]:
    script = ScriptedServer(model.reply, remember=False)

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
                await _play(under, http, SLOTS * number)  # warm-up
                cpu, began = _cpu(), time.perf_counter()
                await _play(under, http, SESSIONS)
                seconds = time.perf_counter() - began
                rows.append(_row(number, SESSIONS / seconds, (_cpu() - cpu) / seconds, rows))
    return rows


async def _play(under: Ground, http: aiohttp.ClientSession, sessions: int) -> None:
    """Begins so many sessions at once, and waits until the last has ended."""
    conversation = str(uuid.uuid4())
    await asyncio.gather(*(_begin(http, f"{conversation}-{number}") for number in range(sessions)))
    while await under.db.value(ENDED, conversation=conversation) < sessions:  # noqa: ASYNC110 - others end them
        await asyncio.sleep(0.1)


async def _begin(http: aiohttp.ClientSession, conversation: str) -> None:
    body = {
        "model": "tool_calling_agent",
        "messages": [{"role": "user", "content": "work"}],
        "stream": True,
        "chat_id": conversation,
    }
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        await response.content.readany()


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
