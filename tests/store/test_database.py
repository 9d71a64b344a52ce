"""The pool outlives a Postgres that goes away, goes silent, or may only be read."""

import asyncio
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from unsteady_connection import unsteady

from longhouse.errors import SetupError
from longhouse.store import connections
from longhouse.store.connections import connect, watch
from longhouse.store.database import UNREACHABLE, Database, Transaction, open_database
from longhouse.store.limits import permits
from postgres_proxy import lines

PATHS = f"{os.environ['PATH']}:/usr/sbin"


async def test_statements_on_silent_connections_are_sent_again_on_new_ones(dsn: str) -> None:
    async with lines(dsn) as (address, between), open_database(address, pool_size=1) as db:
        assert await db.value("SELECT 1") == 1
        between.fall_silent()
        # The first waits for its answer, the others for its connection.
        cancelled, *asking = [
            asyncio.create_task(db.value("SELECT :number::int", number=number)) for number in range(5)
        ]

        async def several(tx: Transaction) -> int:
            return int(await tx.value("SELECT 6")) + int(await tx.value("SELECT 1"))

        together = asyncio.create_task(db.together(several))
        done, _ = await asyncio.wait(asking, timeout=0.2)
        assert not done
        cancelled.cancel()
        await db.renew()
        assert await asyncio.wait_for(asyncio.gather(*asking), 10) == [1, 2, 3, 4]
        assert await asyncio.wait_for(together, 10) == 7
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(cancelled, 10)


async def test_every_statement_is_answered_whenever_the_connections_are_given_up(dsn: str) -> None:
    """Also the one whose connection goes in the very moment between the preparing of a statement and its execution."""
    asked = answered = 0
    renewing = True

    async def several(tx: Transaction) -> int:
        return int(await tx.value(f"SELECT 1 AS n{asked}")) + int(await tx.value(f"SELECT 2 AS n{asked}"))

    async with open_database(dsn, pool_size=8) as db:

        async def ask(number: int) -> None:
            nonlocal asked, answered
            while renewing:
                # A statement of its own each time: what is prepared already leaves no such moment.
                asked += 1
                assert await db.value(f"SELECT :number::int AS n{asked}", number=number) == number
                assert await db.together(several) == 3
                assert await db.alone((1, number), f"SELECT :number::int AS n{asked}", number=number) == (number,)
                [row] = await db.tuned(
                    "SET LOCAL enable_seqscan = off", f"SELECT :number::int AS n{asked}", number=number
                )
                assert row == (number,)
                answered += 1

        asking = [asyncio.create_task(ask(number)) for number in range(16)]
        for _ in range(15):
            async with asyncio.timeout(20):
                enough = answered + 8
                while answered < enough:
                    await asyncio.sleep(0.005)
            time.sleep(0.02)  # noqa: ASYNC251 - answers arrive while nobody can read them, and then all at once
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await db.renew()
        renewing = False
        await asyncio.wait_for(asyncio.gather(*asking), 30)


async def test_those_who_notice_the_silence_at_once_renew_the_connections_once(dsn: str) -> None:
    async with open_database(dsn) as db:
        before = db.pool
        await asyncio.gather(*(db.renew() for _ in range(3)))
        renewed = db.pool
        assert renewed is not before
        assert await db.value("SELECT 1") == 1
    await db.renew()
    assert db.pool is renewed


async def test_a_database_that_is_closed_asks_nothing_more(dsn: str) -> None:
    async with open_database(dsn) as db:
        await db.renew()
        assert await db.value("SELECT 1") == 1
    with pytest.raises(asyncpg.InterfaceError):
        await db.value("SELECT 1")


@pytest.mark.usefixtures("new_connections")
async def test_a_write_waits_until_it_may_be_written(dsn: str, db: Database) -> None:
    name = urlsplit(dsn).path[1:]
    await db.run("CREATE TABLE notes (note text)")
    await db.run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with open_database(dsn) as standby:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await standby.pool.run("execute", "INSERT INTO notes VALUES ('refused')")
        writing = asyncio.create_task(standby.run("INSERT INTO notes VALUES ('kept')"))
        done, _ = await asyncio.wait([writing], timeout=0.2)
        assert not done
        await db.run(f"ALTER DATABASE {name} RESET default_transaction_read_only")
        await asyncio.wait_for(writing, 10)
    assert await db.value("SELECT array_agg(note) FROM notes") == ["kept"]


async def test_a_connection_over_a_network_looks_whether_the_other_end_is_there() -> None:
    """No Postgres is asked here: what matters is the socket that a connection is given."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    async with server:
        transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
        watch(transport)
        line = transport.get_extra_info("socket")
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        transport.abort()


async def test_what_arrays_are_made_of_is_asked_once_for_all_connections(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once in each database where it is not Postgres's own: another may have others under their numbers."""
    monkeypatch.setattr(connections, "_TYPES", {})
    asked: list[list[str]] = []
    for nth, database in enumerate((dsn, dsn, "another")):
        sent: list[str] = []
        connection = await connect(dsn)
        connection.dsn = database
        if nth == 0:
            await connection.execute("CREATE TYPE mood AS ENUM ('glad', 'sad')")
        connection.add_query_logger(lambda record, sent=sent: sent.append(record.query))
        assert await connection.fetchval("SELECT $1::int[] || 3", [1, 2]) == [1, 2, 3]
        assert await connection.fetchval("SELECT $1::bytea[]", [b"x"]) == [b"x"]
        assert await connection.fetchrow("SELECT $1::bytea[], $2::mood[]", [b"x"], ["glad"]) == ([b"x"], ["glad"])
        await connection.close()
        asked.append([query for query in sent if "typeinfo" in query])
    assert [len(queries) for queries in asked] == [2, 0, 1]


