"""Schedules and their runs. A schedule fires in one transaction with the prompt that it sends, and whoever is first in
the fleet to lock its row fires it: nothing is fired twice, and nothing is lost when a process is killed.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypedDict, cast

import msgspec

from longhouse.store import requests
from longhouse.store.database import Database, Executor, Transaction, advisory_key
from longhouse.store.lists.pages import Position, page
from longhouse.store.requests import RequestIdentity
from longhouse.timing import Missed, Timing

Overlap = Literal["queue", "skip"]
RunState = Literal["fired", "skipped", "missed", "failed"]
Ended = Literal["COMPLETED", "FAILED", "CANCELLED"]

LOCKS: Final = 0x73636864
"""The class of these advisory locks, "schd"; one lock covers the number of schedules of an owner."""
MOST_BARE: Final = 1_000
"""Runs of a schedule without a session that are kept: the newest. Those with one go with their sessions."""
AT_ONCE: Final = 20
"""Due schedules that a process takes at once."""
TAKEN_FOR: Final = "5 seconds"

CHANGEABLE: Final = (
    "key_id", "name", "template", "prompt", "cron", "at", "time_zone", "conversation_id", "user", "metadata", "missed",
    "overlap", "is_paused", "next_at",
)  # fmt: skip
_NAMED: Final = ", ".join(f'"{name}"' for name in CHANGEABLE)
_OWN: Final = ", ".join(f's."{name}"' for name in CHANGEABLE)
COLUMNS: Final = f"s.id, s.owner, {_OWN}, s.revision, s.created_at"
# A key that was revoked stops its schedules at once, whenever they would fire next.
_DAY: Final = "to_char({at} AT TIME ZONE 'UTC', 'YYYY-MM-DD') || ' (UTC).'"
_WHY: Final = f"""
    COALESCE(s.stopped, CASE
        WHEN k.revoked_at IS NOT NULL
            THEN 'The key that it fires with was revoked on ' || {_DAY.format(at="k.revoked_at")}
        WHEN k.expires_at <= now()
            THEN 'The key that it fires with expired on ' || {_DAY.format(at="k.expires_at")}
    END) AS stopped
"""
SELECT: Final = f"SELECT {COLUMNS}, {_WHY} FROM schedules s LEFT JOIN api_keys k ON k.id = s.key_id"
FILTERS: Final = {"owner": "s.owner = :owner", "id": "s.id = :id"}

NOW: Final = "SELECT clock_timestamp()"
# A retry after a lost answer finds its own row.
CREATE: Final = f"""
    WITH made AS (
        INSERT INTO schedules (id, owner, {_NAMED}, revision, created_at, updated_at)
        SELECT :id, :owner, {", ".join(f":{name}" for name in CHANGEABLE)}, 1, now(), now()
        WHERE (SELECT count(*) FROM schedules WHERE owner = :owner AND id <> :id) < :most
        ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id RETURNING id
    ), accepted AS (
        {requests.ADD} SELECT :owner, :digest, :key, id, '', 0, now() FROM made WHERE :key::text IS NOT NULL
    )
    SELECT id FROM made
"""
CHANGE: Final = """
    UPDATE schedules SET {set}, stopped = NULL, taken_until = NULL, revision = revision + 1, updated_at = now()
    WHERE id = :id AND owner = :owner AND revision = :revision RETURNING id
"""
GONE: Final = """
    WITH gone AS (DELETE FROM schedules WHERE {these} RETURNING owner, id), asked AS (
        DELETE FROM requests r USING gone g WHERE r.owner = g.owner AND r.session_id = g.id
    )
    SELECT count(*) FROM gone
"""
"""Deletes schedules, with their runs and the requests that have made them."""
DELETE: Final = GONE.format(these="id = :id AND owner = :owner")
IS_DUE: Final = "next_at <= now() AND (taken_until IS NULL OR taken_until <= now())"
# Others leave it alone for a while: what a firing costs its key is not counted twice. Who fires is decided by CLAIM.
TAKE: Final = f"""
WITH taken AS (
    UPDATE schedules SET taken_until = now() + interval '{TAKEN_FOR}' WHERE id IN (
        SELECT id FROM schedules WHERE {IS_DUE} ORDER BY next_at LIMIT {AT_ONCE} FOR UPDATE SKIP LOCKED
    ) RETURNING *
)
{SELECT.replace(" FROM schedules s", ", now() FROM taken s")} ORDER BY s.next_at
"""
CLAIM: Final = "SELECT true FROM schedules WHERE id = :id AND revision = :revision FOR UPDATE SKIP LOCKED"
LOCK: Final = "SELECT true FROM schedules WHERE id = :id AND owner = :owner FOR UPDATE"
MOVE: Final = """
    UPDATE schedules SET next_at = :next_at, stopped = :stopped, taken_until = NULL, revision = revision + 1
    WHERE id = :id
