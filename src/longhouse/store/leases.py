"""Leases on sessions and the table of live workers. A holder that is not in the table `workers` is dead."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import asyncpg
import msgspec
from msgspec.structs import replace

import longhouse
from longhouse.errors import Deposed
from longhouse.journal.events import INTERRUPTED
from longhouse.journal.messages import clean
from longhouse.store.automation import schedules
from longhouse.store.database import Database, Transaction, advisory_key
from longhouse.store.limits import budgets, places
from longhouse.store.lists.pages import Position, page


class Lease(msgspec.Struct, frozen=True):
    """The right to advance one session; it is lost when another claim or a cancel raises the session's fence."""

    session_id: str
    fence: int
    head: int
    previous: str | None
    """The holder that did not release the session: a dead worker, or a lost run of this worker; None if released."""
    attempts: int
    troubled_at: datetime | None
    owner: str = ""
    spent: str | None = None
    """The budget that the session's key has used up."""
    trial: int | None = None
    """What the previous run did when it was lost: 1 for what may take a worker down, -1 for merely waiting; None: that
    was not written down."""
    limits: tuple[str, ...] = ()
    """Those under which it runs."""


class Claimant(msgspec.Struct, frozen=True):
    """Who claims sessions."""

    worker: str
    per_key: int | None = None
    """How many sessions of a key run at once, if the key has no such limit of its own; None: any number."""


class Claim(msgspec.Struct, frozen=True):
    """What came of a claim."""

    lease: Lease | None
    woken: tuple[str, ...] = ()
    """Other sessions that got the place which they had waited for."""


# A statement that waited for the row sees its new holder, but not workers that registered since: they would pass
# for dead. So a holder counts as dead only if it held the session when it began.
_FREE: Final = """
    (old.holder IS NULL OR old.holder = :worker OR old.holder = (SELECT holder FROM sessions WHERE id = :session)
     AND NOT EXISTS (SELECT FROM workers w WHERE w.id = old.holder))
"""
# What is claimed has not begun: it waits, until it says otherwise.
_CLAIMED: Final = """
    fence = s.fence + 1, tried = -s.fence - 1, holder = :worker, due = true, wake_at = NULL, waits_for = NULL,
    queued_at = CASE WHEN s.due THEN s.queued_at ELSE now() END
"""
_LEASE: Final = f"""
    s.id, s.fence, s.head, old.holder AS previous, s.attempts, s.troubled_at, s.owner,
    {budgets.spent_of("s.key_id")} AS spent,
    CASE abs(old.tried) WHEN s.fence - 1 THEN sign(old.tried)::integer END AS trial
"""
CLAIM_ANYWAY: Final = f"""
    UPDATE sessions s SET {_CLAIMED}
    FROM (SELECT id, holder, tried FROM sessions WHERE id = :session FOR UPDATE) old
    WHERE s.id = old.id AND (s.due OR s.wake_at <= now()) AND {_FREE}
    RETURNING {_LEASE}
"""
# A session under a limit is only found: it is claimed under the lock of the limit.
CLAIM: Final = f"""
WITH old AS (
    SELECT s.id, s.holder, s.tried, {places.OF_TEMPLATE.format(agent="s.agent")} IS NOT NULL
           OR s.key_id IS NOT NULL AND {places.OF_KEY.format(key="s.key_id")} IS NOT NULL AS is_limited
    FROM sessions s WHERE s.id = :session FOR UPDATE
), moved AS (
    UPDATE sessions s SET {_CLAIMED}
    FROM old
    WHERE s.id = old.id AND NOT old.is_limited AND (s.due OR s.wake_at <= now()) AND {_FREE}
    RETURNING {_LEASE}
)
SELECT m.*, o.is_limited FROM old o LEFT JOIN moved m ON true
"""

HOUSE: Final = """
    SELECT md5(system_identifier || '/' || current_database() || '/' || current_schema()) AS house
    FROM pg_control_system()
"""

# The holder may report that there is nothing to do only at the head that it has folded.
REST: Final = """
WITH moved AS (
    UPDATE sessions SET holder = NULL, due = false, state = :state, wake_at = :wake_at
    WHERE id = :session AND fence = :fence AND head = :head RETURNING id, head
), rested AS (
    INSERT INTO rests (fingerprint, session_id, seq)
    SELECT :fingerprint, moved.id, moved.head FROM moved WHERE :fingerprint::text IS NOT NULL ON CONFLICT DO NOTHING
)
SELECT true FROM moved
"""

WAIT_OUT: Final = """
    UPDATE sessions SET holder = NULL, due = false, attempts = COALESCE(:attempts, attempts) + 1,
                        troubled_at = COALESCE(:troubled_at, troubled_at, now()),
                        wake_at = now() + make_interval(secs => :seconds)
    WHERE id = :session AND fence = :fence AND head = :head RETURNING true
"""

