"""Sessions that failed in a way that may pass: when each of them may be tried again."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

FIRST: Final = 0.5
LONGEST: Final = 30.0
FORGOTTEN: Final = 600.0
"""Seconds after the end of its pause in which a session was not tried here any more: somebody else has it."""


@dataclass(frozen=True, slots=True)
class _Pause:
    since: float
    """When the trouble began."""
    length: float
    until: float


class Pauses:
    """Each pause of a session is twice as long as the one before, up to half a minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._pauses: dict[str, _Pause] = {}

    def put_off(self, session_id: str) -> float:
        """For how many seconds the session is left alone now."""
        now, before = self._now(), self._pauses.get(session_id)
        length = min(2 * before.length, LONGEST) if before else FIRST
        self._pauses[session_id] = _Pause(before.since if before else now, length, now + length)
        return length

    def leave_alone(self, session_id: str) -> None:
        """For as long as we live."""
        self._pauses[session_id] = _Pause(self._now(), math.inf, math.inf)

    def over(self, session_id: str) -> None:
        """The session has moved: its next trouble is a new one."""
        self._pauses.pop(session_id, None)

    def troubled_for(self, session_id: str) -> float:
        pause = self._pauses.get(session_id)
        return self._now() - pause.since if pause else 0.0

    def rests(self, session_id: str) -> bool:
        pause = self._pauses.get(session_id)
        return pause is not None and self._now() < pause.until

    def resting(self) -> list[str]:
        """The sessions that are to be left alone now."""
        now = self._now()
        self._pauses = {key: pause for key, pause in self._pauses.items() if now < pause.until + FORGOTTEN}
        return [session_id for session_id, pause in self._pauses.items() if now < pause.until]
