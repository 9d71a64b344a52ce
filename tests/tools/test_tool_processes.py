"""Calls of one package share its processes one after another: none hears of another, whatever a tool leaves behind."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.cli.processes import child
from longhouse.journal.events import Output
from longhouse.tools.bindings import isolated
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.execution import CallExecutor
from longhouse.tools.isolation import messages, process
from longhouse.tools.isolation.pool import ProcessPool
from longhouse.tools.outcomes import CallError, NotBegun

TOOLS = """
import asyncio, os, threading, time
from longhouse.tools import BaseTool
from longhouse.tools.isolation import messages

left = []


class Plain(BaseTool):
    "Says whose it is."

    async def __call__(self, context, config=None, **kwargs):
        await asyncio.sleep(0.05)
        return f"for {context.owner}, {left}" + (f", {kwargs}, {sorted(config.tools)}" if kwargs else "")


class Forks(BaseTool):
    "Its copy raises."

    def __call__(self, context, config=None, **kwargs):
        if os.fork() == 0:
            raise RuntimeError(f"the copy of {context.owner}")
        os.wait()
        return f"forked for {context.owner}"


class Leaves(BaseTool):
    "Leaves a task behind, which reads the session in the time of another call."

    async def __call__(self, context, config=None, **kwargs):
        async def read():
            await asyncio.sleep(0.01)
            try:
                left.append(context.session)
            except RuntimeError as error:
                left.append(str(error))

        globals()["task"] = asyncio.create_task(read())
        return "left"


class Late(BaseTool):
    "Blocks a little longer than it may."

    def __call__(self, context, config=None, **kwargs):
        time.sleep(0.4)
        return "late"


class Forges(BaseTool):
    "Answers for another call before it answers for its own."

    def __call__(self, context, config=None, **kwargs):
        context.host._channel.send(messages.ToolReturned(number=context.number - 1, text="of another call"))
        return "its own"


class Reads(BaseTool):
    "Reads a session."

    def __call__(self, context, config=None, **kwargs):
        try:
            return context.session
        except RuntimeError as error:
            return {"read": False, "why": str(error)}


class Dies(BaseTool):
    "Its process ends behind the call."

    def __call__(self, context, config=None, **kwargs):
        threading.Timer(0.05, os._exit, (3,)).start()
        return "ok"
"""

QUICK = """
import msgspec, sys


def say(reply):
    content = msgspec.msgpack.encode(reply)
    sys.stdout.buffer.write(len(content).to_bytes(4, "big") + content)
    sys.stdout.flush()


say({"type": "Ready", "number": 0})
while header := sys.stdin.buffer.read(4):
    asked = msgspec.msgpack.decode(sys.stdin.buffer.read(int.from_bytes(header, "big")))
    say({"type": "Checked", "number": asked["number"], "problem": ""})
