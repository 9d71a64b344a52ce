"""`longhouse schedules …`: create, list, show, pause, resume, run and delete schedules, directly in the database."""

import uuid
from typing import Annotated, Any, Final

import pydantic
import typer

from longhouse.api.auth import Authenticator
from longhouse.api.rate_limits import KeyLimits
from longhouse.api.schedules.firing import Scheduler, new_run_id
from longhouse.api.schedules.request import ChangedSchedule, NewSchedule, columns_of
from longhouse.app.store import open_existing, with_database
from longhouse.cli.one_line import columns, minute, plain
from longhouse.cli.running import given, group, invalid_option
from longhouse.errors import SetupError
from longhouse.journal.session import LOCAL_OWNER
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.inbox import Inbox
from longhouse.settings import Settings
from longhouse.store.access import keys
from longhouse.store.automation import schedules
from longhouse.store.automation.schedules import Overlap, Schedule
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.timing import Missed

PAGE: Final = 1_000

ScheduleId = Annotated[str, typer.Argument(help="The id, as `longhouse schedules list` shows it.")]
CHANGED: Final = "the schedule has fired or changed meanwhile: try again."


async def create_schedule(
    settings: Settings,
    *,
    template: Annotated[str, typer.Option(help="The agent, or a version of it: name@3.")],
    prompt: Annotated[str, typer.Option(help="What it is told each time.")],
    cron: Annotated[str | None, typer.Option(help='Five fields, such as "0 9 * * MON-FRI", or @daily.')] = None,
    at: Annotated[str | None, typer.Option(help="Once, at this moment: 2026-12-31T09:00.")] = None,
    time_zone: Annotated[str | None, typer.Option(help="Such as Europe/Oslo; else UTC.")] = None,
    name: Annotated[str | None, typer.Option(help="What it is for.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Each firing is a turn in it; else a new session.")] = None,
    user: Annotated[str | None, typer.Option(help="For whom.")] = None,
    missed: Annotated[Missed | None, typer.Option(help="What becomes of missed firings.")] = None,
    overlap: Annotated[Overlap | None, typer.Option(help="What becomes of a firing while the last is at work.")] = None,
    key: Annotated[str | None, typer.Option(help="The id of the key that it fires with; else without limits.")] = None,
) -> None:
    """Create a schedule, for the owner of --key, or for the local one."""
    fields = given(cron=cron, at=at, time_zone=time_zone, name=name, conversation_id=conversation, user=user)
    try:
        asked = NewSchedule(template=template, prompt=prompt, **fields, **given(missed=missed, overlap=overlap))
    except pydantic.ValidationError as error:
        raise invalid_option(error, {"conversation_id": "--conversation"}) from None
    async with open_existing(settings) as db:
        owner, schedule_id = await _owner(db, key), f"sched_{uuid.uuid4().hex}"
        await _scheduler(db).template(template, owner)
        columns = {**columns_of(asked, await schedules.now(db)), "key_id": key}
        if not await schedules.create(db, schedule_id, owner, columns, most=settings.max_schedules):
            raise SetupError(f"{plain(owner)} has {settings.max_schedules} schedules already, which is the limit.")
        made = await _found(db, schedule_id)
    typer.echo(_line(made))


@with_database
async def list_schedules(
    db: Database, *, owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None
) -> None:
    """List the schedules, newest first."""
    before = None
    while page := await schedules.listed(db, owner=owner, before=before, limit=PAGE):
        for one in page:
            typer.echo(_line(one))
        before = (page[-1].created_at, page[-1].id)


@with_database
async def show_schedule(
    db: Database,
    schedule_id: ScheduleId,
    runs: Annotated[int, typer.Option(min=0, max=PAGE, help="How many past runs.")] = 20,
) -> None:
    """Show a schedule, its prompt, and what became of its last runs."""
    found = await _found(db, schedule_id)
    last = await schedules.runs(db, found.id, before=None, limit=runs)
    typer.echo(_line(found))
    typer.echo(f"  {plain(found.prompt)}")
    for run in last:
        times = f" {run['count']} times until {minute(run['last_due_at'])}" if run["count"] > 1 else ""
        parts = (run["session_id"] or "", run["outcome"] or "", plain(run["error"]["message"]) if run["error"] else "")
        typer.echo("  ".join(("", f"{minute(run['due_at'])}{times}", run["state"], *filter(None, parts))))


@with_database
async def pause_schedule(db: Database, schedule_id: ScheduleId) -> None:
    """Pause a schedule: it does not fire until it is resumed."""
    await _change(db, schedule_id, paused=True)


@with_database
async def resume_schedule(db: Database, schedule_id: ScheduleId) -> None:
    """Resume a schedule; moments that passed while it was paused are not made up for."""
    await _change(db, schedule_id, paused=False)


@with_database
async def run_schedule(db: Database, schedule_id: ScheduleId) -> None:
    """Fire a schedule now; when it fires next stays as it is."""
    found, scheduler = await _found(db, schedule_id), _scheduler(db)
    caller = await scheduler.authenticator.caller_of(found.key_id)
    if caller is None:
        raise SetupError(found.stopped or f"its key is not valid any more. {with_another_key(found.id)}")
    run = await scheduler.run(caller, found, new_run_id())
    typer.echo(run["session_id"])


@with_database
async def delete_schedule(db: Database, schedule_id: ScheduleId) -> None:
    """Delete a schedule; its sessions stay."""
    found = await _found(db, schedule_id)
    await schedules.delete(db, found.id, found.owner)
    typer.echo(f"{plain(found.id)} is deleted")


def with_another_key(schedule_id: str) -> str:
    return f"Change it by PATCH /v1/schedules/{schedule_id} with another key, or delete it."


async def _change(db: Database, schedule_id: str, **changes: Any) -> None:
    found = await _found(db, schedule_id)
    if found.stopped:
        raise SetupError(f"{found.stopped} {with_another_key(found.id)}")
    columns = columns_of(ChangedSchedule(**changes), await schedules.now(db), found)
    if not await schedules.change(db, found, columns):
        raise SetupError(CHANGED)
    typer.echo(_line(await _found(db, schedule_id)))


async def _owner(db: Database, key_id: str | None) -> str:
    if key_id is None:
        return LOCAL_OWNER
    found = await keys.with_id(db, key_id)
    if found is None or found.is_expired:
        raise SetupError(f"there is no valid key {key_id!r}; `longhouse keys list` shows all.")
    return found.key.owner


async def _found(db: Database, schedule_id: str) -> Schedule:
    found = await schedules.find(db, schedule_id, None)
    if found is None:
        raise SetupError(f"there is no schedule {schedule_id!r}; `longhouse schedules list` shows all.")
    return found


def _scheduler(db: Database) -> Scheduler:
    # Nobody follows this process: workers find what was written in the database.
    return Scheduler(Inbox(db, Bus()), Catalog(db), Authenticator(db, admin_key="", limits=KeyLimits()))


def _line(one: Schedule) -> str:
    return columns(
        one.id,
        one.stopped or ("paused" if one.is_paused else f"next {minute(one.next_at)}" if one.next_at else "ended"),
        f"{one.cron} {one.time_zone}" if one.cron else f"once {minute(one.at)}",
        one.owner,
        one.template,
        one.name,
    )


cli = group(
    {
        "list": list_schedules,
        "create": create_schedule,
        "show": show_schedule,
        "pause": pause_schedule,
        "resume": resume_schedule,
        "run": run_schedule,
        "delete": delete_schedule,
    }
)
