"""Brings a database that was just opened to the schema of this version."""

from longhouse.store import leases, migrate
from longhouse.store.database import Database
from longhouse.store.postgres import Postgres


async def make_ready(db: Database, postgres: Postgres | None, *, is_current: bool = False) -> None:
    """Migrates the embedded Postgres, unless it `is_current`; an external one (None) is only checked: `longhouse
    migrate` migrates it."""
    if postgres is None:
        await migrate.check(db)
        return
    if not is_current:
        await migrate.migrate(db, may_extend=postgres.vectors)
    if postgres.fresh:
        await leases.retire_all(db)
