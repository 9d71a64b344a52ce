"""A worker around the engine: what becomes of runs that it cannot end."""

import asyncio

import pytest
import structlog
from engine_fixture import Gate, Room, under_way, until_waiting

from longhouse.journal import events
from longhouse.journal.session import State
from longhouse.models.scripted import call
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.workers import dead_workers
from longhouse.runtime.workers.heartbeat import Heartbeat
from longhouse.runtime.workers.worker import Worker, WorkerOptions
from longhouse.store import journals, leases
from longhouse.store.database import Database
from server_helpers import full

FINISH = call("finalanswertool", answer="Done.")

WAITS_LONG = """
    SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                   AND clock_timestamp() - query_start > interval '300 milliseconds')
"""


async def state_of(db: Database, session_id: str, *states: State) -> State:
    async with asyncio.timeout(20):
        while (state := (await journals.load(db, session_id)).state) not in states:
            await asyncio.sleep(0.02)
    return state


async def test_a_takeover_that_was_broken_off_before_it_was_told_leaves_the_name_of_the_one_who_was_lost(
    db: Database,
) -> None:
    """Else the one in between would be asked what came of an effect that it never had, and answer."""

    class Pay(Gate):
        """Pays."""

        effect = "once"

    room = Room(db, [call("pay"), FINISH], [Pay])
    session_id = await room.prompt()
    running = await under_way(room, session_id, Pay)
    worker = Worker(db, room.bus, room.another("w2"), WorkerOptions())
    async with db.pool.acquire() as other, worker.working():
        async with other.transaction():
            # Sessions can be claimed and read; that they were taken over cannot be written down.
            await other.execute("LOCK TABLE journal IN EXCLUSIVE MODE")
            await until_waiting(db)
            fence = await db.value("SELECT fence FROM sessions WHERE id = :id", id=session_id)
            room.bus.stop(session_id, fence + 1)
            async with asyncio.timeout(10):
                while await db.value("SELECT fence FROM sessions WHERE id = :id", id=session_id) == fence:
                    await asyncio.sleep(0.02)
        assert await state_of(db, session_id, State.WAITING_FOR_APPROVAL)
        [resumed] = await room.found(session_id, events.Resumed)
        assert resumed == events.Resumed(worker="w2", previous="w1")
        # Who was to blame for nothing has nothing to say.
        await room.another("w2").tool_runner.record_unbegun(session_id)
        assert await room.found(session_id, events.Decided) == []
    assert len(Pay.times) == 1
    running.cancel()
    Pay.passed.set()
    await room.until(session_id, events.Returned)


async def test_what_the_house_is_to_blame_for_puts_no_session_off_and_all_go_on_when_it_is_over(db: Database) -> None:
    sessions = 6
    room = Room(db, [FINISH] * sessions)
    ids = [await room.prompt(str(number)) for number in range(sessions)]
    with structlog.testing.capture_logs() as logs:
        async with Worker(db, room.bus, room.another("w2"), WorkerOptions()).working():
            async with full(db, "journal", "INSERT"), asyncio.timeout(30):
                # So often that each session by itself would be put off for several seconds by now.
                while await db.value("SELECT last_value FROM refusals") < 4 * sessions:
                    await asyncio.sleep(0.02)
            for session_id in ids:
                await state_of(db, session_id, State.COMPLETED)
    told = [one["event"] for one in logs]
    assert "session_retry" not in told
    assert (told.count("database_trouble"), told.count("database_reachable")) == (1, 1)


async def test_a_worker_that_leaves_begins_nothing_of_what_waits_for_its_slots(db: Database) -> None:
    class Wait(Gate):
        """Waits."""

    room = Room(db, [call("wait"), *[FINISH] * 9], [Wait])
    sessions = [await room.prompt(str(number)) for number in range(4)]
    engine = room.another("w2")
    worker = Worker(db, room.bus, engine, WorkerOptions(slots=1))

    async def let_pass() -> None:
        while not engine.stopping:
            await asyncio.sleep(0.005)
        Wait.passed.set()

    async with asyncio.timeout(20):
        async with worker.working():
            await Wait.begun.wait()  # the others stand in line: one statement has found them all
            passing = asyncio.create_task(let_pass())
        await passing
    assert (worker.busy, room.bus.on_wake) == (0, [])
    assert not worker.hint(sessions[-1])
    rows = await db.rows("SELECT fence, holder, due FROM sessions ORDER BY fence")
    assert [tuple(row) for row in rows] == [(0, None, True)] * 3 + [(1, None, True)]
    async with Worker(db, room.bus, room.another("w3"), WorkerOptions()).working():
        for session_id in sessions:
            await state_of(db, session_id, State.COMPLETED)
            assert await room.found(session_id, events.Resumed) == []


async def test_who_is_late_with_its_heartbeat_begins_nothing_and_a_beat_counts_from_when_it_was_asked(
    db: Database,
) -> None:
    worker = Worker(db, Bus(), Room(db).another("w2"), WorkerOptions())
    assert not worker.hint("s"), "others are told: no heartbeat was written yet"
    heartbeat = Heartbeat(db, "w3", lease=0.4, slots=1, on_late=lambda: None)
    beating = asyncio.create_task(heartbeat.beat())
    try:
        async with asyncio.timeout(20), db.pool.acquire() as other:
            await heartbeat.begun.wait()
            async with other.transaction():
                await other.execute("SELECT FROM workers WHERE id = 'w3' FOR UPDATE")
                await until_waiting(db)
                # Postgres has dated the beat already; its answer comes when others may have taken our sessions.
                while not await db.value(WAITS_LONG):
                    await asyncio.sleep(0.01)
                released_at = await other.fetchval("SELECT clock_timestamp()")
            while not heartbeat.is_fresh():
                await asyncio.sleep(0.001)
            assert await db.value("SELECT beat_at FROM workers WHERE id = 'w3'") > released_at
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def test_a_silent_worker_is_removed_before_its_lease_has_ended(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that another goes on within it; what was silent for less may still be back."""
    monkeypatch.setattr(dead_workers, "BACK_WITHIN", 0.0)
    heartbeat = Heartbeat(db, "w", lease=6.0, slots=1, on_late=lambda: None)
    others = dead_workers.DeadWorkers(db, "w", heartbeat, {}, lease=6.0)
    async with db.connection() as life:
        await leases.register_worker(life, "silent", node="n", pid=1, slots=1)
        for seconds, is_removed in ((4.5, False), (5.75, True)):
            await db.run("UPDATE workers SET beat_at = now() - make_interval(secs => :seconds)", seconds=seconds)
            assert await others.remove() is is_removed
    assert await leases.alive(db) == 0
