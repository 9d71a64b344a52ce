"""Schedule routes: create, list, read, change, pause, delete, fire now, and what became of past firings."""

import uuid
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Request

from longhouse.api import auth, pagination, repeating, wire
from longhouse.api.caller import Caller
from longhouse.api.http.json_route import of_app, refuses, strict_router
from longhouse.api.openai.request import idempotency_key
from longhouse.api.pagination import Page
from longhouse.api.repeating import IdempotencyKey
from longhouse.api.schedules.firing import Scheduler, new_run_id, no_such_schedule
from longhouse.api.schedules.request import ChangedSchedule, NewSchedule, columns_of
from longhouse.errors import CallerError
from longhouse.store.automation import schedules
from longhouse.store.automation.schedules import Schedule, SchedulePlan, ShownScheduleRun
from longhouse.store.requests import RequestIdentity

RACES: Final = 20
"""How often a change is tried again because the schedule has fired meanwhile."""
NAMESPACE: Final = uuid.UUID("0f0b3a2e-5d39-4a55-9d0a-1c8f63e0a9b4")
"""Of runs that are named after the idempotency key of their request."""

State = Literal["active", "paused", "stopped", "ended"]
Held = Annotated[Scheduler, of_app("schedules")]


class ShownSchedule(SchedulePlan, frozen=True, kw_only=True):
    object: Literal["schedule"] = "schedule"
    state: State
    stopped_reason: str | None
    """Why it fires no more: the key that it fires with was revoked, or has expired."""
    metadata: dict[str, str]
    last_run: ShownScheduleRun | None
    """null: it has not fired yet, or its session is erased."""


EXAMPLE: Final[dict[str, Any]] = {
    "template": "tool_calling_agent",
    "prompt": "What is new today?",
    "cron": "0 9 * * MON-FRI",
    "time_zone": "Europe/Oslo",
    "name": "The morning",
}

router = strict_router("Schedules", auth.user, prefix="/v1/schedules")


@router.post("", status_code=201, openapi_extra=wire.example(**EXAMPLE), responses=refuses(404, 409, 422))
async def create_schedule(
    caller: auth.User, scheduler: Held, asked: NewSchedule, idempotency_key: IdempotencyKey = None
) -> wire.Json[ShownSchedule]:
    """Creates a schedule: a prompt that comes by itself, by `cron` or once `at` a moment. It fires with the rights and
    at the expense of the key that creates it."""
    _uses(caller, asked.template)
    accepted = repeating.accepted(caller, idempotency_key, "schedule", asked.model_dump_json())
    before = partial(_made_before, caller, scheduler, accepted)
    made = await before()
    if made is None:
        write = partial(_create, caller, scheduler, asked, accepted)
        made = await repeating.made_once(scheduler.db, before, write)
    if made is None:
        raise CallerError(
            f"There are {scheduler.most} schedules already, which is the limit: delete one that is not needed.",
            status=409,
            code="too_many_schedules",
        )
    return wire.Json(await _shown_now(scheduler, made), status_code=201)


async def _create(
    caller: Caller, scheduler: Scheduler, asked: NewSchedule, accepted: RequestIdentity | None
) -> Schedule | None:
    """A new schedule; None if there are as many as there may be."""
    db, schedule_id = scheduler.db, f"sched_{uuid.uuid4().hex}"
    await scheduler.template(asked.template, caller.owner)
    columns = {**columns_of(asked, await schedules.now(db)), "key_id": caller.key or None}
    is_made = await schedules.create(db, schedule_id, caller.owner, columns, most=scheduler.most, accepted=accepted)
    return await _found(caller, scheduler, schedule_id) if is_made else None


async def _made_before(caller: Caller, scheduler: Scheduler, accepted: RequestIdentity | None) -> Schedule | None:
    """The schedule that the same request has made before, as it is now."""
    before = await repeating.accepted_before(scheduler.db, accepted)
    return await schedules.find(scheduler.db, before.session_id, caller.owner) if before else None


@router.get("")
async def list_schedules(
    caller: auth.User, scheduler: Held, asked: pagination.PagedQuery
) -> wire.Json[Page[ShownSchedule]]:
    """Your schedules, newest first; `limit` (≤ 200), `before` (the `next` of the previous page)."""
    found = await schedules.listed(scheduler.db, owner=caller.owner, before=asked.before, limit=asked.fetched)
    rows, following = asked.cut(found, pagination.by("created_at"))
    last = await schedules.last_runs(scheduler.db, [one.id for one in rows])
    return wire.Json(pagination.page([_shown(one, last.get(one.id)) for one in rows], following))


