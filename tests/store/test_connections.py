"""The pool of connections: who gets one, who waits, and which are closed."""

import asyncio

import asyncpg
import pytest

from longhouse.store import connections
from longhouse.store.connections import PooledConnection, PostgresPool, open_pool
from longhouse.store.database import UNREACHABLE, open_database

PID = "SELECT pg_backend_pid()"


@pytest.fixture
async def pool(dsn: str) -> PostgresPool:
    return open_pool(dsn, "longhouse", 2)


async def until(pool: PostgresPool, size: int) -> None:
    async with asyncio.timeout(10):
        while pool.size != size:
            await asyncio.sleep(0.01)


async def test_who_comes_when_all_are_lent_waits_in_turn(pool: PostgresPool) -> None:
    assert (pool.size, pool.idle) == (0, 0), "none is opened before it is needed"
    first, second = pool.acquire(), pool.acquire()
    pids = {(await first.__aenter__()).get_server_pid(), (await second.__aenter__()).get_server_pid()}
    served: list[str] = []

    async def ask(name: str) -> int:
        pid = await pool.run("fetchval", PID)
        served.append(name)
        return int(pid)

    asked = [asyncio.create_task(ask(name)) for name in "abc"]
    await asyncio.sleep(0)
    asked[1].cancel()
    await asyncio.gather(asked[1], return_exceptions=True)
    assert served == []
    await first.__aexit__(None, None, None)
    assert {await asked[0], await asked[2]} <= pids
    assert served == ["a", "c"]
    await second.__aexit__(None, None, None)
    assert (pool.size, pool.idle) == (2, 2)
    pool.terminate()