"""
RECORD: Final = """
    INSERT INTO schedule_runs (id, schedule_id, state, due_at, last_due_at, count, at, is_manual, session_id, trace_id,
                               seq, error, code)
    VALUES (:id, :schedule_id, :state, :due_at, :last_due_at, :count, clock_timestamp(), :is_manual, :session_id,
            :trace_id, :seq, :error, :code)
"""
FORGET_OLD: Final = f"""
    DELETE FROM schedule_runs WHERE schedule_id = :schedule AND session_id IS NULL AND at < (
        SELECT at FROM schedule_runs WHERE schedule_id = :schedule AND session_id IS NULL
        ORDER BY at DESC OFFSET {MOST_BARE - 1} LIMIT 1
    )
"""
# The end of the turn that a run began is the first one behind its prompt.
RUNS: Final = """
    SELECT r.id, 'schedule.run' AS object, r.schedule_id, r.state, r.due_at, r.last_due_at, r.count, r.at AS fired_at,
           r.is_manual AS manual, r.session_id, r.trace_id, r.error AS message, r.code, (
               SELECT CASE j.kind WHEN 'Finished' THEN 'COMPLETED' WHEN 'Failed' THEN 'FAILED' ELSE 'CANCELLED' END
               FROM journal j WHERE j.session_id = r.session_id AND j.seq > r.seq AND j.trace_id = r.trace_id
                 AND j.kind IN ('Finished', 'Failed', 'Cancelled') ORDER BY j.seq LIMIT 1
           ) AS outcome
    FROM schedule_runs r
"""
RUN_FILTERS: Final = {"schedule": "r.schedule_id = :schedule", "id": "r.id = :id"}
LAST_RUNS: Final = f"""
    {RUNS} WHERE r.id IN (
        SELECT (SELECT id FROM schedule_runs WHERE schedule_id = one.id ORDER BY at DESC, id DESC LIMIT 1)
        FROM unnest(:schedules::text[]) AS one (id)
    )
"""
LAST_SESSION: Final = """
    SELECT session_id FROM schedule_runs WHERE schedule_id = :schedule AND session_id IS NOT NULL
    ORDER BY at DESC, id DESC LIMIT 1
"""


class SchedulePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is said when, and by whom: what people know of a schedule."""

    id: str
    name: str
    template: str
    prompt: str
    cron: str | None
    at: datetime | None
    time_zone: str
    conversation_id: str | None
    """None: each firing opens a session of its own."""
    user: str | None
    missed: Missed
    overlap: Overlap
    next_at: datetime | None
    created_at: datetime


class Schedule(SchedulePlan, frozen=True, kw_only=True):
    owner: str
    key_id: str | None
    """The key with whose rights it fires; None: it was made while no keys were set."""
    metadata: str
    """As JSON."""
    is_paused: bool
    revision: int
    stopped: str | None
    """Why it does not fire any more."""

    @property
    def timing(self) -> Timing:
        return Timing(self.cron, self.at, self.time_zone)


class RunError(TypedDict):
    message: str
    code: str | None


class ShownScheduleRun(TypedDict):
    """What became of a moment at which a schedule was due, or of several that were missed together."""

    id: str
    object: Literal["schedule.run"]
    schedule_id: str
    state: RunState
    due_at: datetime
    last_due_at: datetime
    count: int
    fired_at: datetime
    manual: bool
    session_id: str | None
    trace_id: str | None
    outcome: Ended | None
    """How the turn ended that it began; null: it has not, or there is none."""
    error: RunError | None


async def now(db: Executor) -> datetime:
    """The time by which schedules are made, changed and fired: that of Postgres, for those of processes may differ."""
    found: datetime = await db.value(NOW)
    return found


async def create(
    db: Database,
    schedule: str,
    owner: str,
    fields: Mapping[str, Any],
    *,
    most: int,
    accepted: RequestIdentity | None = None,
) -> bool:
    """Creates a schedule; False if the owner has as many as it may. `accepted`: the request that asks for it; Repeated:
    one with its idempotency key was accepted before."""
    values = {name: fields.get(name) for name in CHANGEABLE}
    asked = {"digest": accepted.digest if accepted else None, "key": accepted.key if accepted else None}
    lock = (LOCKS, advisory_key(owner.encode()))
    with requests.repeated():
        row = await db.alone(lock, CREATE, id=schedule, owner=owner, most=most, **values, **asked)
    return row is not None


