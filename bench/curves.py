"""What a step costs as things grow: the history before it, the tools in the catalog, the sessions in the tables.

`python -m bench.curves [FILE.svg] [history|tools|sessions …]`. Ten-step sessions over HTTP, four at once; the CPU of
Longhouse and of Postgres until the last of them has its answer. What follows turns (the ledger, the index of what was
said) is waited for where much of it is left, and is not counted: `bench.spine` has it in its figures. Tables of tools
and of sessions are vacuumed and analysed first, as autovacuum would do while something is measured.

Milliseconds are the lower quartile of some rounds, of those that were disturbed least. Rounds go by turns through all
sizes, each in tables and a process of its own where it needs them: what disturbs the machine for a while disturbs all
alike. How many times the first a size costs is told by each round for itself; the figure is the median of them.

The first rounds are warm-up: what is measured is a process that keeps what it has read, beside a catalog that stays as
it is. The made-up tasks have some 190 words in all, most of which are kept by then; people have more that are rare. How
many times the first a size costs in the warm-up stands beside it.
"""

import asyncio
import random
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import uvloop

from bench import cpu, curve_picture, filling, search
from bench.catalog import indexed
from bench.house import Ground, House, ground, house
from bench.model import STEPS
from bench.report import console, machine, show
from longhouse.agents.template import Template, ToolPolicy
from longhouse.app.publish import publish_files
from longhouse.store.catalog.catalog import Catalog

HISTORIES: Final = (10, 100, 1_000)
TOOLS: Final = (10, 1_000, 100_000)
SESSIONS: Final = (0, 1_000_000)
AT_ONCE: Final = 4
ROUNDS, WARM_UP = 24, 12
"""Rounds that are counted, and those before that are not, of AT_ONCE sessions each; a session begins anew, or goes on
from a talk of its own."""
ROUNDS_PLAYED: Final = range(WARM_UP + ROUNDS)
PLAYED: Final = (WARM_UP + ROUNDS) * AT_ONCE
AT_HAND: Final = 4
"""Rounds whose histories are made at a time."""
ENDS_WITHIN: Final = 0.02
"""Seconds from the last byte of an answer to the end of its turn."""
AGENT: Final = "tool_calling_agent"
FINDER: Final = Template(name="bench_finder", tool_policy=ToolPolicy(required=("clocktool", "finalanswertool")))
"""Is offered what a search finds among all tools, and the tool that the model calls."""
BATCH: Final = 2_000
PICTURE: Final = Path("runs", "curves.svg")

Turns = Callable[[aiohttp.ClientSession, int], Awaitable[None]]
"""Plays the turn of this number."""
Key = tuple[str, int]
"""A curve, and a size on it."""
Spent = dict[Key, list[tuple[float, float]]]
"""Seconds of CPU in each round, of Longhouse and of Postgres."""


@dataclass(frozen=True)
class Point:
    """Milliseconds of CPU a step."""

    size: int
    cpu: float
    postgres: float
    times: tuple[float, float, float]
    """How many times the first size it costs: in all, in our process, in Postgres."""
    cold: float
    """The same in all, in the rounds of the warm-up."""


@dataclass(frozen=True)
class Curve:
    what: str
    points: Sequence[Point]

    def rows(self) -> list[dict[str, Any]]:
        kinds = ("times the first", "Longhouse alone", "Postgres alone")
        return [
            {
                "by": self.what,
                "": f"{one.size:,}",
                "CPU ms/step": f"{one.cpu:.2f}",
                "Postgres CPU ms/step": f"{one.postgres:.2f}",
                **{kind: f"{times:.2f}" for kind, times in zip(kinds, one.times, strict=True)},
                "… in the warm-up": f"{one.cold:.2f}",
            }
            for one in self.points
        ]


async def measure(*wanted: str) -> list[Curve]:
    curves: list[Curve] = []
    for name in wanted or ("history", "tools", "sessions"):
        curves += await KINDS[name]()
    return curves


# By the messages before it


