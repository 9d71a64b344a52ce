"""What thinking costs: building the request of a step, and a step of the hybrid beside one of tool calling."""

import statistics
import time
from datetime import UTC, datetime
from typing import Any

from bench import spine
from bench.house import Ground, House
from bench.model import STEPS
from longhouse.agents.strategies.base import BaseAgent
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.agents.strategies.tool_calling import SGRToolCallingAgent, ToolCallingAgent
from longhouse.agents.template import Template, ToolPolicy
from longhouse.app import TOOLS
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import Session

MANY = 12
BUILDS = 2_000
FIRST = 80
"""Sessions of which the first request is built."""
DONE = 5
"""Steps that the session has behind it."""
SIDES = ("tool_calling_agent", "sgr_tool_calling_agent")


def requests() -> list[dict[str, Any]]:
    """Microseconds to build and encode the request of a step; the first one of a session, of which nothing is kept yet;
    and the first one with its tools, whose definitions are encoded with it. Medians: the very first of a process tells
    more of Python, which has not run any of it before."""
    return [_request(cls()) for cls in (SGRAgent, ToolCallingAgent, SGRToolCallingAgent)]


def _request(strategy: BaseAgent) -> dict[str, Any]:
    names = tuple(cls.described().name for cls in TOOLS[:MANY])
    template = Template(name="thinker", tool_policy=ToolPolicy(allowlist=names))
    new, first, next_ = list[float](), list[float](), list[float]()
    size = 0

    def built(session: Session, spent: list[float]) -> None:
        nonlocal size
        began = time.perf_counter()
        size = len(strategy.propose(session, template, tools).encoded)
        spent.append((time.perf_counter() - began) * 1e6)

    for _ in range(FIRST):
        tools = [cls.described() for cls in TOOLS[:MANY]]
        built(_session(), new)
        built(_session(), first)
    session = _session()
    for _ in range(BUILDS + 1):
        built(session, next_)
    return {
        "strategy": type(strategy).__name__,
        "tools": len(tools),
        "steps before": DONE,
        "bytes": size,
        "median µs": round(statistics.median(next_[1:]), 1),
        "p99 µs": round(statistics.quantiles(next_[1:], n=100)[98], 1),
        "the first of a session µs": round(statistics.median(first)),
        "with new tools µs": round(statistics.median(new)),
    }


def _session() -> Session:
    limits = events.Limits(max_iterations=20, max_clarifications=3, time_budget=1800)
    journal: list[events.Event] = [
        events.Opened(agent="thinker", version=1, owner="local", conversation="c"),
        events.Prompted(trace="t", content=("What time is it in Oslo?",)),
        events.Started(trace="t", prompt=2, version=1, instance="i", limits=limits, date="2026-01-31"),
    ]
    for number in range(1, DONE + 1):
        call = f"{number}-action-0"
        journal += [
            events.Replied(),
            events.Called(call=call, tool="clocktool", arguments='{"timezone":"Europe/Oslo"}'),
            events.Returned(call=call, outcome=events.Output(content="It is noon. " * 40)),
        ]
    at = datetime(2026, 1, 31, tzinfo=UTC)
    return fold((Recorded(seq=seq, at=at, event=event) for seq, event in enumerate(journal, 1)), blank("thinker_1"))


async def sides(under: Ground, served: House, *, sessions: int, at_once: int) -> list[dict[str, Any]]:
    """The same ten steps in two ways to think, by turns, so that both see the same machine."""
    cpu = dict.fromkeys(SIDES, 0.0)
    rounds = 3
    for agent in SIDES:
        await spine.play(under, served, sessions=at_once, at_once=at_once, agent=agent)  # warm-up
    for _ in range(rounds):
        for agent in SIDES:
            cpu[agent] += (await spine.play(under, served, sessions=sessions, at_once=at_once, agent=agent)).cpu
    steps = rounds * sessions * STEPS
    return [
        {
            "agent": agent,
            "at once": at_once,
            "steps": steps,
            "CPU ms/step": round(spent / steps * 1000, 2),
            "times tool calling": round(spent / cpu[SIDES[0]], 2),
        }
        for agent, spent in cpu.items()
    ]
