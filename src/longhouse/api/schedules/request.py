"""What schedules are made of, read and checked: when, for whom, and what is said."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from longhouse import cron
from longhouse.api import wire
from longhouse.errors import CallerError
from longhouse.store.automation import schedules
from longhouse.store.automation.schedules import Overlap, Schedule
from longhouse.timing import Missed, Timing

LONGEST_PROMPT: Final = 100_000


def _read_by(parse: Callable[[str], object]) -> AfterValidator:
    """Refuses what this cannot read, with its words."""

    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise PydanticCustomError("schedule", "{problem}", {"problem": str(error)}) from None
        return text

    return AfterValidator(check)


def _is_moment(text: str) -> str:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("moment", "It should be ISO 8601, such as 2026-12-31T09:00:00+03:00") from None
    return text


Agent = Annotated[str, Field(min_length=1, max_length=512)]
Prompt = Annotated[str, Field(min_length=1, max_length=LONGEST_PROMPT)]
CronText = Annotated[str, Field(max_length=cron.LONGEST), _read_by(cron.parse)]
Moment = Annotated[str, Field(max_length=64), AfterValidator(_is_moment)]
Zone = Annotated[str, Field(max_length=64), _read_by(cron.zone_of)]


class _Fields(wire.StrictModel):
    cron: CronText | None = Field(None, description="Five fields: minute hour day month weekday; or @daily")
    at: Moment | None = Field(None, description="Once, at this moment; without an offset, it is in the time zone")
    conversation_id: wire.Id | None = Field(None, description="Each firing is a turn in it; null: a session of its own")
    user: wire.UserName = None
    name: wire.Line = ""
    time_zone: Zone = "UTC"
    metadata: wire.Metadata = Field(default_factory=dict)
    missed: Missed = Field("once", description="What becomes of moments at which nobody was there to fire")
    overlap: Overlap = Field("queue", description="What becomes of a firing while the last one is at work")
    paused: bool = False


class NewSchedule(_Fields):
    template: Agent = Field(description="The agent, or a version of it: name@3")
    prompt: Prompt


class ChangedSchedule(_Fields):
    """What is not named stays."""

    template: Agent = "an agent"
    prompt: Prompt = "a prompt"


def columns_of(asked: NewSchedule | ChangedSchedule, now: datetime, former: Schedule | None = None) -> dict[str, Any]:
    """The columns that a request sets, with the next moment."""
    given = asked.model_dump(exclude_unset=former is not None)
    is_paused = given.pop("paused", former.is_paused if former else False)
    if "metadata" in given:
        given["metadata"] = schedules.encoded(given["metadata"])
    timing = _timing(given, former)
    next_at = _next(timing, now, former)
    if next_at is None and (former is None or given.get("cron") or given.get("at")):
        raise _never(timing)
    when = {"cron": timing.cron, "at": timing.at, "time_zone": timing.time_zone}
    return {**given, **when, "is_paused": is_paused, "next_at": None if is_paused else next_at}


def _next(timing: Timing, now: datetime, former: Schedule | None) -> datetime | None:
    if former and former.next_at and former.timing == timing and not former.stopped:
        return former.next_at  # what is due stays due, whatever else is changed meanwhile
    if former and former.next_at is None and timing.at and timing.at == former.at and timing.at <= now:
        return None  # it has fired, or it passed while the schedule was paused
    return timing.next(now)


def _timing(given: Mapping[str, Any], former: Schedule | None) -> Timing:
    """When it fires: what a request names takes the place of what was named before."""
    expression, text = given.get("cron"), given.get("at")
    if expression is not None and text is not None:
        raise CallerError("Name cron or at, not both.", param="at")
    zone = given.get("time_zone") or (former.time_zone if former else "UTC")
    if expression is not None:
        return Timing(expression, None, zone)
    if text is not None:
        return Timing(None, _moment(text, zone), zone)
    if former is None or ("cron" in given and former.cron) or ("at" in given and former.at):
        raise CallerError("Say when: cron, or at.", param="cron")
    return Timing(former.cron, former.at, zone)


def _moment(text: str, zone: str) -> datetime:
    moment = datetime.fromisoformat(text)
    try:
        if moment.tzinfo is None:
            return cron.instants(moment, cron.zone_of(zone))[0]
        return moment.astimezone(UTC)
    except OverflowError:
        raise CallerError("at should be a moment of the years 1 to 9999.", param="at") from None


def _never(timing: Timing) -> CallerError:
    if timing.at is not None:
        return CallerError("at has passed: name a moment in the future.", param="at")
    return CallerError("cron names a day that never comes.", param="cron")
