"""Who holds which session, who is alive, who is gone."""

import asyncio

import asyncpg
import msgspec
import pytest
from unsteady_connection import unsteady

from longhouse.journal import events
from longhouse.store import journals, leases
from longhouse.store.connections import connect
from longhouse.store.database import Database
from longhouse.store.leases import Lease
from postgres_proxy import lines
from server_helpers import plan_nodes


async def opened(db: Database, session_id: str = "s") -> str:
    about = events.Opened(agent="a", version=1, owner="local", conversation=session_id)
    await journals.open(db, session_id, about, events.Prompted(trace="t", content=("Hello",)), task="Hello")
    return session_id


async def claimed(db: Database, worker: str, session_id: str = "s") -> Lease:
    lease = (await leases.claim(db, session_id, worker)).lease
    assert lease is not None
    return lease


async def on_the_roster(dsn: str, worker: str) -> asyncpg.Connection:
    """The connection on which this worker lives."""
    connection = await connect(dsn)
    await leases.register_worker(connection, worker, node="n", pid=1, slots=1)
    return connection


async def suspect(db: Database, worker: str, *, lease: float = 600) -> leases.Suspect:
    [found] = [one for one in await leases.suspects(db, "me", lease) if one.worker == worker]
    return found


async def test_a_session_is_claimed_by_one_of_many(dsn: str, db: Database) -> None:
    await opened(db)
    names = [f"w{number}" for number in range(6)]
    lives = [await on_the_roster(dsn, name) for name in names]
    claims = await asyncio.gather(*(leases.claim(db, "s", name) for name in names))
    won = [claim.lease for claim in claims if claim.lease]
    assert len(won) == 1
    assert (won[0].fence, won[0].previous, won[0].head) == (1, None, 2)
    for life in lives:
        life.terminate()


async def test_a_session_at_rest_is_nobodys_and_not_runnable(db: Database) -> None:
    lease = await claimed(db, "w", await opened(db))
    assert await leases.rest(db, lease, head=2, state="COMPLETED", fingerprint="f")
    assert (await leases.claim(db, "s", "w")).lease is None
    assert await leases.runnable(db, "w", 10, running=[]) == []
    assert await db.value("SELECT seq FROM rests WHERE fingerprint = 'f'") == 2


async def test_only_at_the_head_it_knows_may_a_holder_rest(db: Database) -> None:
    lease = await claimed(db, "w", await opened(db))
    await journals.add(db, "s", [events.Prompted(trace="t2", content=("More",))], trace="t2")
    assert not await leases.rest(db, lease, head=2, state="COMPLETED", fingerprint="f")
    assert not await leases.wait_out(db, lease, head=2, seconds=0)
    assert await db.value("SELECT due AND holder = 'w' FROM sessions")
    assert await db.value("SELECT count(*) FROM rests") == 0


async def test_a_session_waits_out_trouble_without_a_holder(db: Database) -> None:
    lease = await claimed(db, "w", await opened(db))
    assert await leases.wait_out(db, lease, head=2, seconds=3600)
    assert await leases.fire(db) == ([], False, False)
    assert (await leases.claim(db, "s", "w")).lease is None
    await db.run("UPDATE sessions SET wake_at = now() - interval '1 second'")
    again = await claimed(db, "w")
    assert (again.attempts, again.previous, again.fence) == (1, None, 2)
    assert again.troubled_at is not None
    assert await leases.wait_out(db, again, head=2, seconds=-1)
    assert await leases.fire(db) == (["s"], False, False)
    assert await leases.runnable(db, "w", 10, running=[]) == [("s", "local")]
    last = await claimed(db, "w")
    assert (last.attempts, last.troubled_at) == (2, again.troubled_at)


async def test_a_session_let_go_between_steps_is_taken_up_as_if_nothing_had_been(db: Database) -> None:
    await leases.let_go(db, await claimed(db, "w", await opened(db)))
    assert (await claimed(db, "w2")).previous is None


async def test_a_session_let_go_in_mid_step_is_taken_over(dsn: str, db: Database) -> None:
    life = await on_the_roster(dsn, "w")
    lease = await claimed(db, "w", await opened(db))
    await leases.break_off(db, lease)
    await leases.break_off(db, lease)
    assert await leases.runnable(db, "w2", 10, running=[]) == [("s", "local")]
    assert (await claimed(db, "w2")).previous == "w (interrupted)"
    # One who lost it cannot let go of it.
    await leases.break_off(db, lease)
    await leases.let_go(db, lease)
    assert await db.value("SELECT holder FROM sessions") == "w2"
    life.terminate()


async def test_a_takeover_whose_reply_is_lost_is_still_a_takeover(dsn: str, db: Database) -> None:
    """Otherwise an effect that the dead worker had begun would be begun again."""
    await claimed(db, "dead", await opened(db))
    async with unsteady(dsn) as (shaky, line):
        line.lose_reply()
        lease = await claimed(shaky, "heir")
        assert line.cuts == 1
    assert (lease.previous, lease.fence) == ("heir", 3)


async def test_a_worker_finds_its_own_lost_runs_but_not_those_that_run(dsn: str, db: Database) -> None:
    life = await on_the_roster(dsn, "w")
    await claimed(db, "w", await opened(db))
    assert await leases.runnable(db, "w", 10, running=["s"]) == []
    assert await leases.runnable(db, "other", 10, running=[]) == []
    assert await leases.runnable(db, "w", 10, running=[]) == [("s", "local")]
    assert (await claimed(db, "w")).previous == "w"
    life.terminate()


