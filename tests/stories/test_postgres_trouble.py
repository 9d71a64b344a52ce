"""Postgres is full, silent, or for reading only: nothing is lost, nobody is stranded, and it goes on afterwards."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import structlog
from test_takeover import eventually

from lines import lines
from longhouse.journal import events
from longhouse.models.scripted import call
from longhouse.store import journals
from longhouse.store.database import Database
from support import AGENT, Serving, content, dictated, process

# A sequence keeps what is rolled back.
FULL = """
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM nextval('refusals');
        RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
    END $$
"""


@asynccontextmanager
async def full(db: Database, table: str, on: str) -> AsyncIterator[None]:
    """There is no room for more in this table while the block runs."""
    await db.run("CREATE SEQUENCE refusals")
    await db.run(FULL)
    await db.run(f"CREATE TRIGGER full_disk BEFORE {on} ON {table} EXECUTE FUNCTION full_disk()")
    try:
        yield
    finally:
        await db.run(f"DROP TRIGGER full_disk ON {table}")


async def test_a_disk_that_was_full_for_a_while_strands_no_session(serving: Serving) -> None:
    async with dictated() as model, serving(llm_base_url=model.url) as house:
        saying = asyncio.create_task(house.say("one"))
        pen = await model.asked()
        session_id, fence = await house.db.row("SELECT id, fence FROM sessions")
        async with full(house.db, "journal", "INSERT"):
            pen.call("finalanswertool", '{"answer": "lost"}')
            pen.end()
            # It is tried again, and again in vain: the claim is written, what follows is not.
            await eventually(lambda: claimed_since(house.db, fence + 2))
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "first"}')
        pen.end()
        assert content(await asyncio.wait_for(saying, 20)) == "first"

        saying = asyncio.create_task(house.say("two", model=session_id))
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "second"}')
        pen.end()
        assert content(await asyncio.wait_for(saying, 20)) == "second"
        assert (await house.kinds(session_id)).count("Finished") == 2
        assert "Failed" not in await house.kinds(session_id)


async def claimed_since(db: Database, fence: int) -> bool:
    return bool(await db.value("SELECT fence >= $1 FROM sessions", fence))


async def refused(db: Database, times: int) -> bool:
    return bool(await db.value("SELECT is_called AND last_value >= $1 FROM refusals", times))


async def test_a_worker_outlives_a_postgres_that_refuses_its_sweep(serving: Serving) -> None:
    async with serving(lambda body: call("finalanswertool", answer="here")) as house:
        async with full(house.db, "sessions", "UPDATE"):
            await eventually(lambda: refused(house.db, times=3))
        assert content(await asyncio.wait_for(house.say("Are you there?"), 20)) == "here"


async def test_a_postgres_that_is_for_reading_only_for_a_while_ends_nothing(dsn: str) -> None:
    """As a standby is before its promotion."""
    name = dsn.split("/")[3].split("?", maxsplit=1)[0]
    async with (
        dictated() as model,
        process(database_url=dsn, llm_base_url=model.url, lease_seconds="2") as house,
    ):
        saying = asyncio.create_task(house.say("one"))
        await model.asked()
        admin = await asyncpg.connect(dsn.replace(f"/{name}?", "/longhouse?"))
        try:
            await admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            await admin.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
            await eventually(lambda: any("stopping all runs" in line for line in house.said))
            # Connections of this time stay as they are: whoever keeps them can never write.
            await admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        finally:
            await admin.close()
        pen = await model.asked()
        pen.call("finalanswertool", '{"answer": "done"}')
        pen.end()
        assert content(await asyncio.wait_for(saying, 20)) == "done"
        assert house.process.returncode is None


async def test_connections_that_go_silent_are_given_up(dsn: str) -> None:
    """A failover as clouds do it: on the old connections there is no answer and no reset, new ones work."""
    async with (
        lines(dsn) as (address, between),
        dictated() as model,
        Serving(address)(llm_base_url=model.url, lease_seconds=2) as house,
    ):
        thinking = asyncio.create_task(house.say("one"))
        pen = await model.asked()
        between.fall_silent()
        pen.call("finalanswertool", '{"answer": "said into the void"}')
        pen.end()
        later = asyncio.create_task(house.say("two"))
        for _ in range(2):
            pen = await model.asked()
            pen.call("finalanswertool", '{"answer": "heard"}')
            pen.end()
        answers = await asyncio.wait_for(asyncio.gather(thinking, later), 20)
        assert [content(answer) for answer in answers] == ["heard", "heard"]
        assert house.app.worker.is_alive()
        assert await house.db.value("SELECT count(*) FROM workers") == 1
        for answer in answers:
            kinds = await house.kinds(answer["model"])
            assert (kinds.count("Prompted"), kinds.count("Finished")) == (1, 1)


async def test_a_postgres_that_stands_still_for_a_while_keeps_its_connections(dsn: str) -> None:
    """New ones would be as silent; on the old ones everything that was asked is answered afterwards."""
    with structlog.testing.capture_logs() as logs:
        async with (
            lines(dsn) as (address, between),
            Serving(address)(lambda body: call("finalanswertool", answer="here"), lease_seconds=2) as house,
        ):
            pool = house.db.pool
            between.freeze()
            saying = asyncio.create_task(house.say("Are you there?"))
            await eventually(lambda: any(one["event"] == "Postgres answers nobody" for one in logs))
            between.thaw()
            assert content(await asyncio.wait_for(saying, 20)) == "here"
            await eventually(house.app.worker.is_alive)
            assert house.db.pool is pool
    assert not [one for one in logs if "made anew" in one["event"] or one["log_level"] == "error"]


async def test_a_defect_in_the_background_ends_neither_its_loop_nor_the_process(serving: Serving) -> None:
    async with serving(lambda body: call("finalanswertool", answer="here")) as house:
        with structlog.testing.capture_logs() as logs:
            house.app.worker._running["ghost"] = None  # type: ignore[assignment]  # as no sweep expects it
            house.app.pool.stopped.append(None)  # type: ignore[arg-type]
            await eventually(lambda: {"worker_sweep", "instance_roster"} <= {one.get("task") for one in logs})
            assert {one["event"] for one in logs if "task" in one} == {"background_task_failed"}
            del house.app.worker._running["ghost"]
            house.app.pool.stopped.remove(None)  # type: ignore[arg-type]
        # The sweep is what finds a session that nobody was told of; the roster writes its instance down.
        prompted = events.Prompted(trace="t", content=("Are you there?",))
        about = events.Opened(agent=AGENT, version=1, owner="local", conversation="c")
        await journals.open(house.db, "s", about, prompted, task="Are you there?")
        await house.until("s", "COMPLETED")
        await eventually(lambda: house.db.value("SELECT EXISTS (SELECT FROM agent_instances)"))


async def test_a_postgres_that_is_only_slow_keeps_its_connections(serving: Serving) -> None:
    """What takes long, such as building an index, would otherwise begin again and again."""
    async with serving(lambda body: call("finalanswertool", answer="here"), lease_seconds=2) as house:
        pool = house.db.pool
        async with house.db.connection() as slow, slow.transaction():
            await slow.execute("SELECT FROM workers FOR UPDATE")
            await eventually(lambda: beats_in_vain(house.db))
            with structlog.testing.capture_logs() as logs:
                await eventually(lambda: any("Postgres is slow" in one["event"] for one in logs))
        await eventually(house.app.worker.is_alive)
        assert house.db.pool is pool
        assert content(await asyncio.wait_for(house.say("Are you there?"), 20)) == "here"


async def beats_in_vain(db: Database) -> list[int]:
    """The processes of Postgres that wait for the row of a worker."""
    rows = await db.rows(
        """
        SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND query LIKE '%workers%beat_at = now()%'
        """
    )
    return [row["pid"] for row in rows]


async def swept(db: Database) -> bool:
    """Has the sweep come round once more?"""
    return bool(await db.value("SELECT wake_at IS NULL FROM sessions"))


async def test_a_run_is_not_stopped_for_what_became_of_the_one_before_it(dsn: str) -> None:
    """The sweep asks who holds what; until it is answered, the session has rested and been claimed again."""
    async with (
        lines(dsn) as (address, between),
        dictated() as model,
        Serving(address)(llm_base_url=model.url) as house,
    ):
        asking = between.hold(b"SELECT id, fence FROM sessions")
        first = asyncio.create_task(house.say("one"))
        pen = await model.asked()
        await asyncio.wait_for(asking.came.wait(), 20)
        pen.call("finalanswertool", '{"answer": "1"}')
        pen.end()
        session_id = (await asyncio.wait_for(first, 20))["model"]
        second = asyncio.create_task(house.say("two", model=session_id))
        pen = await model.asked()
        await house.db.run("UPDATE sessions SET wake_at = now()")
        asking.may_pass.set()
        await eventually(lambda: swept(house.db))
        pen.call("finalanswertool", '{"answer": "2"}')
        pen.end()
        assert content(await asyncio.wait_for(second, 20)) == "2"
        assert "Resumed" not in await house.kinds(session_id)
