"""Exponential back-off: when a session with a temporary error is retried, or all after trouble of the house."""

import math
from collections.abc import Callable
from typing import Final

import msgspec

FIRST: Final = 0.5
LONGEST: Final = 30.0
LONGEST_OF_HOUSE: Final = 2.0
HOUSE: Final = ""
"""Stands for all sessions, where none is to blame, as for a full disk: they wait together."""
FORGOTTEN: Final = 600.0
"""Seconds after the end of a delay until it is forgotten: without a retry here, another worker has the session."""


class _Delay(msgspec.Struct, frozen=True):
    since: float
    """When the first delay of this series began."""
    length: float
    until: float


class Backoff:
    """Each delay of a session is twice as long as the one before, up to half a minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._delays: dict[str, _Delay] = {}

    def put_off(self, session_id: str, longest: float = LONGEST) -> float:
        """Starts the next delay after an error; returns its seconds."""
        now, before = self._now(), self._delays.get(session_id)
        length = min(2 * before.length, longest) if before else FIRST
        self._delays[session_id] = _Delay(before.since if before else now, length, now + length)
        return length

    def leave_alone(self, session_id: str) -> None:
        """Never retries the session in this process."""
        self._delays[session_id] = _Delay(self._now(), math.inf, math.inf)

    def over(self, session_id: str) -> None:
        """Resets the delays: the session has advanced."""
        self._delays.pop(session_id, None)

    def troubled_for(self, session_id: str) -> float:
        delay = self._delays.get(session_id)
        return max(0.0, self._now() - delay.since) if delay else 0.0

    def rests(self, session_id: str) -> bool:
        delay = self._delays.get(session_id)
        return delay is not None and self._now() < delay.until

    def resting(self) -> list[str]:
        """The sessions whose delay is not over."""
        now = self._now()
        self._delays = {name: delay for name, delay in self._delays.items() if now < delay.until + FORGOTTEN}
        return [name for name, delay in self._delays.items() if now < delay.until]
