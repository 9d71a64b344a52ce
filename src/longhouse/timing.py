"""When schedules fire: which moments are due, and which of them are missed."""

from datetime import datetime, timedelta
from itertools import takewhile
from typing import Final, Literal

import msgspec

from longhouse import cron

Missed = Literal["skip", "once", "all"]
"""What becomes of moments at which nobody was there to fire."""

LATE_AFTER: Final = timedelta(minutes=1)
"""A firing that is later counts as missed."""
MOST_CAUGHT_UP: Final = 10
"""Missed firings that are caught up at once, the newest."""
MOST_COUNTED: Final = 1_000
"""Missed moments that are counted."""


class Timing(msgspec.Struct, frozen=True):
    """By a cron expression, or once at a moment."""

    cron: str | None
    at: datetime | None
    time_zone: str

    def next(self, now: datetime) -> datetime | None:
        """The next moment; None: there is none."""
        if self.at is not None:
            return self.at if self.at > now - LATE_AFTER else None
        return cron.parse(self.cron or "").next(cron.zone_of(self.time_zone), now)

    def until(self, first: datetime, now: datetime) -> list[datetime]:
        """The moments from the first one that was due until now: the newest of them, if they are very many."""
        if self.at is not None:
            return [first]
        expression, zone = cron.parse(self.cron or ""), cron.zone_of(self.time_zone)
        span, found = timedelta(hours=1), list[datetime]()
        # From the end, with ever longer spans: a house may have been away for a year.
        while len(found) < MOST_COUNTED:
            since = max(first, now - span)
            before = since - timedelta(microseconds=1)
            found = list(takewhile(lambda one: one <= now, expression.moments(zone, before)))
            if since == first:
                break
            span *= 2
        return found[-MOST_COUNTED:] or [first]


class Due(msgspec.Struct, frozen=True):
    """What is to be done about the moments that have passed."""

    fires: tuple[datetime, ...]
    missed: tuple[datetime, ...]
    next_at: datetime | None


def due(timing: Timing, first: datetime, now: datetime, policy: Missed) -> Due:
    """`first`: the moment at which it was to fire next, and which has passed."""
    moments = timing.until(first, now)
    match policy:
        case "all":
            fires = moments[-MOST_CAUGHT_UP:]
        case "once":
            fires = moments[-1:]
        case "skip":
            fires = [one for one in moments[-1:] if now - one <= LATE_AFTER]
    missed = moments[: len(moments) - len(fires)]
    return Due(tuple(fires), tuple(missed), timing.next(now) if timing.at is None else None)
