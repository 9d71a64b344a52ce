"""A Longhouse with tools that take their process down, or hold it up: `python tests/stories/deadly_server.py`.

Each tool writes its name to `ledger` in LONGHOUSE_TEST_FOLDER before it does anything.
"""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import uvloop

from longhouse.agents.strategies.protocol import Reply, Request, Verdict
from longhouse.agents.strategies.tool_calling import ToolCallingAgent
from longhouse.agents.template import Template, ToolPolicy
from longhouse.app import TOOLS
from longhouse.tools import BaseTool, ToolContext


def _folder() -> Path:
    return Path(os.environ["LONGHOUSE_TEST_FOLDER"])


class _Noted(BaseTool):
    def note(self) -> None:
        with (_folder() / "ledger").open("a") as ledger:
            ledger.write(f"{self.tool_name}\n")


class ExitTool(_Noted):
    """Look something up; the process does not survive it."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.note()
        os._exit(3)


class HoldTool(_Noted):
    """Look something up; nothing else moves in the process meanwhile."""

    seconds: float

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.note()
        hold_up(self.seconds, secret="sk-canary")
        return "held"


def hold_up(seconds: float, secret: str) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


class SlowTool(_Noted):
    """Look something up that takes its time; may be done as often as one likes."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.note()
        while not (_folder() / "go").exists():
            await asyncio.sleep(0.02)
        return "looked"


class FragileAgent(ToolCallingAgent):
    """Does not survive any reply while there is a file `deadly`."""

    def interpret(self, request: Request, reply: Reply) -> Verdict:
        if (_folder() / "deadly").exists():
            os._exit(3)
        return super().interpret(request, reply)


DEADLY = (ExitTool, HoldTool, SlowTool)
CLERK = Template(
    name="clerk",
    base_agent_class="FragileAgent",
    tool_policy=ToolPolicy(allowlist=("finalanswertool", *(one.tool_name for one in DEADLY))),
)
CHIEF = Template(name="chief", tool_policy=ToolPolicy(allowlist=(f"agent.{CLERK.name}", "finalanswertool")))


if __name__ == "__main__":
    from bare_server import serve  # it lies beside this file, which is the program now

    uvloop.run(serve(templates=[CLERK, CHIEF], tools=(*TOOLS, *DEADLY)))
