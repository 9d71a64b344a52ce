"""Exponential back-off: when a session with a temporary error is retried, or all of them after trouble of the house."""

import math
from collections.abc import Callable
from typing import Final

import msgspec

FIRST: Final = 0.5
LONGEST: Final = 30.0
LONGEST_OF_HOUSE: Final = 2.0
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

    def put_off(self, session_id: str) -> float:
        """Starts the next delay after an error; returns its seconds."""
        self._delays[session_id] = delay = _next(self._delays.get(session_id), self._now(), LONGEST)
        return delay.length

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


class HouseBackoff:
    """Trouble that no session is to blame for, as a full disk: all wait together, until something is written again."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._delay: _Delay | None = None
        self._met: dict[str, int] = {}
        """Session -> the trouble that it met, and has not got on since."""
        self._count = 0

    def put_off(self, session_id: str) -> float | None:
        """Seconds until all are retried; None if the house was well in between: the trouble is the session's own."""
        if self._met.setdefault(session_id, self._count) != self._count:
            return None
        if not self.rests():
            self._delay = _next(self._delay, self._now(), LONGEST_OF_HOUSE)
        return self._delay.until - self._now() if self._delay else 0.0

    def over(self) -> float | None:
        """Something was written: all go on. Returns for how long there was trouble; None if there was none."""
        if self._delay is None:
            return None
        lasted = self._now() - self._delay.since
        self._delay = None
        self._count += 1
        return lasted

    def got_on(self, session_id: str) -> None:
        self._met.pop(session_id, None)

    @property
    def is_troubled(self) -> bool:
        return self._delay is not None

    def rests(self) -> bool:
        return self._delay is not None and self._now() < self._delay.until


def _next(before: _Delay | None, now: float, longest: float) -> _Delay:
    if before is None:
        return _Delay(now, FIRST, now + FIRST)
    length = min(2 * before.length, longest)
    return _Delay(before.since, length, now + length)
