"""A worker around the engine: what becomes of runs that it cannot end."""

import asyncio

from engine_fixture import Gate, Room, lost_in_thought, under_way, until_waiting

from longhouse.journal import events
from longhouse.journal.session import State
from longhouse.models.scripted import Hang, call, say
from longhouse.runtime.engine import RetryLimits
from longhouse.runtime.worker import Worker, WorkerOptions
from longhouse.store import journals
from longhouse.store.database import Database

FINISH = call("finalanswertool", answer="Done.")

# A sequence keeps what is rolled back: the first one is refused, and no other.
TROUBLE_ONCE = """
    CREATE SEQUENCE tries;
    CREATE FUNCTION trouble_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('tries') = 1 THEN
            RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
        END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER trouble_once BEFORE INSERT ON journal FOR EACH ROW
        WHEN (NEW.session_id = '{session}' AND NEW.kind = 'Resumed') EXECUTE FUNCTION trouble_once()
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


async def test_a_session_that_had_to_wait_for_others_is_not_in_trouble_for_that_long(db: Database) -> None:
    lost, tried = [say("", fault=Hang(seconds=60))] * 4, say("", fault=Hang(seconds=1.2))
    room = Room(db, [*lost, tried, *[FINISH] * 2])
    sessions = {task: await room.prompt(task) for task in ("one", "other")}
    for worker in ("w1", "w2"):
        for session_id in sessions.values():
            await lost_in_thought(room, session_id, worker, breaks_off=False)
    engine = room.another("w3", retry_limits=RetryLimits(attended=1.0, unattended=1.0))
    async with Worker(db, room.bus, engine, WorkerOptions()).working():
        async with asyncio.timeout(10):
            while len(room.model.bodies) == len(lost):
                await asyncio.sleep(0.005)
        # One of them is tried now, and does not get on; the other has to wait, and then meets trouble of its own.
        [waits] = [one for task, one in sessions.items() if task not in str(room.model.bodies[-1].messages[-1])]
        await db.run(TROUBLE_ONCE.format(session=waits))
        assert await state_of(db, waits, State.COMPLETED, State.FAILED) is State.COMPLETED
        assert await db.value("SELECT last_value FROM tries") == 2, "it was in trouble, and tried again"