async def test_a_worker_whose_connection_is_gone_is_unlocked_at_once(dsn: str, db: Database) -> None:
    life = await on_the_roster(dsn, "w")
    alive = await suspect(db, "w")
    assert (alive.unlocked, alive.silent, alive.restarted) == (False, False, False)
    life.terminate()
    async with asyncio.timeout(10):
        while not (gone := await suspect(db, "w")).unlocked:
            await asyncio.sleep(0.01)
    assert not gone.silent
    lease = await claimed(db, "w", await opened(db))
    assert (await leases.claim(db, "s", "heir")).lease is None
    await leases.delete_dead_worker(db, gone)
    heir = await claimed(db, "heir")
    assert (heir.previous, heir.fence) == ("w", lease.fence + 1)


async def test_a_worker_takes_its_lock_from_a_connection_of_its_own_that_nobody_hears(dsn: str, db: Database) -> None:
    async with lines(dsn) as (address, between):
        before = await on_the_roster(address, "w")
        between.fall_silent()
        # Postgres has not noticed anything: for it, the old connection holds the lock.
        again = await asyncio.wait_for(on_the_roster(address, "w"), 10)
        assert not (await suspect(db, "w")).unlocked
        assert await leases.beat(again, "w")
        before.terminate()
        again.terminate()


async def test_a_worker_that_came_while_another_waited_for_the_row_is_not_taken_for_dead(
    dsn: str, db: Database
) -> None:
    await opened(db)
    await db.run("UPDATE sessions SET holder = 'dead', fence = 1")
    claiming = await connect(dsn)
    begun = claiming.transaction()
    await begun.start()
    await claiming.execute("UPDATE sessions SET holder = 'new', fence = 2")
    late = asyncio.create_task(leases.claim(db, "s", "w"))
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(10):
        while not await db.value(waits):
            await asyncio.sleep(0.01)
    life = await on_the_roster(dsn, "new")
    await begun.commit()
    assert (await late).lease is None
    # A holder that was dead before is taken over, whoever writes to the row meanwhile.
    await leases.delete_dead_worker(db, await suspect(db, "new"))
    assert (await claimed(db, "w")).previous == "new"
    life.terminate()
    claiming.terminate()


async def test_a_worker_that_beats_again_is_not_buried(dsn: str, db: Database) -> None:
    life = await on_the_roster(dsn, "w")
    seen = await suspect(db, "w")
    assert await leases.beat(life, "w")
    await leases.delete_dead_worker(db, seen)
    assert await leases.alive(db) == 1
    await leases.delete_dead_worker(db, await suspect(db, "w"))
    assert await leases.alive(db) == 0
    assert not await leases.beat(life, "w")
    life.terminate()


async def test_silence_for_a_whole_lease_is_death_whatever_the_lock_says(dsn: str, db: Database) -> None:
    life = await on_the_roster(dsn, "w")
    await db.run("UPDATE workers SET beat_at = now() - interval '7 seconds'")
    frozen = await suspect(db, "w", lease=6)
    assert (frozen.silent, frozen.unlocked) == (True, False)
    assert not (await suspect(db, "w", lease=8)).silent
    life.terminate()


async def test_after_a_restart_of_postgres_a_missing_lock_says_nothing(dsn: str, db: Database) -> None:
    life = await on_the_roster(dsn, "w")
    await db.run("UPDATE workers SET beat_at = pg_postmaster_start_time() - interval '1 second'")
    assert (await suspect(db, "w")).restarted
    life.terminate()


FILL = """
    INSERT INTO sessions (id, owner, conversation_id, side, agent, head, fence, due, state, version, trace_id, task,
                          queued_at, created_at, updated_at)
    SELECT owner || '-' || n, owner, owner || n, 'root', 'a', 2, 0, true, 'INITED', 1, 't', 'Hello',
           now() + n * interval '1 ms', now(), now()
    FROM unnest(:owners::text[]) AS owner CROSS JOIN generate_series(1, :each) AS n
"""


async def test_of_a_backlog_no_more_is_read_than_is_asked_for(db: Database) -> None:
    owners = [f"owner{nth:02}" for nth in range(40)]
    await db.run(FILL, owners=owners, each=200)
    await db.run("ANALYZE sessions")
    found = await leases.runnable(db, "w", 40, running=[])
    assert found == [(f"{owner}-1", owner) for owner in owners], "one of each, the longest due"
    values = {"worker": "w", "limit": 40, "last": "", "running": [], "running_owners": [], "declined": []}
    [explained] = await db.rows(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {leases.RUNNABLE}", **values)
    nodes = plan_nodes(msgspec.json.decode(explained[0])[0]["Plan"])
    read = [node["Actual Rows"] * node["Actual Loops"] for node in nodes if node.get("Relation Name")]
    assert max(read) <= 4 * 40, "8,000 wait"
    # Whoever is alone has all of it, and two of very different length leave nobody without work.
    await db.run("DELETE FROM sessions WHERE owner <> 'owner00'")
    assert len(await leases.runnable(db, "w", 40, running=[])) == 40
    await db.run(FILL, owners=["short"], each=1)
    assert len(await leases.runnable(db, "w", 40, running=[])) == 40


@pytest.mark.parametrize("worker", ["w", "host-1-abcdef", "ü" * 40, ""])
async def test_locks_of_workers_are_found_by_their_keys(dsn: str, db: Database, worker: str) -> None:
    life = await on_the_roster(dsn, worker)
    assert not (await suspect(db, worker)).unlocked
    life.terminate()