async def change(db: Executor, schedule: Schedule, changes: Mapping[str, Any]) -> bool:
    """Changes a schedule; False if it has fired, or was changed, since it was read."""
    set_ = ", ".join(f'"{name}" = :{name}' for name in CHANGEABLE if name in changes)
    where = {"id": schedule.id, "owner": schedule.owner, "revision": schedule.revision}
    return await db.value(CHANGE.format(set=set_), **where, **changes) is not None


async def delete(db: Executor, schedule: str, owner: str) -> bool:
    """Deletes a schedule and what is known of its runs; False if there is none."""
    return "\x00" not in schedule and bool(await db.value(DELETE, id=schedule, owner=owner))


async def find(db: Database, schedule: str, owner: str | None) -> Schedule | None:
    """A schedule of this owner, or of any."""
    if "\x00" in schedule:
        return None  # Postgres refuses NUL characters even in a look-up
    rows = await page(db, SELECT, by="s.created_at, s.id", before=None, limit=1, conditions=FILTERS,
                      owner=owner, id=schedule)  # fmt: skip
    return Schedule(**rows[0]) if rows else None


async def listed(db: Database, *, owner: str | None, before: Position | None, limit: int) -> list[Schedule]:
    """A page of schedules, newest first."""
    by = "s.created_at, s.id"
    rows = await page(db, SELECT, by=by, before=before, limit=limit, conditions=FILTERS, owner=owner)
    return [Schedule(**row) for row in rows]


async def take(db: Executor) -> list[tuple[Schedule, datetime]]:
    """Schedules whose moment has come, the longest waiting first: a few, which others leave to this process now. With
    the time by the clock of Postgres."""
    taken = []
    for row in await db.rows(TAKE):
        columns = dict(row)
        at = columns.pop("now")
        taken.append((Schedule(**columns), at))
    return taken


async def claim(tx: Transaction, schedule: Schedule) -> bool:
    """Locks a schedule for its firing; False if another process fires it, or it was changed since it was read."""
    return bool(await tx.value(CLAIM, id=schedule.id, revision=schedule.revision))


async def lock(tx: Transaction, schedule: Schedule) -> bool:
    """Waits for the schedule, so that it is not deleted meanwhile; False if it was."""
    return bool(await tx.value(LOCK, id=schedule.id, owner=schedule.owner))


async def move(tx: Transaction, schedule: Schedule, next_at: datetime | None, *, stopped: str | None) -> None:
    """Says when it fires next; `stopped`: why it does not."""
    await tx.run(MOVE, id=schedule.id, next_at=next_at, stopped=stopped)


async def record(tx: Transaction, schedule: str, *, session_id: str | None, **more: Any) -> None:
    """Records a run; `more`: the rest of its columns."""
    await tx.run(RECORD, schedule_id=schedule, session_id=session_id, **more)
    if session_id is None:
        await tx.run(FORGET_OLD, schedule=schedule)


async def find_run(db: Executor, run: str) -> ShownScheduleRun | None:
    row = await db.row(f"{RUNS} WHERE {RUN_FILTERS['id']}", id=run)
    return _run(row) if row else None


async def runs(db: Database, schedule: str, *, before: Position | None, limit: int) -> list[ShownScheduleRun]:
    """A page of runs of a schedule, newest first."""
    rows = await page(db, RUNS, by="r.at, r.id", before=before, limit=limit, conditions=RUN_FILTERS, schedule=schedule)
    return [_run(row) for row in rows]


async def last_runs(db: Executor, schedules: Sequence[str]) -> dict[str, ShownScheduleRun]:
    """Schedule -> its last run, of those that have one."""
    found = [_run(row) for row in await db.rows(LAST_RUNS, schedules=list(schedules))]
    return {one["schedule_id"]: one for one in found}


def _run(row: Mapping[str, Any]) -> ShownScheduleRun:
    run = dict(row)
    error = {name: run.pop(name) for name in RunError.__annotations__}
    return cast("ShownScheduleRun", {**run, "error": error if error["message"] else None})


async def last_session(db: Executor, schedule: Schedule) -> str | None:
    """The session of the last run that has one."""
    found: str | None = await db.value(LAST_SESSION, schedule=schedule.id)
    return found


def encoded(metadata: Mapping[str, str]) -> str:
    return msgspec.json.encode(metadata).decode()
