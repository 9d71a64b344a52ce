"""Cron expressions: the moments that they mean are those that somebody finds who looks at every minute of a clock."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from longhouse import cron, timing
from longhouse.timing import Timing

MINUTE = timedelta(minutes=1)
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu",
         "Pacific/Apia", "Africa/Casablanca", "Pacific/Kiritimati"]  # fmt: skip
CHANGES = [
    datetime(2026, 3, 29, 1, tzinfo=UTC),  # Berlin, an hour forward
    datetime(2026, 10, 25, 1, tzinfo=UTC),  # and back
    datetime(2026, 3, 8, 7, tzinfo=UTC),  # New York
    datetime(2026, 11, 1, 6, tzinfo=UTC),
    datetime(2010, 11, 7, 2, 31, tzinfo=UTC),  # St. John's, at one minute past midnight: the day before comes again
    datetime(2026, 4, 4, 15, tzinfo=UTC),  # Lord Howe, half an hour
    datetime(2026, 10, 3, 15, 30, tzinfo=UTC),
    datetime(2011, 12, 30, 10, tzinfo=UTC),  # Samoa left out a day
    datetime(2024, 2, 29, tzinfo=UTC),
]


def values(least: int, most: int) -> st.SearchStrategy[str]:
    number = st.integers(least, most)
    pair = st.tuples(number, number).map(sorted)
    one = st.one_of(
        number.map(str),
        pair.map(lambda two: f"{two[0]}-{two[1]}"),
        st.tuples(pair, st.integers(1, 20)).map(lambda two: f"{two[0][0]}-{two[0][1]}/{two[1]}"),
        st.integers(1, 20).map(lambda step: f"*/{step}"),
    )
    return st.one_of(st.just("*"), st.lists(one, min_size=1, max_size=3).map(",".join))


EXPRESSIONS = st.tuples(values(0, 59), values(0, 23), values(1, 31), values(1, 12), values(0, 7)).map(" ".join)


@cache
def allowed(text: str, least: int, most: int) -> frozenset[int]:
    """The values of a field, found one by one."""
    found = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{least}-{most}" if span == "*" else span).partition("-")
        found |= {n for n in range(int(first), int(last or first) + 1) if (n - int(first)) % int(step or 1) == 0}
    return frozenset(found)


def meaning(text: str) -> Callable[[datetime], bool]:
    """Whether an expression means a local time, as the manual of cron says."""
    minute, hour, day, month, weekday = text.split()
    either = day[0] != "*" and weekday[0] != "*"
    minutes, hours, months = allowed(minute, 0, 59), allowed(hour, 0, 23), allowed(month, 1, 12)
    days, weekdays = allowed(day, 1, 31), allowed(weekday, 0, 7)

    def means(wall: datetime) -> bool:
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        is_day = wall.day in days
        is_weekday = bool({wall.isoweekday() % 7, wall.isoweekday()} & weekdays)
        return is_day or is_weekday if either else is_day and is_weekday

    return means


def looked_for(text: str, zone: ZoneInfo, after: datetime, hours: int) -> list[datetime]:
    """The moments that a clock on the wall finds."""
    hourly, found = allowed(text.split()[1], 0, 23) == set(range(24)), []
    before, means = after.astimezone(zone).replace(tzinfo=None), meaning(text)
    for nth in range(1, hours * 60 + 1):
        moment = after + nth * MINUTE
        local = moment.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        skipped = [before + n * MINUTE for n in range(1, int((wall - before) / MINUTE))]
        is_first = local.fold == 0 or hourly
        if (is_first and means(wall)) or (not hourly and any(map(means, skipped))):
            found.append(moment)
        before = wall
    return found


@settings(max_examples=150, deadline=None, derandomize=True)
@given(EXPRESSIONS, st.sampled_from(ZONES), st.sampled_from(CHANGES), st.integers(-1500, 200))
@example("*/15 * * * *", "Europe/Berlin", CHANGES[1], -90)
@example("30 2 * * *", "Europe/Berlin", CHANGES[0], -90)
@example("0,30 0-1,23 * * *", "America/St_Johns", CHANGES[4], -200)
@example("*/7 * * * *", "America/St_Johns", CHANGES[4], -200)
@example("0 12 30 12 *", "Pacific/Apia", CHANGES[7], -1500)
def test_the_moments_are_those_that_a_clock_on_the_wall_finds(
    text: str, name: str, change: datetime, minutes: int
) -> None:
    zone, after, hours = cron.zone_of(name), change + minutes * MINUTE, 27
    end = after + timedelta(hours=hours)
    moments = list(takewhile(lambda one: one <= end, cron.parse(text).moments(zone, after)))
    assert moments == looked_for(text, zone, after, hours)
    assert cron.parse(text).next(zone, after) == next(iter(moments), cron.parse(text).next(zone, end))


def test_what_names_and_shorthands_mean() -> None:
    assert cron.parse("0 9 * jan-MAR,Dec MON-fri") == cron.parse("0 9 * 1-3,12 1-5")
    assert cron.parse("@daily") == cron.parse(" @MIDNIGHT ") == cron.parse("0 0 * * *")
    assert cron.parse("@yearly") == cron.parse("@annually") == cron.parse("0 0 1 1 *")
    assert cron.parse("@weekly") == cron.parse("0 0 * * 7") == cron.parse("0 0 * * SUN")
    assert cron.parse("@monthly") == cron.parse("0 0 1 * *")
    assert cron.parse("@hourly") == cron.parse("0 * * * *")
    assert cron.parse("0 0 * * SAT-SUN") == cron.parse("0 0 * * 6,0")
    assert cron.parse("5/20 * * * *") == cron.parse("5,25,45 * * * *")


def test_days_that_are_rare_are_found_and_those_that_never_come_are_not() -> None:
    since = datetime(2096, 3, 1, tzinfo=UTC)
    assert cron.parse("0 0 29 2 *").next(UTC, since) == datetime(2104, 2, 29, tzinfo=UTC)
    found = islice(cron.parse("0 0 29 2 */4").moments(UTC, datetime(2026, 1, 1, tzinfo=UTC)), 2)
    assert [one.year for one in found] == [2032, 2052], "a star with a step restricts the day too"
    for never in ("0 0 30 2 *", "0 0 31 4,6,9,11 *"):
        assert cron.parse(never).next(UTC, since) is None
    assert cron.parse("0 0 * * *").next(UTC, datetime(9999, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("60 * * * *", "minute"), ("* 24 * * *", "hour"), ("* * 0 * *", "day"), ("* * * 13 *", "month"),
        ("* * * * 8", "weekday"), ("* * * * XYZ", "weekday"), ("*/0 * * * *", "minute"), ("5-1 * * * *", "minute"),
        ("1,, * * * *", "minute"), ("-1 * * * *", "minute"), ("*-5 * * * *", "minute"), ("٣ * * * *", "minute"),
        ("* * L * *", "day"), ("* * * * 1#2", "weekday"), ("99999999999 * * * *", "minute"), ("1/ * * * *", "minute"),
        ("", "five fields"), ("* * * *", "five fields"), ("* * * * * *", "five fields"), ("@never", "five fields"),
        ("каждый день", "five fields"), ("0 " + "9" * 300 + " * * *", "five fields"),
    ],
)  # fmt: skip
def test_what_is_no_expression_is_refused_by_the_name_of_its_field(text: str, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        cron.parse(text)


@pytest.mark.parametrize(
    "name", ["", "Mars/Phobos", "../../etc/passwd", "/etc/passwd", "localtime", "posix/UTC", "right/UTC", "Europe",
             "Европа/Москва", "UTC\n", "A" * 100, "zone.tab", "tzdata.zi"],
)  # fmt: skip
def test_what_is_no_time_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        cron.zone_of(name)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-05-04T{text}+00:00")


HOURLY = Timing("0 * * * *", None, "UTC")


def test_missed_moments_are_skipped_caught_up_once_or_all() -> None:
    missed = timing.due(HOURLY, at("06:00"), at("08:30"), "skip")
    assert (missed.fires, missed.missed) == ((), (at("06:00"), at("07:00"), at("08:00")))
    one = timing.due(HOURLY, at("06:00"), at("08:30"), "once")
    assert (one.fires, one.missed) == ((at("08:00"),), (at("06:00"), at("07:00")))
    all_of_them = timing.due(HOURLY, at("06:00"), at("08:30"), "all")
    assert (all_of_them.fires, all_of_them.missed) == ((at("06:00"), at("07:00"), at("08:00")), ())
    assert missed.next_at == one.next_at == all_of_them.next_at == at("09:00")
    soon = timing.due(HOURLY, at("08:00"), at("08:00:59"), "skip")
    assert (soon.fires, soon.missed) == ((at("08:00"),), ()), "nobody is there to the second"


def test_a_year_of_missed_minutes_is_bounded() -> None:
    every = Timing("* * * * *", None, "Asia/Tokyo")
    found = timing.due(every, at("00:00") - timedelta(days=400), at("08:30:10"), "all")
    assert (len(found.fires), len(found.missed)) == (10, 990)
    assert (found.fires[0], found.fires[-1], found.next_at) == (at("08:21"), at("08:30"), at("08:31"))


def test_once_is_once() -> None:
    once = Timing(None, at("06:00"), "UTC")
    assert once.next(at("05:59")) == once.next(at("06:00:30")) == at("06:00")
    assert once.next(at("06:02")) is None
    late = timing.due(once, at("06:00"), at("09:00"), "once")
    assert (late.fires, late.missed, late.next_at) == ((at("06:00"),), (), None)
    assert timing.due(once, at("06:00"), at("09:00"), "skip").fires == ()
