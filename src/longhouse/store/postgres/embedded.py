"""The embedded Postgres and the database in it; a database that was just opened is brought to this version's schema."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from longhouse.store import leases, migrate
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import Postgres, open_postgres


class Embedded(NamedTuple):
    db: Database
    postgres: Postgres
    is_current: bool
    """Its schema is that of this version already."""


@asynccontextmanager
async def open_embedded(data_dir: Path, *, binaries: Path | None, schema: str) -> AsyncIterator[Embedded]:
    """Starts Postgres, connects to it, and looks at its schema, which stays as it is."""
    async with open_postgres(data_dir, binaries=binaries) as postgres, open_database(postgres.dsn, schema=schema) as db:
        yield Embedded(db, postgres, await migrate.is_current(db, may_extend=postgres.vectors))


async def make_ready(db: Database, postgres: Postgres | None, *, is_current: bool = False) -> None:
    """Migrates the embedded Postgres, unless it `is_current`; an external one (None) is only checked: `longhouse
    migrate` migrates it."""
    if postgres is None:
        await migrate.check(db)
        return
    if not is_current:
        await migrate.migrate(db, may_extend=postgres.vectors)
    if postgres.owned:
        await leases.retire_all(db)
