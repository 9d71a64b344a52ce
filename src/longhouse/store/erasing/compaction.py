"""Takes the bytes of deleted rows out of the files of Postgres: tables and indexes are written anew, samples of the
planner are taken anew, and the write-ahead log that still tells of them is overwritten.

A vacuum alone frees the space and leaves the bytes in it until something else is written there.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

import asyncpg
import msgspec

from longhouse.store.connections import quoted
from longhouse.store.database import Database

TABLES: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = current_schema() AND c.relkind = 'r' ORDER BY pg_total_relation_size(c.oid), c.relname
"""
STATISTICS: Final = "pg_catalog.pg_statistic"
# Of an empty table the planner keeps the samples of before.
SAMPLES_LEFT: Final = """
    DELETE FROM pg_catalog.pg_statistic s USING pg_class c
    WHERE c.oid = s.starelid AND c.relnamespace = current_schema()::regnamespace AND c.reltuples = 0
"""
IS_SUPERUSER: Final = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"
# Segments that were recycled for later hold what they held before.
SEGMENTS_AHEAD: Final = """
    SELECT count(*) FROM pg_ls_waldir()
    WHERE name ~ '^[0-9A-F]{24}$' AND name > pg_walfile_name(pg_current_wal_insert_lsn())
"""
# A switch fills the rest of a segment with zeros; without a record in between it does nothing.
RECORD: Final = "SELECT pg_logical_emit_message(false, 'longhouse', 'x')"
SWITCH: Final = "SELECT pg_switch_wal()"

LOCK_WITHIN: Final = "2s"
"""Whoever waits for a table lets others wait behind it: it waits no longer, and tries again."""
TRIES: Final = 30
PAUSE: Final = 1.0

Progress = Callable[[str, int, int], None]


class Compacted(msgspec.Struct):
    tables: int = 0
    left: list[str] = msgspec.field(default_factory=list)
    """Sentences about what could not be done, and by whom it can."""


async def compact(db: Database, progress: Progress = lambda table, nth, of: None, *, tries: int = TRIES) -> Compacted:
    """Writes all tables anew, one after another; who needs a table waits while it is written."""
    done = Compacted()
    async with db.connection() as connection:
        await connection.execute(f"SET lock_timeout = '{LOCK_WITHIN}'; SET statement_timeout = 0")
        tables = [quoted(row["relname"]) for row in await connection.fetch(TABLES)]
        for nth, table in enumerate(tables):
            progress(table.strip('"'), nth, len(tables))
            problem = await _write_anew(connection, table, tries)
            done.left += [problem] if problem else []
            done.tables += not problem
        done.left += await _forget_samples(connection, tries)
        done.left += await _forget_log(connection)
    return done


async def _write_anew(connection: asyncpg.Connection, table: str, tries: int) -> str:
    """Writes a table and its indexes anew, and has it sampled; why it could not, or nothing."""
    problem, heard = "", list[Any]()

    def hear(_: Any, message: Any) -> None:
        heard.append(message)

    connection.add_log_listener(hear)
    try:
        for nth in range(tries):
            await asyncio.sleep(PAUSE if nth else 0)
            heard.clear()
            try:
                await connection.execute(f"VACUUM (FULL, ANALYZE, VERBOSE) {table}")
            except asyncpg.LockNotAvailableError:
                problem = f"{table} was in use all the time: compact again when less goes on."
                continue
            await asyncio.sleep(0)  # asyncpg tells what it heard in the next round of the loop
            if any(one.severity_en == "WARNING" for one in heard):
                return f"{table} does not belong to this account: its owner runs VACUUM (FULL, ANALYZE) on it."
            if not any(_dead_rows(one) for one in heard):
                return ""
            problem = f"{table} holds deleted rows that an open transaction may still read: end it and compact again."
    finally:
        connection.remove_log_listener(hear)
    return problem


def _dead_rows(message: Any) -> int:
    """The rows that could not be left out, with which the details of one message begin."""
    found = re.match(r"\d+", message.detail or "")
    return int(found[0]) if found else 0


async def _forget_samples(connection: asyncpg.Connection, tries: int) -> list[str]:
    """The planner keeps samples of columns, which are words of people too."""
    left = []
    if await connection.fetchval(IS_SUPERUSER):
        await connection.execute(SAMPLES_LEFT)
    else:
        left.append(
            "The planner's samples of tables that are empty now may hold values of deleted rows: a superuser deletes"
            " them from pg_statistic."
        )
    problem = await _write_anew(connection, STATISTICS, tries)
    return [*left, problem] if problem else left


async def _forget_log(connection: asyncpg.Connection) -> list[str]:
    """Ends the present segment of the log, drops those before, and writes over those that wait to be used again."""
    try:
        await _switch(connection, 1)
        await connection.execute("CHECKPOINT")
        await _switch(connection, int(await connection.fetchval(SEGMENTS_AHEAD)) + 1)
        await connection.execute("CHECKPOINT")
    except asyncpg.InsufficientPrivilegeError:
        return [
            "The write-ahead log still tells of deleted rows: a superuser runs CHECKPOINT, pg_switch_wal() and"
            " CHECKPOINT, or it is overwritten in time."
        ]
    return []


async def _switch(connection: asyncpg.Connection, times: int) -> None:
    for _ in range(times):
        await connection.execute(RECORD)
        await connection.execute(SWITCH)