RELEASE: Final = """
    UPDATE sessions SET holder = :holder, due = true, tried = :trial::integer * fence
    WHERE id = :session AND fence = :fence RETURNING true
"""

TRY: Final = "UPDATE sessions SET tried = :trial::integer * fence WHERE id = :session AND fence = :fence RETURNING true"

# The holder's name stays with a suffix that no worker has, so the next claim journals a takeover.
BREAK_OFF: Final = f"""
    UPDATE sessions SET holder = holder || '{INTERRUPTED}', due = true
    WHERE id = :session AND fence = :fence AND holder NOT LIKE '%{INTERRUPTED}'
"""

# Of each owner only its share is read, doubled since others may have fewer: a backlog of thousands costs no more. What
# that leaves out, the next search finds.
RUNNABLE: Final = places.IN_TURN.format(
    which="""s.due AND s.id <> ALL(:running) AND s.agent <> ALL(:declined)
      AND (s.holder IS NULL OR s.holder = :worker OR NOT EXISTS (SELECT FROM workers w WHERE w.id = s.holder))""",
    of_each="(SELECT 1 + 2 * :limit / GREATEST(count(*), 1) FROM owners)",
)

# Rows locked by another transaction are left for the next sweep: two sweepers never wait for each other.
FIRE: Final = f"""
WITH fired AS (
    UPDATE sessions SET due = true, wake_at = NULL, queued_at = CASE WHEN due THEN queued_at ELSE now() END
    WHERE id IN (SELECT id FROM sessions WHERE wake_at <= now() FOR UPDATE SKIP LOCKED)
    RETURNING id
)
SELECT ARRAY(SELECT id FROM fired) AS fired, EXISTS (SELECT FROM sessions WHERE waits_for IS NOT NULL) AS is_awaited,
       EXISTS (SELECT FROM schedules WHERE {schedules.IS_DUE}) AS is_scheduled
"""

ABANDONED: Final = """
    SELECT DISTINCT agent FROM sessions
    WHERE due AND holder IS NULL AND agent = ANY(:agents) AND queued_at < now() - interval '5 seconds'
    AND NOT EXISTS (
        SELECT FROM workers w WHERE beat_at > now() - interval '10 seconds'
        AND slots <= (SELECT count(*) FROM sessions s WHERE s.due AND s.holder = w.id)
    )
"""

FENCES: Final = "SELECT id, fence FROM sessions WHERE id = ANY(:sessions)"

HEADS: Final = "SELECT id, head, state FROM sessions WHERE id = ANY(:sessions)"

REGISTER_WORKER: Final = """
    INSERT INTO workers (id, lock_key, node, pid, slots, version)
    VALUES (:worker, :lock_key, :node, :pid, :slots, :version)
    ON CONFLICT (id) DO UPDATE SET beat_at = now()
"""
BEAT: Final = "UPDATE workers SET beat_at = now() WHERE id = $1 RETURNING true"
AT_WORK: Final = """
    SELECT EXISTS (
        SELECT FROM pg_stat_activity
        WHERE pid = $1 AND datname = current_database() AND application_name = 'longhouse' AND state = 'active'
    )
"""
ALIVE: Final = "SELECT count(*) FROM workers WHERE beat_at > now() - interval '10 seconds'"
RETIRE: Final = "DELETE FROM workers WHERE id = :worker"
TELL_FAILURE: Final = "UPDATE workers SET model_words = :words, model_failed_at = now() WHERE id = :worker"

_HOLDS: Final = """
    l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
    AND l.classid::bigint = ({key} >> 32) & 4294967295 AND l.objid::bigint = {key} & 4294967295
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

# Terminates the connection that holds this advisory lock.
EVICT: Final = f"SELECT pg_terminate_backend(l.pid) FROM pg_locks l WHERE {_HOLDS.format(key='$1::bigint')}"

# `unlocked`: no connection holds the worker's lock. `silent`: no heartbeat for a whole lease. `restarted`: Postgres
# started after the worker's last heartbeat, so a missing lock says nothing about the worker and only the lease counts.
SUSPECTS: Final = f"""
    SELECT w.id, w.beat_at,
           w.beat_at < now() - make_interval(secs => :lease) AS silent,
           pg_postmaster_start_time() > w.beat_at AS restarted,
           NOT EXISTS (SELECT FROM pg_locks l WHERE {_HOLDS.format(key="w.lock_key")}) AS unlocked
    FROM workers w WHERE w.id <> :worker
