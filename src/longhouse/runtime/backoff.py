"""Sessions that failed in a way that may pass, or have to wait for others: when each of them may be tried again."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

FIRST: Final = 0.5
LONGEST: Final = 30.0
FORGOTTEN: Final = 600.0
"""Seconds after the end of its pause in which a session was not tried here any more: somebody else has it."""


@dataclass(frozen=True, slots=True)
class _Delay:
    since: float
    """When the first of these pauses began."""
    length: float
    until: float


class Backoff:
    """Each pause of a session is twice as long as the one before, up to half a minute.

    Trouble and waiting for others are counted apart: who waits is in no trouble, and trouble makes no wait longer.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._troubles: dict[str, _Delay] = {}
        self._waits: dict[str, _Delay] = {}

    def put_off(self, session_id: str) -> float:
        """For how many seconds the session is left alone now, since it is in trouble."""
        return self._lengthen(self._troubles, session_id)

    def postpone(self, session_id: str) -> float:
        """The same, since others are to go first. Of a trouble that it was in, this time is no part."""
        length = self._lengthen(self._waits, session_id)
        if trouble := self._troubles.get(session_id):
            self._troubles[session_id] = replace(trouble, since=trouble.since + length)
        return length

    def leave_alone(self, session_id: str) -> None:
        """For as long as we live."""
        self._troubles[session_id] = _Delay(self._now(), math.inf, math.inf)

    def over(self, session_id: str) -> None:
        """The session has moved: its next trouble is a new one."""
        self._troubles.pop(session_id, None)
        self._waits.pop(session_id, None)

    def troubled_for(self, session_id: str) -> float:
        trouble = self._troubles.get(session_id)
        return max(0.0, self._now() - trouble.since) if trouble else 0.0

    def rests(self, session_id: str) -> bool:
        now, pauses = self._now(), (self._troubles.get(session_id), self._waits.get(session_id))
        return any(pause is not None and now < pause.until for pause in pauses)

    def resting(self) -> list[str]:
        """The sessions that are to be left alone now."""
        now = self._now()
        self._troubles, self._waits = _known(self._troubles, now), _known(self._waits, now)
        found = {key for pauses in (self._troubles, self._waits) for key, pause in pauses.items() if now < pause.until}
        return list(found)

    def _lengthen(self, pauses: dict[str, _Delay], session_id: str) -> float:
        now, before = self._now(), pauses.get(session_id)
        length = min(2 * before.length, LONGEST) if before else FIRST
        pauses[session_id] = _Delay(before.since if before else now, length, now + length)
        return length


def _known(pauses: dict[str, _Delay], now: float) -> dict[str, _Delay]:
    return {key: pause for key, pause in pauses.items() if now < pause.until + FORGOTTEN}