async def by_history() -> list[Curve]:
    """The client sends the new message, to the process that had the session or to one that has to read it; or it sends
    all of them again."""
    had, read, sent = "messages in the session", "… which another process had", "messages sent again"
    spent: Spent = {}
    async with ground() as under:
        async with _open(under) as server:
            elsewhere = {(read, size): await _talks(server.http, size, ROUNDS_PLAYED) for size in HISTORIES}
            for start in range(0, WARM_UP + ROUNDS, AT_HAND):
                # As many as the process keeps in memory until somebody goes on with them.
                rounds = range(start, min(start + AT_HAND, WARM_UP + ROUNDS))
                talks = {
                    (name, size): await _talks(server.http, size, rounds) for name in (had, sent) for size in HISTORIES
                }
                await under.settled()
                turns = {key: (server, _goes_on(talks[key], again=key[0] == sent)) for key in talks}
                await _play(turns, rounds, spent)
        async with _open(under) as server:
            turns = {key: (server, _goes_on(talks, again=False)) for key, talks in elsewhere.items()}
            await _play(turns, ROUNDS_PLAYED, spent)
        assert not await under.db.value("SELECT count(*) FROM journal WHERE kind = 'Condensed'"), "all of it was sent"
    points = _points(spent)
    return [Curve(name, [points[name, size] for size in HISTORIES]) for name in (had, read, sent)]


@dataclass(frozen=True)
class _Talk:
    session: str
    messages: list[dict[str, str]]


async def _talks(http: aiohttp.ClientSession, size: int, rounds: range) -> dict[int, _Talk]:
    """By the number of the turn that goes on with it."""
    numbers = range(rounds.start * AT_ONCE, rounds.stop * AT_ONCE)
    return {number: await _talk(http, size) for number in numbers}


