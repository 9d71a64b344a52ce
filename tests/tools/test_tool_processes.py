"""Calls of one package share its processes one after another: none hears of another, whatever a tool leaves behind."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.tools.bindings import isolated
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.execution import CallExecutor
from longhouse.tools.isolation import messages
from longhouse.tools.isolation.pool import ProcessPool
from longhouse.tools.outcomes import CallError

TOOLS = """
import asyncio, os, threading, time
from longhouse.tools import BaseTool

left = []


class Plain(BaseTool):
    "Says whose it is."

    async def __call__(self, context, config=None, **kwargs):
        await asyncio.sleep(0.05)
        return f"for {context.owner}, {left}"


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


class Dies(BaseTool):
    "Its process ends behind the call."

    def __call__(self, context, config=None, **kwargs):
        threading.Timer(0.05, os._exit, (3,)).start()
        return "ok"
"""

Called = Callable[[str, str], Awaitable[str]]
Opened = tuple[Called, ProcessPool]


@pytest.fixture
async def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opened]:
    package = f"foreign_{uuid.uuid4().hex}"
    (tmp_path / f"{package}.py").write_text(TOOLS)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    execution = CallExecutor()
    # One process: the next call always meets what the one before has left behind.
    async with ProcessPool(most=1).running() as pool:

        async def call(name: str, owner: str) -> str:
            binding = RuntimeBinding(python_entrypoint=f"{package}:{name}")
            descriptor = ToolDescriptor(name=name.lower(), description_short=name, runtime_binding=binding)
            bound = await isolated.bound(descriptor, [package], pool)
            work = bound.bind("{}")
            assert callable(work)
            context = ToolContext(
                session_id=owner, conversation_id="c", owner=owner, user=None, agent="a", call="1", key="k"
            )
            done = await execution.run(lambda: work(context, ToolConfig()), 0.3 if name == "Late" else 20)
            return str(done.text)

        yield call, pool


async def test_no_call_hears_of_another(opened: Opened) -> None:
    called, pool = opened
    assert await called("Plain", "ann") == "for ann, []"
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
    # A process that has ended meanwhile is not used: a call that never began is not in doubt.
    assert await called("Dies", "ann") == "ok"
    [process] = pool._idle
    async with asyncio.timeout(10):
        while process.is_usable:
            await asyncio.sleep(0.01)
    assert await called("Plain", "bob") == "for bob, []"


@pytest.mark.parametrize(
    ("writes", "adds"), [({"sources": 5}, {}), ({}, {"searches_used": "many"}), ({"owner": "bob"}, {})]
)
def test_what_cannot_be_kept_in_a_context_is_refused(writes: dict[str, object], adds: dict[str, object]) -> None:
    binding = RuntimeBinding(python_entrypoint="foreign.tools:Plain")
    descriptor = ToolDescriptor(name="plain", description_short="x", runtime_binding=binding)
    reply = messages.Returned(text="x" * 100, writes=writes, adds=adds)
    with pytest.raises(CallError, match="cannot be kept") as raised:
        isolated._performed(descriptor, 10, reply)
    assert raised.value.in_doubt
    kept = isolated._performed(descriptor, 10, messages.Returned(text="x" * 1_000, writes={"searches_used": 2}))
    assert kept.text.startswith("x" * 10 + "\n[cut")
