"""A worker that dies in the middle of a step, and one that freezes: how soon does another go on?

`python -m bench.takeover [kills] [stops]`: each kill is `kill -9` of a `longhouse work` while the model answers it. The
time runs from the signal to the next worker's request to the model. A worker that was frozen is woken when another has
ended the turn, and gets its reply then: it must write nothing.
"""

import asyncio
import os
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import msgspec
import numpy as np
import uvloop
from aiohttp import web

from bench.house import Ground, ground, house, listening
from bench.report import console, machine, show
from bench.workers import Workers, working

ALIVE: Final = 3
"""Workers when one is killed; a new one takes its place afterwards."""
LOOK_FOR: Final = 2.0
"""Seconds in which a woken worker might write."""

WRITTEN_LATE: Final = """
    SELECT count(*) FROM journal WHERE session_id = :session AND worker = :worker
      AND seq > (SELECT min(seq) FROM journal WHERE session_id = :session AND kind = 'Resumed')
"""
RESUMED: Final = "SELECT count(*) FROM journal WHERE session_id = :session AND kind = 'Resumed'"


class _Model:
    """The first request of a turn gets no answer until it is released; later ones get theirs at once."""

    def __init__(self) -> None:
        self.asked: defaultdict[bytes, list[float]] = defaultdict(list)
        self.released = asyncio.Event()
        self._changed = asyncio.Condition()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        found = re.search(rb"turn \d+", await request.read())
        assert found
        async with self._changed:
            self.asked[found[0]].append(time.perf_counter())
            self._changed.notify_all()
        if len(self.asked[found[0]]) == 1:
            await self.released.wait()
        chunks: list[dict[str, Any]] = [
            {"delta": {"content": "Done."}, "finish_reason": None},
            {"delta": {}, "finish_reason": "stop"},
        ]
        lines = [b"data: %b\n\n" % msgspec.json.encode({"choices": [{"index": 0, **one}]}) for one in chunks]
        return web.Response(body=b"".join(lines) + b"data: [DONE]\n\n", content_type="text/event-stream")

    async def request(self, turn: str, number: int) -> float:
        """When the model was asked for the so manieth time in this turn."""
        key = turn.encode()
        async with asyncio.timeout(60), self._changed:
            await self._changed.wait_for(lambda: len(self.asked[key]) >= number)
        return self.asked[key][number - 1]


async def measure(under: Ground, *, kills: int, stops: int) -> list[dict[str, Any]]:
    model = _Model()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(listening(model.answer))
        gateway = await stack.enter_async_context(house(under, "serve", "--port", "0", "--no-worker", llm_base_url=url))
        http = await stack.enter_async_context(aiohttp.ClientSession(gateway.url))
        workers = await stack.enter_async_context(working(under, ALIVE, llm_base_url=url))
        killed = [await _kill(http, model, workers, f"turn {number}") for number in range(kills)]
        stopped = [await _stop(http, model, workers, f"turn {kills + number}") for number in range(stops)]
    late = sum(written for _, written in stopped)
    return [
        _row("kill -9", killed, "-"),
        *([_row("SIGSTOP", [seconds for seconds, _ in stopped], str(late))] if stopped else []),
    ]


async def _kill(http: aiohttp.ClientSession, model: _Model, workers: Workers, turn: str) -> float:
    session_id, answer = await _begin(http, model, workers, turn)
    _, pid = await workers.holder(session_id)
    died = time.perf_counter()
    workers.kill(pid)
    seconds = await model.request(turn, 2) - died
    assert await answer == "Done."
    assert await workers.under.db.value(RESUMED, session=session_id) == 1
    await workers.start()
    return seconds


async def _stop(http: aiohttp.ClientSession, model: _Model, workers: Workers, turn: str) -> tuple[float, int]:
    """Seconds until another goes on, and events that the woken worker wrote after that."""
    model.released.clear()
    session_id, answer = await _begin(http, model, workers, turn)
    worker, pid = await workers.holder(session_id)
    froze = time.perf_counter()
    os.kill(pid, signal.SIGSTOP)
    try:
        seconds = await model.request(turn, 2) - froze
        assert await answer == "Done."
        model.released.set()  # its reply waits in its socket when it wakes
    finally:
        os.kill(pid, signal.SIGCONT)
    await asyncio.sleep(LOOK_FOR)
    written = await workers.under.db.value(WRITTEN_LATE, session=session_id, worker=worker)
    return seconds, int(written)


async def _begin(
    http: aiohttp.ClientSession, model: _Model, workers: Workers, turn: str
) -> tuple[str, "asyncio.Task[str]"]:
    """A turn whose first request is with the model: its session, and what the client is answered in the end."""
    answer = asyncio.create_task(_ask(http, turn))
    await model.request(turn, 1)
    session_id = await workers.under.db.value("SELECT id FROM sessions WHERE task = :task", task=turn)
    return str(session_id), answer


async def _ask(http: aiohttp.ClientSession, turn: str) -> str:
    body = {"model": "tool_calling_agent", "messages": [{"role": "user", "content": turn}]}
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return str((await response.json())["choices"][0]["message"]["content"])


def _row(what: str, seconds: Sequence[float], late: str) -> dict[str, Any]:
    return {
        "signal": what,
        "times": len(seconds),
        "another goes on after p50 s": f"{np.median(seconds):.2f}",
        "p95 s": f"{np.percentile(seconds, 95):.2f}",
        "most s": f"{max(seconds):.2f}",
        "written by the woken worker": late,
    }


async def main(kills: int = 200, stops: int = 10) -> None:
    console.print(machine())
    async with ground() as under:
        show("a worker is lost in the middle of a step", await measure(under, kills=kills, stops=stops))


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))
