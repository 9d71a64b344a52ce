"""One durable session of ten steps: what it costs us, what it costs Postgres, how soon a client sees something."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
import msgspec

from bench.house import Ground, House
from bench.model import CHUNKS, STEPS

IDLE_STREAMS = 1_000


class Lateness(NamedTuple):
    """How long a client waits, in seconds."""

    first_byte: float
    """From its request to the first byte of the response's body."""
    first_content: float
    """From the model writing its answer to the client seeing the first of it."""


@dataclass(frozen=True)
class Played:
    """A batch of sessions that were played side by side."""

    at_once: int
    sessions: int
    seconds: float
    cpu: float
    postgres_cpu: float
    commits: int
    wal: int
    lateness: list["Lateness"]

    @property
    def steps(self) -> int:
        return self.sessions * STEPS

    def row(self) -> dict[str, Any]:
        return {
            "at once": self.at_once,
            "sessions": self.sessions,
            "sessions/s": round(self.sessions / self.seconds, 1),
            "CPU ms/step": round(self.cpu / self.steps * 1000, 2),
            "Postgres CPU ms/step": round(self.postgres_cpu / self.steps * 1000, 2),
            "wall ms/step": round(self.seconds * self.at_once / self.steps * 1000, 2),
            **_shown("first byte", [one.first_byte for one in self.lateness]),
            **_shown("first content", [one.first_content for one in self.lateness]),
            "commits/step": round(self.commits / self.steps, 2),
            "WAL bytes/step": round(self.wal / self.steps),
        }


async def play(
    ground: Ground, house: House, *, sessions: int, at_once: int, agent: str = "tool_calling_agent"
) -> Played:
    """Plays so many ten-step sessions, so many side by side."""
    left = iter(range(sessions))
    lateness: list[Lateness] = []
    async with aiohttp.ClientSession(house.url, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one_after_another() -> None:
            for _ in left:
                lateness.append(await one_session(http, agent=agent))

        commits, wal = await ground.written()
        cpu, postgres_cpu, began = house.cpu(), ground.postgres_cpu(), time.perf_counter()
        await asyncio.gather(*(one_after_another() for _ in range(at_once)))
        seconds = time.perf_counter() - began
        cpu, postgres_cpu = house.cpu() - cpu, ground.postgres_cpu() - postgres_cpu
        commits_after, wal_after = await ground.written()
    return Played(at_once, sessions, seconds, cpu, postgres_cpu, commits_after - commits, wal_after - wal, lateness)


async def one_session(http: aiohttp.ClientSession, task: str = "work", agent: str = "tool_calling_agent") -> Lateness:
    body = {"model": agent, "messages": [{"role": "user", "content": task}], "stream": True}
    first_byte: float | None = None
    first: float | None = None
    began = time.perf_counter()
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        seen = b""
        async for piece in response.content.iter_any():
            if first_byte is None:
                first_byte = time.perf_counter() - began
            if first is not None:
                continue
            seen += piece
            content = seen.partition(b'"delta":{"content":"')[2]
            if b" " in content:
                first = (time.monotonic_ns() - int(content.partition(b" ")[0])) / 1e9
    assert first is not None, seen[-2000:]
    assert first_byte is not None
    return Lateness(first_byte, first)


def _shown(what: str, seconds: Sequence[float]) -> dict[str, Any]:
    late = sorted(seconds)
    return {
        f"{what} p50 ms": round(statistics.median(late) * 1000, 1),
        f"{what} p95 ms": round(late[int(len(late) * 0.95)] * 1000, 1),
    }


async def relay(house: House) -> dict[str, Any]:
    """Chunks of one long text through us, each written apart by the model."""
    async with aiohttp.ClientSession(house.url) as http:
        await one_session(http, "stream")
        cpu, began = house.cpu(), time.perf_counter()
        for _ in range(3):
            await one_session(http, "stream")
        cpu, seconds = house.cpu() - cpu, time.perf_counter() - began
    return {"chunks": 3 * CHUNKS, "chunks/s of CPU": round(3 * CHUNKS / cpu), "chunks/s": round(3 * CHUNKS / seconds)}


async def plain_text(house: House, *, sessions: int, at_once: int) -> dict[str, Any]:
    """An agent with tools answers in plain text: how long after the model began to write does the client read?"""
    left, late = iter(range(sessions)), []
    async with aiohttp.ClientSession(house.url, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one_after_another() -> None:
            for _ in left:
                late.append((await one_session(http, "talk")).first_content)

        await asyncio.gather(*(one_after_another() for _ in range(at_once)))
    return {"at once": at_once, "sessions": sessions, **_shown("first content", late)}


async def idle_streams(house: House) -> dict[str, Any]:
    """Memory of a thousand clients that follow a resting session."""
    async with aiohttp.ClientSession(house.url, connector=aiohttp.TCPConnector(limit=0)) as http:
        body = {"model": "tool_calling_agent", "messages": [{"role": "user", "content": "work"}]}
        async with http.post("/v1/chat/completions", json=body) as response:
            session_id = msgspec.json.decode(await response.read())["model"]
        before = house.rss()
        address = f"/v1/sessions/{session_id}/events?until=never&after=0"
        streams = [await http.get(address) for _ in range(IDLE_STREAMS)]
        for stream in streams:
            await stream.content.readany()
        await asyncio.sleep(2)
        cpu = house.cpu()
        await asyncio.sleep(5)
        result = {
            "streams": IDLE_STREAMS,
            "kB each": round((house.rss() - before) / IDLE_STREAMS / 1024, 1),
            "CPU % of a core while idle": round((house.cpu() - cpu) / 5 * 100, 1),
        }
        for stream in streams:
            stream.close()
    return result