"""
GONE: Final = f"""
    SELECT pg_postmaster_start_time() < :since
           AND NOT EXISTS (SELECT FROM workers WHERE id = :worker)
           AND NOT EXISTS (SELECT FROM pg_locks l WHERE {_HOLDS.format(key=":key::bigint")}) AS gone
"""
DELETE_DEAD_WORKER: Final = "DELETE FROM workers WHERE id = :worker AND beat_at = :beat_at"

# A session that somebody advances is due, and the index covers due sessions. One that waits for a place is not due, and
# may still name a holder that was lost.
WORKERS: Final = """
    SELECT w.node, w.pid, w.slots, w.started_at, w.beat_at, w.beat_at > now() - interval '10 seconds',
           (SELECT count(*)::int FROM sessions s WHERE s.due AND s.holder = w.id), w.version, w.id
    FROM workers w
"""


class SweepResult(NamedTuple):
    """What a sweep found."""

    fired: list[str]
    """The sessions whose moment has come."""
    is_awaited: bool
    """Does any session wait for a place?"""
    is_scheduled: bool
    """Has the moment of a schedule come?"""


class WorkerFacts(msgspec.Struct, frozen=True):
    """What operators are told of a worker."""

    node: str
    pid: int
    slots: int
    started_at: datetime
    beat_at: datetime
    is_alive: bool
    sessions: int
    """The number of sessions that it holds now."""
    version: str
    """Of its program; empty: of an earlier release, which does not say."""


class WorkerRow(WorkerFacts, frozen=True):
    """A worker in the list of workers."""

    worker_id: str


class Suspect(msgspec.Struct, frozen=True):
    """Another worker, with the facts that tell whether it is dead."""

    worker: str
    beat_at: datetime
    silent: bool
    restarted: bool
    unlocked: bool


def lock_key(worker: str) -> int:
    return advisory_key(worker.encode(), 8)


UNKNOWN_HOLDER: Final = f"unknown{INTERRUPTED}"
"""Stands for the previous holder where it is not known which worker held the session last."""


def is_lost_by(worker: str, previous: str) -> bool:
    """Is the previous holder, which did not release the session, this worker?"""
    return previous.removesuffix(INTERRUPTED) == worker


async def claim(db: Database, session_id: str, worker: str, *, per_key: int | None = None) -> Claim:
    """Claims a session, if its limits have a place for it; `per_key`: the limit of keys that have none of their own."""
    row = await db.row(CLAIM, session=session_id, worker=worker, per_key=per_key)
    if row is None or not row["is_limited"]:
        return Claim(Lease(*row[:9]) if row and row["id"] else None)
    limited = await places.claim(db, session_id, CLAIM_ANYWAY, per_key=per_key, worker=worker)
    lease = replace(Lease(*limited.row), limits=limited.limits) if limited.row else None
    return Claim(lease, limited.let_in)


async def rest(
    db: Database, lease: Lease, *, head: int, state: str, fingerprint: str | None, wake_at: datetime | None = None
) -> bool:
    """Releases a session that has nothing to do before `wake_at`; False if its head moved or the lease is lost."""
    values = {"head": head, "state": state, "fingerprint": fingerprint, "wake_at": wake_at}
    return bool(await db.value(REST, session=lease.session_id, fence=lease.fence, **values))


async def wait_out(
    db: Database,
    lease: Lease,
    *,
    head: int,
    seconds: float,
    attempts: int | None = None,
    troubled_at: datetime | None = None,
) -> bool:
    """Releases the session for so many seconds: back-off while the provider fails.

    Each append resets the row's retry counter. `attempts` (retries before this one) and `troubled_at` (the time of the
    first failure) are given where the row has lost them.
    """
    values = {"head": head, "seconds": seconds, "attempts": attempts, "troubled_at": troubled_at}
    return bool(await db.value(WAIT_OUT, session=lease.session_id, fence=lease.fence, **values))


async def let_go(db: Database, lease: Lease) -> bool:
    """Releases a session between two steps so that another worker can claim it; False if one has already."""
    return bool(await db.value(RELEASE, session=lease.session_id, fence=lease.fence, holder=None, trial=None))


async def break_off(db: Database, lease: Lease) -> None:
    """Releases the session within a step: effects may be under way, so the next holder journals a takeover."""
    await db.run(BREAK_OFF, session=lease.session_id, fence=lease.fence)


async def put_back(db: Database, lease: Lease) -> None:
    """Undoes a claim of which no event is written: the next claim is a takeover from the previous holder."""
    await db.run(RELEASE, session=lease.session_id, fence=lease.fence, holder=lease.previous, trial=lease.trial)


async def note_trial(db: Database, lease: Lease, trial: int) -> None:
    """Writes down what the run does from now on, for whoever may take over from it."""
    if not await db.value(TRY, session=lease.session_id, fence=lease.fence, trial=trial):
        raise Deposed(f"session {lease.session_id!r} is held by another worker")


async def abandoned(db: Database, agents: Sequence[str]) -> list[str]:
    """Those of these agents whose sessions nobody claims, though every worker has room."""
    return await db.column(ABANDONED, agents=agents) if agents else []


async def runnable(
    db: Database,
    worker: str,
    limit: int,
    *,
    running: Iterable[str],
    running_owners: Iterable[str] = (),
    after: str = "",
    declined: Sequence[str] = (),
) -> list[tuple[str, str]]:
    """Sessions that `worker` may claim, with their owners: also those it holds but is not `running`, since a run may
    have been lost. First come owners with the fewest sessions in `running_owners`, those behind `after` before others.
    """
    known = {"running": list(running), "running_owners": list(running_owners), "declined": list(declined)}
    return [tuple(row) for row in await db.rows(RUNNABLE, worker=worker, limit=limit, last=after, **known)]


async def fire(db: Database) -> SweepResult:
    """Marks the sessions whose `wake_at` has passed as due."""
    [found] = await db.read(SweepResult, FIRE)
    return found


async def fences(db: Database, sessions: Sequence[str]) -> dict[str, int]:
    return dict(await db.rows(FENCES, sessions=list(sessions)))


async def is_gone(db: Database, worker: str, *, since: datetime) -> bool:
    """Is the process of this worker, which was there at `since`, known to have ended? A frozen one holds its lock."""
    return bool(await db.value(GONE, worker=worker, key=lock_key(worker), since=since))


async def house(db: Database) -> str:
    """A name of this database that no other has: several houses may share other services."""
    return str(await db.value(HOUSE))


async def holder(db: Database, session_id: str) -> str | None:
    """The worker that works on the session now."""
    found: str | None = await db.value("SELECT holder FROM sessions WHERE id = :session", session=session_id)
    return found


async def heads(db: Database, sessions: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Session -> its head and state."""
    return {row["id"]: (row["head"], row["state"]) for row in await db.rows(HEADS, sessions=list(sessions))}


