"""Clocks that jump: a worker's own clock, by which it dates its events, is set while it works.

Whole days, so that the checks can tell from any date when something really happened. What is measured by the clock that
nobody sets, and what Postgres dates, goes on as before.
"""

import itertools
import signal
from datetime import timedelta
from types import FrameType
from typing import Any, Final

from chaos.patching import Function, replaced

NOW: Final = "longhouse.clock:now"
JUMP: Final = signal.SIGUSR2
"""Sets the clock of a process: a day ahead, then two days back, then right again."""
DAY: Final = 86_400.0


def arm() -> None:
    offsets, offset = itertools.cycle((1, -1, 0)), 0

    def jump(number: int, frame: FrameType | None) -> None:
        nonlocal offset
        offset = next(offsets)

    def wrap(now: Function) -> Function:
        def wrapped() -> Any:
            return now() + timedelta(days=offset)

        return wrapped

    signal.signal(JUMP, jump)
    replaced(NOW, wrap)


def really(at: float, about: float) -> float:
    """The moment of an event, whatever the clock said by which it was dated; `about`: a moment of the same run."""
    return at - DAY * round((at - about) / DAY)