"""
"""A tool process that starts at once and finds every argument good."""

Called = Callable[..., Awaitable[str]]
Opened = tuple[Called, ProcessPool]


@pytest.fixture
async def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opened]:
    package = f"foreign_{uuid.uuid4().hex}"
    (tmp_path / f"{package}.py").write_text(TOOLS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    execution = CallExecutor()
    # One process: the next call always meets what the one before has left behind.
    async with ProcessPool(most=1).running() as pool:

        async def call(name: str, owner: str, **settings: Any) -> str:
            binding = RuntimeBinding(python_entrypoint=f"{package}:{name}")
            descriptor = ToolDescriptor(name=name.lower(), description_short=name, runtime_binding=binding)
            bound = await isolated.bound(descriptor, [package], pool)
            work = bound.bind("{}")
            assert callable(work)
            context = ToolContext(
                session_id=owner, conversation_id="c", owner=owner, user=None, agent="a", call="1", key="k"
            )
            config = ToolConfig(tools={name.lower(): settings})
            done = await execution.run(lambda: work(context, config), 0.3 if name == "Late" else 20)
            return str(done.outcome.content)

        yield call, pool


async def test_no_call_hears_of_another(opened: Opened) -> None:
    called, pool = opened
    assert await called("Plain", "ann") == "for ann, []"
    # Settings of the files travel with the call, as keyword arguments.
    assert await called("Plain", "ann", roots=["a"]) == "for ann, [], {'roots': ['a']}, ['plain']"
    # A copy of the process says nothing, so that nobody gets the answer of somebody else.
    assert await called("Forks", "ann") == "forked for ann"
    assert await called("Plain", "bob") == "for bob, []"
    # What a call leaves behind reads no session but its own, and that only while it runs.
    assert await called("Leaves", "ann") == "left"
    assert await called("Plain", "bob") == (
        "for bob, ['the call has ended: its session cannot be read any more']"
    )  # fmt: skip
    # Who was told to stop and finished after all has been told; the next one has not.
    assert await called("Late", "ann") == "late"
    assert (await called("Plain", "bob")).startswith("for bob")
    # The answer to another call is none, wherever it comes from.
    with pytest.raises(CallError, match="no reply to this call"):
        await called("Forges", "ann")
    assert await called("Plain", "bob") == "for bob, []"
    # A process that has ended meanwhile is not used: a call that never began is not in doubt.
    assert await called("Dies", "ann") == "ok"
    [idle] = pool._idle
    async with asyncio.timeout(10):
        while idle.is_usable:
            await asyncio.sleep(0.01)
    assert await called("Plain", "bob") == "for bob, []"


async def test_what_is_too_large_is_said_in_its_own_words_and_what_is_half_read_is_not_lost(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    called, pool = opened
    assert await called("Reads", "ann") == "null"
    monkeypatch.setattr(messages, "MOST_BYTES", 1_500)
    monkeypatch.setattr(isolated, "_session", lambda context: b"x" * 2_000)
    processes = set(pool._all)
    why = "the session cannot be read in the process of a tool: it has more than 0 MB"
    assert await called("Reads", "ann") == f'{{"read":false,"why":"{why}"}}'
    with pytest.raises(NotBegun, match="its input is too large"):
        await called("Reads", "ann" * 1_000)
    assert pool._all == processes, "nobody had to end"
    # Half of a reply is there when its time is over: it is read to its end.
    monkeypatch.undo()
    [idle] = pool._idle
    text, limits = "y" * 100_000, messages.ProcessLimits(10**9, 30)
    reply = messages.framed(messages.ToolReturned(number=idle._number, text=text))
    idle._stdout.feed_data(reply[:50_000])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await idle.reply(lambda: None, limits)
    idle._stdout.feed_data(reply[50_000:])
    assert await idle.reply(lambda: None, limits) == messages.ToolReturned(number=idle._number, text=text)


async def test_there_are_never_more_processes_than_may_be_and_one_package_has_half_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quick_child.py").write_text(QUICK)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(process, "CHILD", "quick_child")
    async with ProcessPool(most=2).running() as pool:

        async def check(package: str) -> None:
            limits = messages.ProcessLimits(10**9, 30)
            request = messages.Check(entrypoint=f"{package}:T", tool="t", arguments="{}", limits=limits)
            assert await pool.check(request, "t", 20) == ""

        await asyncio.gather(check("a"), check("a"))
        assert pool.size == 1
        await check("b")
        assert pool.size == 2
        # Both start at once: each takes the place of one that rests.
        await asyncio.gather(check("c"), check("d"))
        assert pool.size == 2


async def test_a_process_that_does_not_start_in_time_is_no_mistake_in_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    async with ProcessPool().running() as pool:
        check = messages.Check(entrypoint="a.b:C", tool="c", arguments="{}", limits=messages.ProcessLimits(10**9, 30))
        with pytest.raises(CallError, match=r"not begun within 0.2 seconds: its process did not start; nothing"):
            await pool.check(check, "c", 0.2)
        assert pool.size == 0
        (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(3)\n")
        with pytest.raises(NotBegun, match="no process could be started for it: it ended before it was ready"):
            await pool.check(check, "c", 20)


@pytest.mark.parametrize(
    ("writes", "adds"), [({"sources": 5}, {}), ({}, {"searches_used": "many"}), ({"owner": "bob"}, {})]
)
def test_what_cannot_be_kept_in_a_context_is_refused(writes: dict[str, object], adds: dict[str, object]) -> None:
    binding = RuntimeBinding(python_entrypoint="foreign.tools:Plain")
    descriptor = ToolDescriptor(name="plain", description_short="x", runtime_binding=binding)
    reply = messages.ToolReturned(text="x" * 100, writes=writes, adds=adds)
    with pytest.raises(CallError, match="cannot be kept") as raised:
        isolated._performed(descriptor, 10, reply)
    assert raised.value.in_doubt
    kept = isolated._performed(descriptor, 10, messages.ToolReturned(text="x" * 1_000, writes={"searches_used": 2}))
    assert isinstance(kept.outcome, Output)
    assert kept.outcome.content.startswith("x" * 10 + "\n[cut")


def test_a_class_that_describes_no_tool_is_told_with_its_field() -> None:
    said = {"inline": False, "finishes": False, "closing": False, "asks": False, "role": "", "isolation": None}
    described = messages.Described(descriptor={"name": "plain", "description_short": 5}, **said)  # type: ignore[arg-type]
    with pytest.raises(EntrypointError, match="does not describe a tool: description_short: "):
        isolated.own_descriptor(described)


def test_what_goes_through_the_pipes_keeps_its_names() -> None:
    """A process of the code before says these names, and one of the code after is told them."""
    for union, names in (
        (messages.Request, "Call Check Describe Revision SessionSent Stop"),
        (messages.Reply, "Checked Described Raised Ready Refused Returned SessionWanted"),
        (child.ChildReport, "Failed Ready"),
    ):
        assert sorted(str(kind.__struct_config__.tag) for kind in get_args(union)) == names.split()
