"""Cron expressions of five fields, and the moments that they mean in a time zone.

A local time that a change of clocks skips means the moment right after the gap; one that comes twice means the first of
the two. An expression for every hour keeps to real hours instead: it misses none and repeats none.
"""

import re
from calendar import monthrange
from collections import deque
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
LONGEST: Final = 200
"""Characters of an expression."""
YEARS: Final = 50
"""Years that are looked through: the 29th of February on one weekday comes every 28 or 40 years."""
LAST_YEAR: Final = 9_998
ZONE: Final = re.compile(r"(?!posix/|right/|localtime$|posixrules$|Factory$)[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,3}")
"""The names of the IANA database; what else lies in its folder is no zone, or differs between machines."""
_PART: Final = re.compile(r"(?P<first>\*|[a-z0-9]+)(-(?P<last>[a-z0-9]+))?(/(?P<step>[0-9]{1,4}))?")


class _Field(msgspec.Struct, frozen=True):
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()

    def values(self, text: str) -> frozenset[int]:
        """The values that the text of this field allows."""
        found: set[int] = set()
        for part in text.split(","):
            found.update(self._part(part))
        return frozenset(value % 7 if self.name == "weekday" else value for value in found)

    def _part(self, part: str) -> range:
        match = _PART.fullmatch(part)
        if match is None:
            raise ValueError(f"{self.name}: {part!r} is not a value, a range, a step, or *")
        step = int(match["step"] or 1)
        if step == 0:
            raise ValueError(f"{self.name}: the step in {part!r} is 0")
        if match["first"] == "*":
            if match["last"]:
                raise ValueError(f"{self.name}: {part!r} is not a range")
            return range(self.least, self.most + 1, step)
        first = self._number(match["first"])
        open_end = self.most if match["step"] else first
        last = self._number(match["last"]) if match["last"] else open_end
        if self.name == "weekday" and last == 0 < first:
            last = 7  # SAT-SUN
        if last < first:
            raise ValueError(f"{self.name}: {part!r} ends before it begins")
        return range(first, last + 1, step)

    def _number(self, text: str) -> int:
        if text in self.names:
            return self.names.index(text) + (1 if self.name == "month" else 0)
        value = int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else -1
        if not self.least <= value <= self.most:
            named = f", or {self.names[0].upper()} to {self.names[-1].upper()}" if self.names else ""
            raise ValueError(f"{self.name}: {text!r} is not {self.least} to {self.most}{named}")
        return value


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day", 1, 31),
    _Field("month", 1, 12, MONTHS),
    _Field("weekday", 0, 7, WEEKDAYS),
)


class Cron(msgspec.Struct, frozen=True):
    """What an expression allows. If it restricts days of the month and weekdays, one of the two is enough."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool = False

    @property
    def is_hourly(self) -> bool:
        """It fires in every hour, and so it counts real hours and not those of a clock."""
        return len(self.hours) == 24

    def has(self, wall: datetime) -> bool:
        """Does it mean this local time?"""
        return wall.minute in self.minutes and wall.hour in self.hours and self._has_day(wall.date())

    def moments(self, zone: tzinfo, after: datetime) -> Iterator[datetime]:
        """The moments after this one, in UTC and in their order, for about fifty years."""
        pending, last = deque[datetime](), after
        # The day before too: where clocks go back over midnight, some of it comes later.
        for day in self._days(after.astimezone(zone).date() - timedelta(days=1)):
            # Nothing of this day comes before that.
            [begins] = instants(datetime.combine(day, time()), zone)
            while pending and pending[0] < begins:
                if (moment := pending.popleft()) > last:
                    yield (last := moment)
            pending = deque(sorted([*pending, *self._of_day(day, zone, last)]))
        for moment in pending:
            if moment > last:
                yield (last := moment)

    def next(self, zone: tzinfo, after: datetime) -> datetime | None:
        return next(self.moments(zone, after), None)

    def _days(self, first: date) -> Iterator[date]:
        year, month = first.year, first.month
        while year <= min(first.year + YEARS, LAST_YEAR):
            if month in self.months:
                days = (date(year, month, day) for day in range(1, monthrange(year, month)[1] + 1))
                yield from (day for day in days if day >= first and self._has_day(day))
            year, month = (year + 1, 1) if month == 12 else (year, month + 1)

    def _has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        is_day, is_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return is_day or is_weekday if self.either_day else is_day and is_weekday

    def _of_day(self, day: date, zone: tzinfo, after: datetime) -> Iterator[datetime]:
        """The moments of a local day, in no order; of those that have passed, a few hours at most."""
        for hour in self.hours:
            first, last = (datetime.combine(day, time(hour, minute)) for minute in (0, 59))
            begins, ends = instants(first, zone, is_hourly=True), instants(last, zone, is_hourly=True)
            if len(begins) == len(ends) == 1 and ends[0] - begins[0] == last - first:
                if ends[0] > after:
                    yield from (begins[0] + timedelta(minutes=minute) for minute in self.minutes)
                continue
            for minute in self.minutes:  # clocks are moved in this hour
                yield from instants(first.replace(minute=minute), zone, is_hourly=self.is_hourly)


def parse(text: str) -> Cron:
    """Reads an expression; ValueError says which field is wrong."""
    words = MACROS.get(text.strip().lower(), text).lower().split()
    if len(text) > LONGEST or len(words) != len(_FIELDS):
        known = ", ".join(MACROS)
        raise ValueError(f"five fields are needed: minute hour day month weekday; or one of {known}")
    minutes, hours, days, months, weekdays = (one.values(word) for one, word in zip(_FIELDS, words, strict=True))
    either_day = not words[2].startswith("*") and not words[4].startswith("*")
    return Cron(minutes, hours, days, months, weekdays, either_day)


def zone_of(name: str) -> ZoneInfo:
    """The time zone of this name; ValueError if there is none."""
    try:
        if not ZONE.fullmatch(name) or len(name) > 64:
            raise ValueError(name)
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError("there is no such time zone; names are those of the IANA database: Europe/Oslo, UTC") from None


def instants(wall: datetime, zone: tzinfo, *, is_hourly: bool = False) -> list[datetime]:
    """The moments, in UTC, that a local time means."""
    early = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    late = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if early == late:
        return [early]
    if early < late:  # it comes twice
        return [early, late] if is_hourly else [early]
    return [] if is_hourly else [_end_of_gap(late, early, zone)]


def _end_of_gap(before: datetime, behind: datetime, zone: tzinfo) -> datetime:
    """The moment at which clocks were moved, between these two."""
    moved = behind.astimezone(zone).utcoffset()
    seconds, whole = 0, int((behind - before).total_seconds())
    while whole - seconds > 1:
        middle = (seconds + whole) // 2
        is_behind = (before + timedelta(seconds=middle)).astimezone(zone).utcoffset() == moved
        seconds, whole = (seconds, middle) if is_behind else (middle, whole)
    return before + timedelta(seconds=whole)
