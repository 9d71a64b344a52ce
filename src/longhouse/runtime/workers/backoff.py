"""Exponential back-off per session: when a session with a temporary error, or one that waits for others, is retried."""

import math
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

FIRST: Final = 0.5
LONGEST: Final = 30.0
FORGOTTEN: Final = 600.0
"""Seconds after the end of a delay until it is forgotten: without a retry here, another worker has the session."""

Cause = Literal["error", "wait"]


class _Delay(msgspec.Struct, frozen=True):
    since: float
    """When the first delay of this series began."""
    length: float
    until: float


class Backoff:
    """Each delay of a session is twice as long as the one before, up to half a minute.

    Errors and waits for others are counted separately: a wait is no error, and errors do not lengthen waits.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._delays: dict[tuple[str, Cause], _Delay] = {}

    def put_off(self, session_id: str) -> float:
        """Starts the next delay after an error; returns its seconds."""
        return self._lengthen((session_id, "error"))

    def postpone(self, session_id: str) -> float:
        """Starts the next delay of a wait for others. This time does not count as part of an earlier error."""
        length = self._lengthen((session_id, "wait"))
        if error := self._delays.get((session_id, "error")):
            self._delays[session_id, "error"] = replace(error, since=error.since + length)
        return length

    def leave_alone(self, session_id: str) -> None:
        """Never retries the session in this process."""
        self._delays[session_id, "error"] = _Delay(self._now(), math.inf, math.inf)

    def over(self, session_id: str) -> None:
        """Resets the delays: the session has advanced."""
        self._delays.pop((session_id, "error"), None)
        self._delays.pop((session_id, "wait"), None)

    def troubled_for(self, session_id: str) -> float:
        error = self._delays.get((session_id, "error"))
        return max(0.0, self._now() - error.since) if error else 0.0

    def rests(self, session_id: str) -> bool:
        error, wait = self._delays.get((session_id, "error")), self._delays.get((session_id, "wait"))
        return any(delay is not None and self._now() < delay.until for delay in (error, wait))

    def resting(self) -> list[str]:
        """The sessions whose delay is not over."""
        now = self._now()
        self._delays = {key: delay for key, delay in self._delays.items() if now < delay.until + FORGOTTEN}
        return list({session_id for (session_id, _), delay in self._delays.items() if now < delay.until})

    def _lengthen(self, key: tuple[str, Cause]) -> float:
        now, before = self._now(), self._delays.get(key)
        length = min(2 * before.length, LONGEST) if before else FIRST
        self._delays[key] = _Delay(before.since if before else now, length, now + length)
        return length
