"""Tools in processes of their own: what a warm call adds, and how sessions fare beside tools that break everything."""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from longhouse import clock
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.journal import events
from longhouse.journal.events import Output
from longhouse.journal.fold import blank, extended
from longhouse.journal.session import Open
from longhouse.tools.bindings import isolated, python
from longhouse.tools.isolation.pool import ProcessPool
from longhouse.tools.toolbox import Toolbox

CALLS = 1_000
PACKAGE = "acme_bench"
TIMEOUTS = {"loops": 3.0}
TOOLS = """
from longhouse.tools import BaseTool


class Echo(BaseTool):
    "Says it again."
    text: str

    async def __call__(self, context, config=None, **kwargs):
        return self.text
"""
DEADLY = """
import os
from pathlib import Path

from longhouse.tools import BaseTool


class Exits(BaseTool):
    "Ends its process."

    async def __call__(self, context, config=None, **kwargs):
        os._exit(1)


class Loops(BaseTool):
    "Never comes back."

    def __call__(self, context, config=None, **kwargs):
        (Path(__file__).parent / "looping").write_text(str(os.getpid()))
        while True:
            pass


class Takes(BaseTool):
    "Takes 4 GB."

    def __call__(self, context, config=None, **kwargs):
        return str(len(b"x" * 4 * 2**30))
"""
"""What the tests of isolation use, too."""


@asynccontextmanager
async def _opened() -> AsyncIterator[tuple[Toolbox, ProcessPool]]:
    """A toolbox with the tools of a foreign package, and `here.echo` in this process."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / f"{PACKAGE}.py").write_text(TOOLS + DEADLY)
        sys.path.insert(0, folder)
        try:
            async with ProcessPool().running() as pool:
                toolbox = Toolbox([])
                for name in ("Echo", "Exits", "Loops", "Takes"):
                    toolbox.add(await isolated.bound(_described(name.lower(), name), [PACKAGE], pool))
                toolbox.add(python.bound(_described("here.echo", "Echo"), [PACKAGE]))
                yield toolbox, pool
        finally:
            sys.path.remove(folder)


def _described(name: str, cls: str) -> ToolDescriptor:
    binding = RuntimeBinding(python_entrypoint=f"{PACKAGE}:{cls}")
    return ToolDescriptor(name=name, description_short=name, runtime_binding=binding, timeout=TIMEOUTS.get(name))


def _caller(toolbox: Toolbox) -> Callable[[str, str], Awaitable[Any]]:
    now = clock.now()
    limits = events.Limits(max_iterations=1, max_clarifications=0, time_budget=600.0)
    began: tuple[events.Event, ...] = (
        events.Opened(agent="bench", version=1, owner="local", conversation="c"),
        events.Prompted(trace="t", content=("Go",)),
        events.Started(trace="t", prompt=2, version=1, instance="", limits=limits, date=now.date().isoformat()),
    )
    session = extended(blank("bench"), began, now)
    assert session.turn is not None
    turn = session.turn

    async def called(name: str, arguments: str = "{}") -> Any:
        call = Open(call="1-action-0", tool=name, version=1, arguments=arguments, seq=0)
        return (await toolbox.perform(call, session, turn)).outcome

    return called


async def warm_calls() -> dict[str, Any]:
    """The same tool in the server and in a warm process, with a thousand characters as argument and result."""
    arguments = '{"text": "' + "字" * 1_000 + '"}'
    async with _opened() as (toolbox, _):
        called, taken = _caller(toolbox), {}
        for name in ("here.echo", "echo"):
            for _ in range(50):
                await called(name, arguments)
            times = []
            for _ in range(CALLS):
                began = time.perf_counter()
                assert isinstance(await called(name, arguments), Output)
                times.append((time.perf_counter() - began) * 1000)
            taken[name] = sorted(times)
    here, apart = taken["here.echo"], taken["echo"]
    return {
        "calls": CALLS,
        "in the server p50 ms": round(statistics.median(here), 3),
        "in a process p50 ms": round(statistics.median(apart), 3),
        "in a process p95 ms": round(apart[int(CALLS * 0.95)], 3),
        "added p50 ms": round(statistics.median(apart) - statistics.median(here), 3),
    }


async def beside_deadly() -> dict[str, Any]:
    """Calls of others, one after another in 20 tasks, while three tools break everything that they can."""
    async with _opened() as (toolbox, pool):
        called, waits = _caller(toolbox), [0.0]
        deadly = asyncio.gather(*(called(name, "{}") for name in ("exits", "loops", "takes")))

        async def others() -> None:
            while not deadly.done():
                began = time.perf_counter()
                await called("here.echo", '{"text": "x"}')
                await asyncio.sleep(0.01)
                waits.append(time.perf_counter() - began)

        await asyncio.gather(*(others() for _ in range(20)))
        faults = [one.code for one in await deadly]
        return {
            "faults": ", ".join(faults),
            "processes ended": sum(pool.ended.values()),
            "calls of 20 others": len(waits),
            "longest ms": round(max(waits) * 1000, 1),
        }
