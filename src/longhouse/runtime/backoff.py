"""Exponential back-off per session: when a session with a temporary error, or one that waits for others, is retried."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

FIRST: Final = 0.5
LONGEST: Final = 30.0
FORGOTTEN: Final = 600.0
"""Seconds after the end of a delay until it is forgotten: without a retry here, another worker has the session."""


@dataclass(frozen=True, slots=True)
class _Delay:
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
        self._troubles: dict[str, _Delay] = {}
        self._waits: dict[str, _Delay] = {}

    def put_off(self, session_id: str) -> float:
        """Starts the next delay after an error; returns its seconds."""
        return self._lengthen(self._troubles, session_id)

    def postpone(self, session_id: str) -> float:
        """Starts the next delay of a wait for others. This time does not count as part of an earlier error."""
        length = self._lengthen(self._waits, session_id)
        if trouble := self._troubles.get(session_id):
            self._troubles[session_id] = replace(trouble, since=trouble.since + length)
        return length

    def leave_alone(self, session_id: str) -> None:
        """Never retries the session in this process."""
        self._troubles[session_id] = _Delay(self._now(), math.inf, math.inf)

    def over(self, session_id: str) -> None:
        """Resets the delays: the session has advanced."""
        self._troubles.pop(session_id, None)
        self._waits.pop(session_id, None)

    def troubled_for(self, session_id: str) -> float:
        trouble = self._troubles.get(session_id)
        return max(0.0, self._now() - trouble.since) if trouble else 0.0

    def rests(self, session_id: str) -> bool:
        now, pauses = self._now(), (self._troubles.get(session_id), self._waits.get(session_id))
        return any(pause is not None and now < pause.until for pause in pauses)

    def resting(self) -> list[str]:
        """The sessions whose delay is not over."""
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
