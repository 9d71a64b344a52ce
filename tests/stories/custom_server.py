"""A Longhouse with tools of its own, as a library user would run one: `python tests/stories/custom_server.py`.

It reads the usual LONGHOUSE_* variables. Its tools leave their idempotency key in `ledger` of LONGHOUSE_TEST_FOLDER
and go on once there is a file `go`, so that a test can kill the process in the middle of an effect.
"""

import asyncio
import json
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

import uvloop

from longhouse.agents.template import Template, ToolPolicy
from longhouse.app import TOOLS
from longhouse.journal.events import Effect
from longhouse.tools import BaseTool, ToolContext


class _Slow(BaseTool):
    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        folder = Path(os.environ["LONGHOUSE_TEST_FOLDER"])
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"{self.tool_name} {context.key}\n")
        while not (folder / "go").exists():
            await asyncio.sleep(0.01)
        return f"{self.tool_name} is done"


class LookTool(_Slow):
    """Look something up; may be done as often as one likes."""


class PayTool(_Slow):
    """Pay a bill; must not be done twice."""

    effect: ClassVar[Effect] = "once"
    serve_over_mcp: ClassVar[bool] = True


class WireTool(_Slow):
    """Send money; must not be done twice, nor before a person has approved it."""

    effect: ClassVar[Effect] = "once"
    needs_approval: ClassVar[bool] = True


class ChargeTool(_Slow):
    """Charge a card; must not be done twice, and the bank knows what was done."""

    effect: ClassVar[Effect] = "once"
    timeout: ClassVar[float] = 4.0
    probe: ClassVar[str] = "chargedtool"


class ChargedTool(BaseTool):
    """Ask the bank whether a charge happened: those whose keys are in `charged`. It is away while there is no such
    file."""

    key: str

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        known = (Path(os.environ["LONGHOUSE_TEST_FOLDER"]) / "charged").read_text().split()
        return json.dumps({"happened": self.key in known, "result": "Charged, says the bank."})


EXTRA = (LookTool, PayTool, WireTool, ChargeTool, ChargedTool)
CLERK = Template(
    name="clerk",
    tool_policy=ToolPolicy(
        allowlist=("clarificationtool", "finalanswertool", "looktool", "paytool", "wiretool", "chargetool")
    ),
)


def ledger(folder: Path) -> list[tuple[str, str]]:
    """(tool, idempotency key) of every effect that was begun."""
    path = folder / "ledger"
    if not path.exists():
        return []
    return [(tool, key) for tool, key in (line.split(" ", 1) for line in path.read_text().splitlines())]


def clerk_house(folder: Path, **environment: Any) -> AbstractAsyncContextManager[Any]:
    """This file in a process of its own; its tools work in `folder`."""
    from server_helpers import launched  # noqa: PLC0415 - the tests' own helpers are not there when this file is the program

    return launched(str(Path(__file__)), test_folder=str(folder), **environment)


if __name__ == "__main__":
    from bare_server import serve  # it lies beside this file, which is the program now

    uvloop.run(serve(templates=[CLERK], tools=(*TOOLS, *EXTRA)))