async def test_permits_that_are_given_back_are_given_back_once(dsn: str, db: Database) -> None:
    """Nobody hears that it happened: what is sent again would be given twice."""
    taken = await permits.take(db, "key", "sessions", size=100, seconds=3600.0, block=10)
    async with unsteady(dsn) as (shaky, line):
        line.lose_reply()
        with pytest.raises(UNREACHABLE):
            await permits.give_back(shaky, "key", "sessions", taken.permits)
        assert line.cuts == 1
    assert await db.value("SELECT left_over FROM key_permits") == 100.0


async def test_who_answers_as_no_postgres_would_is_told_of_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longhouse.store.connections.CONNECT_WITHIN", 0.2)
    words = b"SFATAL\0C08P01\0Munsupported startup parameter: tcp_keepalives_idle\0\0"
    refusal = b"E" + (len(words) + 4).to_bytes(4) + words

    over = asyncio.Queue[None]()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(refusal)
        await hang(reader, writer)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()
        await writer.wait_closed()
        over.put_nowait(None)

    for answer, told in (
        (
            refuse,
            r"set ignore_startup_parameters = tcp_keepalives_idle, .*, idle_in_transaction_session_timeout in its",
        ),
        (hang, r"Postgres cannot be reached: it did not answer within 0\.2 seconds; check LONGHOUSE_DATABASE_URL"),
    ):
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            with pytest.raises(SetupError, match=told):
                async with open_database(f"postgresql://me@{host}:{port}/longhouse?sslmode=disable"):
                    pass
            await over.get()


@pytest.mark.skipif(shutil.which("pgbouncer", path=PATHS) is None, reason="PgBouncer is not installed")
@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_pooler_that_gives_out_transactions_is_refused(dsn: str, mode: str) -> None:
    address, [socket_folder] = urlsplit(dsn), parse_qs(urlsplit(dsn).query)["host"]
    with tempfile.TemporaryDirectory(prefix="longhouse-pooler-") as folder:
        (Path(folder) / "pgbouncer.ini").write_text(
            f"[databases]\n{address.path[1:]} = host={socket_folder} user={address.username or 'postgres'}\n"
            f"[pgbouncer]\nlisten_addr =\nunix_socket_dir = {folder}\nlisten_port = 5432\nauth_type = any\n"
            f"pool_mode = {mode}\nignore_startup_parameters = tcp_keepalives_idle, tcp_keepalives_interval,"
            " tcp_keepalives_count, idle_in_transaction_session_timeout\n"
        )
        account = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        if account:
            shutil.chown(folder, account)
        program = str(shutil.which("pgbouncer", path=PATHS))
        pooler = await asyncio.create_subprocess_exec(program, "-q", f"{folder}/pgbouncer.ini", user=account)
        try:
            async with asyncio.timeout(20):
                while not (Path(folder) / ".s.PGSQL.5432").exists():
                    await asyncio.sleep(0.01)
            pooled = address._replace(query=f"host={folder}").geturl()
            if mode == "transaction":
                with pytest.raises(SetupError, match="set pool_mode = session"):
                    async with open_database(pooled):
                        pass
            else:
                async with open_database(pooled) as db:
                    assert await db.value("SELECT 1") == 1
        finally:
            pooler.kill()
            await pooler.wait()


async def test_two_that_wait_for_each_other_are_both_done(db: Database) -> None:
    """Postgres takes one of them back, for the other to go on; that one is done once more, and once in all."""
    await db.run("CREATE TABLE accounts (name text, entries int)")
    await db.run("INSERT INTO accounts VALUES ('a', 0), ('b', 0)")
    holding, begun = asyncio.Barrier(2), list[str]()

    async def enter(tx: Transaction, *names: str) -> None:
        begun.append(names[0])
        await tx.run("SET LOCAL deadlock_timeout = '10ms'")
        for nth, name in enumerate(names):
            await tx.run("UPDATE accounts SET entries = entries + 1 WHERE name = :name", name=name)
            if nth == 0 and len(begun) <= 2:
                await holding.wait()

    before = db.retries
    async with asyncio.timeout(60), asyncio.TaskGroup() as both:
        both.create_task(db.together(lambda tx: enter(tx, "a", "b")))
        both.create_task(db.together(lambda tx: enter(tx, "b", "a")))
    assert len(begun) == 3
    assert await db.column("SELECT entries FROM accounts") == [2, 2]
    assert db.retries == before, "Postgres was there all the time: no session in memory is dropped for that"
