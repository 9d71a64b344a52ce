"""A package of tools as somebody else would write one; tests put it on the path and publish its classes by name."""

import os
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TOOLS = """
import asyncio
import time
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from longhouse.tools import BaseTool


class Pay(BaseTool):
    "Pay a bill."

    effect: ClassVar[str] = "once"
    needs_approval: ClassVar[bool] = True
    timeout: ClassVar[float] = 120.0
    max_output: ClassVar[int] = 1000

    amount: int = Field(ge=1, description="In cents")

    async def __call__(self, context, config=None, **kwargs):
        folder = Path(__file__).parent
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"pay {context.key}\\n")
        while not (folder / "go").exists():
            await asyncio.sleep(0.01)
        return f"paid {self.amount}"


class Look(BaseTool):
    "Look something up."

    def __call__(self, context, config=None, **kwargs):
        return "seen"


class Stuck(BaseTool):
    "Hangs in its thread."

    def __call__(self, context, config=None, **kwargs):
        time.sleep(600)


class Deaf(BaseTool):
    "Does not stop when it is told to."

    async def __call__(self, context, config=None, **kwargs):
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass
"""


@contextmanager
def acme(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the package, which this process and those that it starts can import; no two tests share one."""
    name = f"acme_{uuid.uuid4().hex[:12]}"
    (folder / f"{name}.py").write_text(TOOLS)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("LONGHOUSE_TEST_FOLDER", str(folder))
    try:
        yield name
    finally:
        sys.modules.pop(name, None)
