"""Databases for tests on the shared Postgres: one that a test has left is emptied for the next, which costs less."""

import asyncio
import threading
import uuid
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit

import asyncpg

from longhouse.store.postgres import cluster
from warm_backends import Backends

TEMPLATE: Final = "longhouse_template"

# All that a test may have changed besides rows: tables and columns, functions, triggers, rights, settings, owners. A
# database in which any of it was written is not used again. `TRUNCATE` and `ANALYZE`, which the server itself does,
# write to none of these catalogs, and leave the facts of a table alone that are compared.
_CATALOGS: Final = (
    "pg_attribute", "pg_attrdef", "pg_cast", "pg_collation", "pg_constraint", "pg_default_acl", "pg_event_trigger",
    "pg_extension", "pg_index", "pg_inherits", "pg_namespace", "pg_opclass", "pg_operator", "pg_policy", "pg_proc",
    "pg_publication", "pg_rewrite", "pg_statistic_ext", "pg_trigger", "pg_ts_config", "pg_type",
)  # fmt: skip
FORM: Final = f"""
    SELECT (
        (SELECT sum(pg_stat_get_tuples_inserted(name) + pg_stat_get_tuples_updated(name)
                    + pg_stat_get_tuples_deleted(name))
         FROM unnest('{{{",".join(_CATALOGS)}}}'::regclass[]) name),
        (SELECT sum(hashtextextended(concat_ws('|', oid, relname, relnamespace, relowner, relkind, relhasrules,
                    relhastriggers, relrowsecurity, relacl, reloptions), 0))
         FROM pg_class WHERE relpersistence <> 't'),
        (SELECT (datdba, datallowconn, datconnlimit, datacl) FROM pg_database WHERE datname = current_database()),
        (SELECT count(*) FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase
         WHERE d.datname = current_database())
    )::text
"""
TABLES: Final = """
    SELECT c.oid::regclass::text, pg_relation_size(c.oid) > 0
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND c.relpersistence <> 't'
    ORDER BY 1
"""
FILLED: Final = """
    SELECT name::text, pg_stat_get_tuples_inserted(name) AS inserted, pg_table_size(name) > 65536 AS is_large
    FROM unnest($1::text[]::regclass[], $2::bigint[]) AS known (name, inserted)
    WHERE pg_stat_get_tuples_inserted(name) <> inserted
"""
REFERRING: Final = "SELECT count(*) FROM pg_constraint WHERE contype = 'f' AND conrelid = ANY($1::text[]::regclass[])"
COUNTED: Final = """
    SELECT count(setval(seqrelid, seqstart, false)) FROM pg_sequence WHERE pg_sequence_last_value(seqrelid) IS NOT NULL
"""
ALONE: Final = """
    SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
          AND pid <> ALL($1::int[])
"""


@dataclass
class Kept:
    """A database that is used again, and how it was when it was made."""

    name: str
    connection: asyncpg.Connection
    form: str
    empty: dict[str, int]
    """Tables, and how many rows were ever written into them."""
    rows: dict[str, str]
    """Of the other tables, as JSON."""


class Databases:
    """Makes databases on the shared server, all over one connection: a new one costs Postgres a process."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        [folder] = parse_qs(urlsplit(dsn).query)["host"]
        self.backends = Backends(f"{folder}/.s.PGSQL.{cluster.PORT}")
        self._connection: asyncpg.Connection | None = None
        self._loop = asyncio.new_event_loop()  # tests have loops of their own, and this connection outlives them
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._left: list[str] = []
        """Of tests that are over. Emptied or dropped by the next one: by then nobody is in them."""
        self._free: list[Kept] = []
        self._used: dict[str, Kept] = {}

    async def make(self, template: str) -> str:
        """The name of a database that is like the template."""
        if not self._thread.is_alive():
            self._thread.start()
            self.backends.share()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._make(template), self._loop))

    def leave(self, name: str) -> None:
        self._left.append(name)

    async def _make(self, template: str) -> str:
        while self._left:
            name = self._left.pop()
            kept = self._used.pop(name, None)
            if kept and await _emptied(kept, await self.backends.free(name)):
                self._free.append(kept)
            else:
                self.backends.clear(name)
                await self._execute(f"DROP DATABASE {name} WITH (FORCE)")
        if template == TEMPLATE and self._free:
            kept = self._free.pop()
            self._used[kept.name] = kept
            return kept.name
        name = f"test_{uuid.uuid4().hex}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        if template == TEMPLATE:
            self._used[name] = await _as_made(name, dsn_of(self.dsn, name))
        return name

    async def _execute(self, statement: str) -> None:
        self._connection = self._connection or await asyncpg.connect(self.dsn)
        await self._connection.execute(statement)

    async def _end(self) -> None:
        for kept in (*self._free, *self._used.values()):
            kept.connection.terminate()
        if self._connection:
            await self._connection.close()

    def close(self) -> None:
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self.backends.close()


def dsn_of(dsn: str, database: str) -> str:
    return dsn.replace("/longhouse?", f"/{database}?")


async def _as_made(name: str, dsn: str) -> Kept:
    # As a replica it deletes rows whichever others refer to them, and no trigger says more to it.
    connection = await asyncpg.connect(dsn, server_settings={"session_replication_role": "replica"})
    tables = await connection.fetch(TABLES)
    rows = {table: await _rows(connection, table) for table, has_rows in tables if has_rows}
    # So they are not emptied together with others.
    assert not await connection.fetchval(REFERRING, list(rows))
    form = await connection.fetchval(FORM)
    return Kept(name, connection, form, {table: 0 for table, has_rows in tables if not has_rows}, rows)


async def _rows(connection: asyncpg.Connection, table: str) -> str:
    return str(await connection.fetchval(f"SELECT coalesce(json_agg(t), '[]') FROM {table} t"))


async def _emptied(kept: Kept, idle: list[int]) -> bool:
    """Makes a database as it was, with nobody in it but who is idle; False: something else than rows has changed."""
    connection = kept.connection
    try:
        await connection.fetchval(ALONE, idle)
        if await connection.fetchval(FORM) != kept.form:
            connection.terminate()
            return False
        changed = [table for table, rows in kept.rows.items() if await _rows(connection, table) != rows]
        filled = await connection.fetch(FILLED, [*kept.empty], [*kept.empty.values()])
        kept.empty |= {table: inserted for table, inserted, _ in filled}
        statements = ["DELETE FROM pg_statistic WHERE starelid >= 16384", COUNTED]
        # To delete rows costs a tenth of what new files for a table and all its indexes cost. What they leave behind
        # is less than what the planner takes a table for that was never looked at.
        small, large = ([table for table, _, is_large in filled if is_large == size] for size in (False, True))
        statements += [f"DELETE FROM {table}" for table in (*small, *changed)]
        if large:
            statements.append(f"TRUNCATE {', '.join(large)} CASCADE")
        statements += [
            f"INSERT INTO {table} OVERRIDING SYSTEM VALUE "
            f"SELECT * FROM json_populate_recordset(NULL::{table}, $json${kept.rows[table]}$json$)"
            for table in changed
        ]
        await connection.execute("; ".join(statements))
    except (
        asyncpg.PostgresError,
        asyncpg.InterfaceError,
        OSError,
    ):  # a test has ended the connection, or hides a table
        connection.terminate()
        return False
    return True
