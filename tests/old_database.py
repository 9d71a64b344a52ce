"""A database as an installation of before left it."""

from dataclasses import replace
from pathlib import Path

import asyncpg

from longhouse.store import migrate


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