@router.get("/{schedule_id}")
async def get_schedule(caller: auth.User, scheduler: Held, schedule_id: str) -> wire.Json[ShownSchedule]:
    """A schedule, and when it fires next."""
    return wire.Json(await _shown_now(scheduler, await _found(caller, scheduler, schedule_id)))


@router.patch("/{schedule_id}", openapi_extra=wire.example(paused=False), responses=refuses(409))
async def change_schedule(
    caller: auth.User, scheduler: Held, schedule_id: str, asked: ChangedSchedule
) -> wire.Json[ShownSchedule]:
    """Changes what is named; `paused` pauses and resumes it. From then on it fires with the key that changed it, and
    one that was stopped goes on. Moments that passed while it was paused are not made up for."""
    if not asked.model_fields_set:
        raise CallerError("Say what to change.")
    for _ in range(RACES):
        former = await _found(caller, scheduler, schedule_id)
        _uses(caller, former.template)
        if "template" in asked.model_fields_set:
            _uses(caller, asked.template)
            await scheduler.template(asked.template, caller.owner)
        now = await schedules.now(scheduler.db)
        columns = {**columns_of(asked, now, former), "key_id": caller.key or None}
        if await schedules.change(scheduler.db, former, columns):
            return wire.Json(await _shown_now(scheduler, await _found(caller, scheduler, schedule_id)))
    raise CallerError("The schedule fires or changes all the time: try again.", status=409, code="conflict")


@router.delete("/{schedule_id}", status_code=204)
async def delete_schedule(caller: auth.User, scheduler: Held, schedule_id: str) -> wire.NoContent:
    """Deletes a schedule, and what is known of its runs. The sessions stay."""
    found = await _found(caller, scheduler, schedule_id)
    _uses(caller, found.template)
    if not await schedules.delete(scheduler.db, schedule_id, caller.owner):
        raise no_such_schedule()
    return wire.NoContent()


@router.post("/{schedule_id}/run", status_code=201, responses=refuses(400, 409, 429))
async def run_schedule(
    caller: auth.User, scheduler: Held, schedule_id: str, request: Request
) -> wire.Json[ShownScheduleRun]:
    """Fires a schedule now, also a paused one, with the rights and at the expense of your key; when it fires next stays
    as it is. A second request with the same Idempotency-Key gives the same run."""
    found = await _found(caller, scheduler, schedule_id)
    _uses(caller, found.template)
    key = idempotency_key(request.headers)
    run_id = f"run_{uuid.uuid5(NAMESPACE, f'{found.id}/{key}').hex}" if key else new_run_id()
    return wire.Json(await scheduler.run(caller, found, run_id), status_code=201)


@router.get("/{schedule_id}/runs")
async def list_runs(
    caller: auth.User, scheduler: Held, schedule_id: str, asked: pagination.PagedQuery
) -> wire.Json[Page[ShownScheduleRun]]:
    """What became of past firings, newest first: fired, skipped, missed or failed."""
    found = await _found(caller, scheduler, schedule_id)
    rows = await schedules.runs(scheduler.db, found.id, before=asked.before, limit=asked.fetched)
    return wire.Json(asked.page(rows, lambda one: pagination.cursor(one["fired_at"], one["id"])))


async def _found(caller: Caller, scheduler: Scheduler, schedule_id: str) -> Schedule:
    found = await schedules.find(scheduler.db, schedule_id, caller.owner)
    if found is None:
        raise no_such_schedule()
    return found


def _uses(caller: Caller, template: str) -> None:
    caller.uses(template.partition("@")[0], param="template")


async def _shown_now(scheduler: Scheduler, schedule: Schedule) -> ShownSchedule:
    return _shown(schedule, (await schedules.last_runs(scheduler.db, [schedule.id])).get(schedule.id))


def _shown(schedule: Schedule, last: ShownScheduleRun | None) -> ShownSchedule:
    plan: dict[str, Any] = {name: getattr(schedule, name) for name in SchedulePlan.__struct_fields__}
    if schedule.stopped:
        plan["next_at"] = None
    return ShownSchedule(
        **plan,
        state=_state(schedule),
        stopped_reason=schedule.stopped,
        metadata=msgspec.json.decode(schedule.metadata),
        last_run=last,
    )


def _state(schedule: Schedule) -> State:
    if schedule.stopped:
        return "stopped"
    if schedule.is_paused:
        return "paused"
    return "active" if schedule.next_at else "ended"