async def register_worker(connection: asyncpg.Connection, worker: str, *, node: str, pid: int, slots: int) -> None:
    """Takes the worker's own advisory lock on this connection and inserts the worker into the table `workers`."""
    if not await connection.fetchval("SELECT pg_try_advisory_lock($1)", lock_key(worker)):
        # An older connection of this worker holds the lock and is dead; Postgres may not notice that for hours.
        await connection.execute(EVICT, lock_key(worker))
        await connection.execute("SELECT pg_advisory_lock($1)", lock_key(worker))
    facts = {"node": node, "pid": pid, "slots": slots, "version": longhouse.__version__}
    await Transaction(connection).run(REGISTER_WORKER, worker=worker, lock_key=lock_key(worker), **facts)


async def beat(connection: asyncpg.Connection, worker: str) -> bool:
    """Writes a heartbeat; False if another worker has declared this one dead and deleted its row."""
    return bool(await connection.fetchval(BEAT, worker))


async def is_at_work(connection: asyncpg.Connection, backend: int) -> bool:
    """Is this Postgres backend executing a statement of Longhouse?"""
    return bool(await connection.fetchval(AT_WORK, backend))


async def alive(db: Database) -> int:
    """The number of workers with a recent heartbeat."""
    return int(await db.value(ALIVE))


async def retire(db: Database, worker: str) -> None:
    await db.run(RETIRE, worker=worker)


async def retire_all(db: Database) -> None:
    """Deletes all workers: for a Postgres that was started by this process, so that no earlier worker can be alive."""
    await db.run("DELETE FROM workers")


async def suspects(db: Database, worker: str, lease: float) -> list[Suspect]:
    return await db.read(Suspect, SUSPECTS, worker=worker, lease=lease)


async def delete_dead_worker(db: Database, suspect: Suspect) -> None:
    """Deletes a dead worker's row, unless it has written a heartbeat since."""
    await db.run(DELETE_DEAD_WORKER, worker=suspect.worker, beat_at=suspect.beat_at)


async def tell_failure(db: Database, worker: str, words: str) -> None:
    """Keeps what a model endpoint said, for operators alone: users read of their turn in the journal."""
    await db.run(TELL_FAILURE, worker=worker, words=clean(words))


async def workers(db: Database, *, before: Position | None, limit: int) -> list[WorkerRow]:
    """A page of workers, the last started first."""
    return [WorkerRow(*row) for row in await page(db, WORKERS, by="w.started_at, w.id", before=before, limit=limit)]
