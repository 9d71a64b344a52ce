"""A worker stops itself where it hurts most: it has its result, and is about to record it.

A worker that is frozen at another moment mostly sees by its clock that its lease is over, before it writes anything.
"""

import asyncio
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any, Final

from chaos.patching import Function, replaced

RECORDS: Final = "longhouse.runtime.recorder:Recorder._write"
BEFORE_IT_RECORDS: Final = signal.SIGUSR1
"""Asks a worker to stop before it records something."""
PATIENCE: Final = 2.0
"""Seconds for it to come to that."""


def arm() -> None:
    """This process stops, when it was asked to, before it records something."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    def wrap(write: Function) -> Function:
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal asked
            if asked:
                asked = False
                os.kill(os.getpid(), signal.SIGSTOP)
            return await write(*args, **kwargs)

        return wrapped

    signal.signal(BEFORE_IT_RECORDS, ask)
    replaced(RECORDS, wrap)


async def is_stopped(pid: int) -> bool:
    """Whether the process stops by itself within `PATIENCE`."""
    until = asyncio.get_running_loop().time() + PATIENCE
    while asyncio.get_running_loop().time() < until:
        if _state(pid) == "T":
            return True
        await asyncio.sleep(0.01)
    return False


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