async def test_another_connection_is_opened_only_if_none_comes_back_soon(
    pool: PostgresPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What begins together shares what is there: to open one takes longer than to wait."""
    monkeypatch.setattr(connections, "PATIENCE", 2.0)
    pids = await asyncio.gather(*(pool.run("fetchval", PID) for _ in range(20)))
    assert (len(set(pids)), pool.size) == (1, 1)
    monkeypatch.setattr(connections, "PATIENCE", 0.01)
    async with pool.acquire() as lent:
        assert await pool.run("fetchval", PID) != lent.get_server_pid()
        assert pool.size == 2
    pool.terminate()


async def test_who_leaves_at_the_moment_of_its_turn_passes_it_on(pool: PostgresPool) -> None:
    loans = [pool.acquire(), pool.acquire()]
    for loan in loans:
        await loan.__aenter__()
    leaving, staying = (asyncio.create_task(pool.run("fetchval", "SELECT 1")) for _ in range(2))
    await asyncio.sleep(0)
    await loans[0].__aexit__(None, None, None)
    leaving.cancel()
    async with asyncio.timeout(20):
        assert await staying == 1
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await loans[1].__aexit__(None, None, None)
    assert (pool.size, pool.idle) == (2, 2)
    pool.terminate()


async def test_who_is_woken_for_a_free_place_takes_it_and_if_it_leaves_the_next_one_does(pool: PostgresPool) -> None:
    loans = [pool.acquire(), pool.acquire()]
    lost, _ = [await loan.__aenter__() for loan in loans]
    leaving, staying = (asyncio.create_task(pool.run("fetchval", "SELECT 1")) for _ in range(2))
    await asyncio.sleep(0)
    lost.terminate()
    await loans[0].__aexit__(None, None, None)
    await asyncio.sleep(0)
    leaving.cancel()
    async with asyncio.timeout(20):
        assert await staying == 1
    await asyncio.gather(leaving, return_exceptions=True)
    await loans[1].__aexit__(None, None, None)
    pool.terminate()


async def test_a_statement_that_is_broken_off_takes_its_connection_along(pool: PostgresPool) -> None:
    """Nobody is lent a connection on which something else still runs, and Postgres is told to stop it."""
    async with pool.acquire() as watching:
        slow = asyncio.create_task(pool.run("execute", "SELECT pg_sleep(60)"))
        running = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"
        async with asyncio.timeout(10):
            while not await watching.fetchval(running):
                pass
            slow.cancel()
            while await watching.fetchval(running):
                pass
        await until(pool, 1)
        with pytest.raises(TimeoutError):
            async with pool.acquire() as late, asyncio.timeout(0.01):
                await late.execute("SELECT pg_sleep(60)")
        await until(pool, 1)
    async with pool.acquire() as connection:
        await connection.execute("BEGIN")
    await until(pool, 0)
    assert await pool.run("fetchval", "SELECT 1") == 1
    pool.terminate()


async def test_what_is_wrong_with_a_statement_is_not_wrong_with_its_connection(pool: PostgresPool) -> None:
    pid = await pool.run("fetchval", PID)
    for wrong, error in (("SELECT 1 / 0", asyncpg.DivisionByZeroError), ("SELEC", asyncpg.PostgresSyntaxError)):
        with pytest.raises(error):
            await pool.run("execute", wrong)
    with pytest.raises(asyncpg.DataError):
        await pool.run("fetchval", "SELECT $1::int", "no number")
    assert await pool.run("fetchval", PID) == pid
    pool.terminate()


async def test_connections_are_closed_that_are_old_lost_expired_or_idle(
    pool: PostgresPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = [await pool.run("fetchval", PID)]
    monkeypatch.setattr(connections, "MOST_LOANS", 3)
    pids += [await pool.run("fetchval", PID) for _ in range(2)]
    await until(pool, 0)
    assert len(set(pids)) == 1
    monkeypatch.undo()
    pids.append(await pool.run("fetchval", PID))
    pool.expire()
    await until(pool, 0)
    async with pool.acquire() as lent:
        pids.append(lent.get_server_pid())
        pool.expire()
    await until(pool, 0)
    async with pool.acquire() as one, pool.acquire() as other:
        pids.append(one.get_server_pid())
        await other.execute("SELECT pg_terminate_backend($1)", one.get_server_pid())
        with pytest.raises(UNREACHABLE):
            await one.execute("SELECT 1")
    await until(pool, 1)
    assert len(set(pids)) == 4
    pool.terminate()


async def test_what_nobody_needs_is_closed_after_a_while(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_FOR", 0.3)
    pool = open_pool(dsn, "longhouse", 2)
    async with pool.acquire() as first, pool.acquire():
        kept = first.get_server_pid()
    async with asyncio.timeout(20):
        while pool.size == 2:
            assert await pool.run("fetchval", PID) == kept, "the one that came back last"
            await asyncio.sleep(0.01)
    await until(pool, 0)
    pool.terminate()


async def test_a_pool_that_is_closed_gives_nothing_and_keeps_nobody_waiting(pool: PostgresPool, dsn: str) -> None:
    async with pool.acquire() as lent, pool.acquire():
        waiting = asyncio.create_task(pool.run("execute", "SELECT 1"))
        await asyncio.sleep(0)
        pool.terminate()
        with pytest.raises(asyncpg.InterfaceError):
            await waiting
        assert lent.is_closed()
    assert (pool.size, pool.idle, pool.is_closed) == (0, 0, True)
    with pytest.raises(asyncpg.InterfaceError):
        await pool.run("execute", "SELECT 1")

    async def slowly() -> PooledConnection:
        connection = await connections.connect(dsn)
        later.terminate()
        opened.append(connection)
        return connection

    opened: list[PooledConnection] = []
    later = PostgresPool(slowly, 1)
    with pytest.raises(asyncpg.InterfaceError):
        await later.run("execute", "SELECT 1")
    assert opened[0].is_closed()


async def test_who_could_not_connect_leaves_the_place_to_the_next(dsn: str) -> None:
    tried: list[int] = []

    async def connect() -> PooledConnection:
        tried.append(1)
        await asyncio.sleep(0)
        if len(tried) == 1:
            raise ConnectionRefusedError
        return await connections.connect(dsn)

    pool = PostgresPool(connect, 1)
    first, second = (asyncio.create_task(pool.run("fetchval", "SELECT 1")) for _ in range(2))
    with pytest.raises(ConnectionRefusedError):
        await first
    async with asyncio.timeout(10):
        assert await second == 1
    pool.terminate()


async def test_the_connection_that_looked_for_the_schema_is_the_first_of_the_pool(dsn: str) -> None:
    """A house opens one connection less; where the pool has room for one alone, it has one."""
    async with open_database(dsn) as db:
        assert (db.pool.size, db.pool.idle) == (2, 2)
        told = [await db.value("SHOW search_path"), await db.value("SHOW idle_in_transaction_session_timeout")]
        async with db.pool.acquire():
            told += [await db.value("SHOW search_path"), await db.value("SHOW idle_in_transaction_session_timeout")]
        assert told == [db.schema, "30s"] * 2, "both are set up alike"
    async with open_database(dsn, pool_size=1) as db:
        assert (db.pool.size, db.pool.idle) == (1, 1)