async def _talk(http: aiohttp.ClientSession, size: int) -> _Talk:
    """A session with about so many messages before its next turn; no other has the same, by which it could be found."""
    words = "and some words of it, as many as people write or read in a message, " * 3
    said = [{"role": "user", "content": f"This is {uuid.uuid4()}."}, {"role": "assistant", "content": "Hello."}]
    for number in range(size // 2 - 2):
        said.append({"role": "user", "content": f"Question {number}, {words}"})
        said.append({"role": "assistant", "content": f"Answer {number}, {words}"})
    said.append({"role": "user", "content": "plain"})
    async with http.post("/v1/chat/completions", json={"model": AGENT, "messages": said}) as response:
        assert response.status == 200, await response.text()
        answered = msgspec.json.decode(await response.read())
    return _Talk(
        answered["model"], [*said, {"role": "assistant", "content": answered["choices"][0]["message"]["content"]}]
    )


def _goes_on(talks: Mapping[int, _Talk], *, again: bool) -> Turns:
    async def turn(http: aiohttp.ClientSession, number: int) -> None:
        talk, new = talks[number], {"role": "user", "content": "work"}
        await _turn(http, AGENT if again else talk.session, [*talk.messages, new] if again else [new])

    return turn


# By the tools in the catalog


async def by_tools() -> list[Curve]:
    """An agent that is offered what is found for its task: each task is another one."""
    tasks, tools, curve = search.queries_of(PLAYED), search.catalog_of(max(TOOLS)), "tools in the catalog"

    async def turn(http: aiohttp.ClientSession, number: int) -> None:
        await _turn(http, FINDER.name, [{"role": "user", "content": tasks[number]}])

    async def prepare(under: Ground, size: int) -> None:
        await publish_files(Catalog(under.db), (), [FINDER])
        for start in range(0, size, BATCH):
            await Catalog(under.db).tools.publish(tools[start : min(start + BATCH, size)], by="bench")

    return [await _by_tables(curve, TOOLS, prepare, turn)]


# By the sessions in the tables


async def by_sessions() -> list[Curve]:
    """60 in 100 are finished (a sixth of them with events), the others wait for a person, a few also for a time."""

    async def turn(http: aiohttp.ClientSession, number: int) -> None:
        await _turn(http, AGENT, [{"role": "user", "content": "work"}])

    return [await _by_tables("sessions in the tables", SESSIONS, fill, turn)]


async def fill(under: Ground, size: int) -> None:
    if not size:
        return
    began = time.perf_counter()
    asks: Mapping[str, Any] = {"state": "WAITING_FOR_CLARIFICATION", "told": filling.ASKED, "is_old": True}
    async with filling.unindexed(under.db):
        await filling.fill(under.db, "finished", round(0.6 * size), state="COMPLETED", journals=size // 10, is_old=True)
        await filling.fill(under.db, "asked", round(0.37 * size), **asks)
        await filling.fill(under.db, "timed", round(0.03 * size), wakes=True, **asks)
    console.print(f"{size:,} sessions after {time.perf_counter() - began:.0f} s")


KINDS: Final[Mapping[str, Callable[[], Awaitable[list[Curve]]]]] = {
    "history": by_history,
    "tools": by_tools,
    "sessions": by_sessions,
}


async def _by_tables(
    name: str, sizes: Sequence[int], prepare: Callable[[Ground, int], Awaitable[None]], turn: Turns
) -> Curve:
    """Each size in tables of its own, which are filled before their server starts."""
    turns: dict[Key, tuple[Server, Turns]] = {}
    async with AsyncExitStack() as stack:
        for size in sizes:
            under = await stack.enter_async_context(ground())
            await prepare(under, size)
            turns[name, size] = (await stack.enter_async_context(_open(under)), turn)
        for server, _ in turns.values():
            await indexed(server.under)
            await filling.settle(server.under.db)
            await server.under.settled()
        points = _points(await _play(turns, ROUNDS_PLAYED, {}))
    return Curve(name, [points[name, size] for size in sizes])


@dataclass(frozen=True)
class Server:
    """A Longhouse over tables that others may share."""

    under: Ground
    house: House
    http: aiohttp.ClientSession

    def used(self) -> tuple[cpu.Times, cpu.Times]:
        return cpu.times([self.house.process]), cpu.times(self.under.postmaster.children(recursive=True))


@asynccontextmanager
async def _open(under: Ground) -> AsyncIterator[Server]:
    async with (
        house(under) as served,
        aiohttp.ClientSession(served.url, connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        yield Server(under, served, http)


async def _turn(http: aiohttp.ClientSession, model: str, messages: Sequence[Mapping[str, str]]) -> None:
    async with http.post(
        "/v1/chat/completions", json={"model": model, "messages": messages, "stream": True}
    ) as response:
        assert response.status == 200, await response.text()
        last = b""
        async for piece in response.content.iter_any():
            last = (last + piece)[-100:]
        assert last.endswith(b"data: [DONE]\n\n"), last


async def _play(turns: Mapping[Key, tuple[Server, Turns]], rounds: range, spent: Spent) -> Spent:
    """Plays these rounds of each, one after the other, and notes what they took."""
    for number in rounds:
        # In any order: what follows a turn, some moments later, does not fall into the same one each time.
        for key in random.Random(number).sample(list(turns), len(turns)):
            server, turn = turns[key]
            before = server.used()
            await asyncio.gather(*(turn(server.http, number * AT_ONCE + nth) for nth in range(AT_ONCE)))
            await asyncio.sleep(ENDS_WITHIN)
            ours, postgres = map(cpu.between, before, server.used())
            spent.setdefault(key, []).append((ours, postgres))
    return spent


def _points(spent: Spent) -> dict[Key, Point]:
    points = {}
    for (name, size), rounds in spent.items():
        first = spent[name, min(other for what, other in spent if what == name)]
        ours, postgres = (statistics.quantiles(one, n=4)[0] for one in zip(*rounds[WARM_UP:], strict=True))
        ours, postgres = (1000 * seconds / (AT_ONCE * STEPS) for seconds in (ours, postgres))
        pairs = list(zip(rounds[WARM_UP:], first[WARM_UP:], strict=True))
        times = (
            statistics.median(sum(one) / sum(other) for one, other in pairs),
            statistics.median(one[0] / other[0] for one, other in pairs),
            statistics.median(one[1] / other[1] for one, other in pairs),
        )
        cold = statistics.median(
            sum(one) / sum(other) for one, other in zip(rounds[:WARM_UP], first[:WARM_UP], strict=True)
        )
        points[name, size] = Point(size, ours, postgres, times, cold)
        console.print(
            f"  {name}, {size:,}: {ours:.2f} + {postgres:.2f} ms/step, {times[0]:.2f} times the first"
            f" ({cold:.2f} in the warm-up)"
        )
    return points


async def main(picture: Path, *wanted: str) -> None:
    console.print(machine())
    show_all(await measure(*wanted), picture)


def show_all(curves: Sequence[Curve], picture: Path) -> None:
    show("what a step costs as things grow", [row for curve in curves for row in curve.rows()])
    picture.parent.mkdir(parents=True, exist_ok=True)
    figures = [
        (curve.what, [(one.size, one.cpu, one.postgres, one.times[0]) for one in curve.points]) for curve in curves
    ]
    picture.write_text(curve_picture.drawn(figures))
    console.print(f"the curves: {picture}")


if __name__ == "__main__":
    given = sys.argv[1:]
    svg = Path(given.pop(0)) if given and given[0].endswith(".svg") else PICTURE
    uvloop.run(main(svg, *given))
