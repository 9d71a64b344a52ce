"""A database as an installation of before left it, and sessions as an older release wrote them."""

import json
from pathlib import Path
from typing import Any

import asyncpg
from msgspec.structs import replace

from longhouse.store import migrate
from longhouse.store.database import Database

OLD_JOURNALS = Path(__file__).parent / "golden" / "old_requests.json"


def formerly() -> list[migrate.Migration]:
    """The migrations as they were when vectors were halfvec."""
    old = Path(__file__).parent / "store" / "old"
    return [
        replace(one, sql=(old / one.name).read_text()) if (old / one.name).exists() else one
        for one in migrate.known()
        if one.number < 10
    ]


async def made_formerly(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(migrate.TABLE)
    for one in formerly():
        await connection.execute(one.sql)
        await connection.execute(
            "INSERT INTO schema_migrations (number, name, digest) VALUES ($1, $2, $3)", one.number, one.name, one.digest
        )
    await connection.close()


async def brought(db: Database, kept: dict[str, Any]) -> None:
    """Sessions and journals of an older release are in this database now."""
    for table in ("sessions", "journal"):
        for row in kept[table]:
            sql, values = inserted(table, row)
            await db.run(sql, **values)


def inserted(table: str, row: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """A statement for the columns that the older release had, and what it takes; a body as the text that it is."""
    columns = ", ".join(f'"{name}"' for name in row)
    body = str(row.get("body", "null"))
    values = columns.replace('"body"', ":body::json")
    given = json.dumps({**row, "body": None})
    # The body is named in any case: Postgres wants to know what it is.
    told = f"json_populate_record(NULL::{table}, :row), (SELECT :body::json) AS body_of_row"
    return f"INSERT INTO {table} ({columns}) SELECT {values} FROM {told}", {"row": given, "body": body}
