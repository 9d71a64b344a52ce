"""What a step costs as things grow: the history before it, the tools in the catalog, the sessions in the tables.

`python -m bench.curves [FILE.svg] [history|tools|sessions …]`. Ten-step sessions over HTTP; the CPU of Longhouse and of
Postgres, with all that follows the turns (the ledger, the index of what was said), and less what an idle house takes.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import uvloop

from bench import curve_picture, filling, search
from bench.catalog import indexed
from bench.house import Ground, House, ground, house
from bench.model import STEPS
from bench.report import console, machine, show
from longhouse.agents.template import Template, ToolPolicy
from longhouse.catalog.sources import publish_templates
from longhouse.store.catalog.catalog import Catalog

HISTORIES: Final = (10, 100, 1_000)
TOOLS: Final = (10, 1_000, 100_000)
SESSIONS: Final = (0, 1_000_000)
PLAYED: Final = 60
"""Sessions of ten steps for one figure."""
AT_ONCE: Final = 4
IDLE_FOR: Final = 10.0
AGENT: Final = "tool_calling_agent"
FINDER: Final = Template(name="bench_finder", tool_policy=ToolPolicy(required=("clocktool", "finalanswertool")))
"""Is offered what a search finds among all tools, and the tool that the model calls."""
BATCH: Final = 2_000
PICTURE: Final = Path("runs", "curves.svg")

Turns = Callable[[aiohttp.ClientSession, int], Awaitable[None]]
"""Plays the turn of this number."""


@dataclass(frozen=True)
class Point:
    """Milliseconds of CPU a step."""

    size: int
    cpu: float
    postgres: float

    @property
    def total(self) -> float:
        return self.cpu + self.postgres


@dataclass(frozen=True)
class Curve:
    what: str
    points: Sequence[Point]

    def rows(self) -> list[dict[str, Any]]:
        first = self.points[0]
        return [
            {
                "by": self.what,
                "": f"{one.size:,}",
                "CPU ms/step": f"{one.cpu:.2f}",
                "Postgres CPU ms/step": f"{one.postgres:.2f}",
                "times the first": f"{one.total / first.total:.2f}",
                "Longhouse alone": f"{one.cpu / first.cpu:.2f}",
                "Postgres alone": f"{one.postgres / first.postgres:.2f}",
            }
            for one in self.points
        ]


async def measure(*wanted: str) -> list[Curve]:
    curves: list[Curve] = []
    for name in wanted or ("history", "tools", "sessions"):
        async with ground() as under:
            curves += await KINDS[name](under)
    return curves


# By the messages before it


async def by_history(under: Ground) -> list[Curve]:
    """The history is in the session, and the client sends the new message; or the client sends all of it again."""
    inside: list[Point] = []
    resent: list[Point] = []
    async with _client(under) as (served, http):
        for points, again in ((inside, False), (resent, True)):
            for size in HISTORIES:
                talks = [await _talk(http, size) for _ in range(PLAYED + 2 * AT_ONCE)]
                points.append(await _point(under, served, http, size, _goes_on(talks, again=again)))
    assert not await under.db.value("SELECT count(*) FROM journal WHERE kind = 'Condensed'"), "all of it was sent"
    return [Curve("messages in the session", inside), Curve("messages sent again", resent)]


@dataclass(frozen=True)
class _Talk:
    session: str
    messages: list[dict[str, str]]


async def _talk(http: aiohttp.ClientSession, size: int) -> _Talk:
    """A session with about so many messages before its next turn."""
    words = "and some words of it, as many as people write or read in a message, " * 3
    said: list[dict[str, str]] = []
    for number in range(size // 2 - 1):
        said.append({"role": "user", "content": f"Question {number}, {words}"})
        said.append({"role": "assistant", "content": f"Answer {number}, {words}"})
    said.append({"role": "user", "content": "plain"})
    async with http.post("/v1/chat/completions", json={"model": AGENT, "messages": said}) as response:
        assert response.status == 200, await response.text()
        answered = msgspec.json.decode(await response.read())
    return _Talk(
        answered["model"], [*said, {"role": "assistant", "content": answered["choices"][0]["message"]["content"]}]
    )


def _goes_on(talks: Sequence[_Talk], *, again: bool) -> Turns:
    async def turn(http: aiohttp.ClientSession, number: int) -> None:
        talk, new = talks[number], {"role": "user", "content": "work"}
        await _turn(http, AGENT if again else talk.session, [*talk.messages, new] if again else [new])

    return turn


# By the tools in the catalog


async def by_tools(under: Ground) -> list[Curve]:
    """An agent that is offered what is found for its task: each task is another one."""
    await publish_templates(Catalog(under.db), [FINDER])
    tasks, points, before = search.queries_of(PLAYED + 2 * AT_ONCE), [], 0

    async def turn(http: aiohttp.ClientSession, number: int) -> None:
        await _turn(http, FINDER.name, [{"role": "user", "content": tasks[number]}])

    tools = search.catalog_of(max(TOOLS))
    for size in TOOLS:
        for start in range(before, size, BATCH):
            await Catalog(under.db).tools.publish(tools[start : min(start + BATCH, size)], by="bench")
        before = size
        async with _client(under) as (served, http):
            await indexed(under)
            points.append(await _point(under, served, http, size, turn))
    return [Curve("tools in the catalog", points)]


# By the sessions in the tables


async def by_sessions(under: Ground) -> list[Curve]:
    """60 in 100 are finished (a sixth of them with events), the others wait for a person, a few also for a time."""
    points, before = [], 0

    async def turn(http: aiohttp.ClientSession, number: int) -> None:
        await _turn(http, AGENT, [{"role": "user", "content": "work"}])

    for size in SESSIONS:
        if size:
            began = time.perf_counter()
            await fill(under, before, size)
            console.print(f"{size:,} sessions after {time.perf_counter() - began:.0f} s")
        before = size
        async with _client(under) as (served, http):
            points.append(await _point(under, served, http, size, turn))
    return [Curve("sessions in the tables", points)]


async def fill(under: Ground, before: int, size: int) -> None:
    new, name = size - before, f"{before or ''}"
    asks: Mapping[str, Any] = {"state": "WAITING_FOR_CLARIFICATION", "told": filling.ASKED, "is_old": True}
    async with filling.unindexed(under.db):
        await filling.fill(
            under.db, f"finished{name}", round(0.6 * new), state="COMPLETED", journals=new // 10, is_old=True
        )
        await filling.fill(under.db, f"asked{name}", round(0.37 * new), **asks)
        await filling.fill(under.db, f"timed{name}", round(0.03 * new), wakes=True, **asks)
    await filling.settle(under.db)


KINDS: Final[Mapping[str, Callable[[Ground], Awaitable[list[Curve]]]]] = {
    "history": by_history,
    "tools": by_tools,
    "sessions": by_sessions,
}


@asynccontextmanager
async def _client(under: Ground) -> AsyncIterator[tuple[House, aiohttp.ClientSession]]:
    async with (
        house(under) as served,
        aiohttp.ClientSession(served.url, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        yield served, http


async def _turn(http: aiohttp.ClientSession, model: str, messages: Sequence[Mapping[str, str]]) -> None:
    async with http.post(
        "/v1/chat/completions", json={"model": model, "messages": messages, "stream": True}
    ) as response:
        assert response.status == 200, await response.text()
        last = b""
        async for piece in response.content.iter_any():
            last = (last + piece)[-100:]
        assert last.endswith(b"data: [DONE]\n\n"), last


async def _point(under: Ground, served: House, http: aiohttp.ClientSession, size: int, turn: Turns) -> Point:
    numbers = iter(range(PLAYED + 2 * AT_ONCE))

    async def play(count: int) -> None:
        async def some(share: int) -> None:
            for _ in range(share):
                await turn(http, next(numbers))

        await asyncio.gather(*(some(count // AT_ONCE) for _ in range(AT_ONCE)))

    def spent() -> tuple[float, float, float]:
        return time.perf_counter(), served.cpu(), under.postgres_cpu()

    await play(2 * AT_ONCE)  # warm-up
    await under.settled()
    begun = spent()
    await asyncio.sleep(IDLE_FOR)
    rested = spent()
    await play(PLAYED)
    await under.settled()
    ended = spent()
    idle = [(after - before) / (rested[0] - begun[0]) for before, after in zip(begun, rested, strict=True)]
    cpu, postgres = (
        1000 * (after - before - rate * (ended[0] - rested[0])) / (PLAYED * STEPS)
        for before, after, rate in list(zip(rested, ended, idle, strict=True))[1:]
    )
    console.print(
        f"  {size:,}: {cpu:.2f} + {postgres:.2f} ms/step; idle {100 * idle[1]:.1f} + {100 * idle[2]:.1f} % of a core"
    )
    return Point(size, cpu, postgres)


async def main(picture: Path, *wanted: str) -> None:
    console.print(machine())
    show_all(await measure(*wanted), picture)


def show_all(curves: Sequence[Curve], picture: Path) -> None:
    show("what a step costs as things grow", [row for curve in curves for row in curve.rows()])
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.write_text(
        curve_picture.drawn([(curve.what, [(p.size, p.cpu, p.postgres) for p in curve.points]) for curve in curves])
    )
    console.print(f"the curves: {picture}")


if __name__ == "__main__":
    given = sys.argv[1:]
    svg = Path(given.pop(0)) if given and given[0].endswith(".svg") else PICTURE
    uvloop.run(main(svg, *given))
