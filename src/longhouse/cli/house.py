"""Opens the database of a house: as it is, or with its schema brought up to date."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from longhouse.settings import Settings
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import Postgres, open_postgres, require_data
from longhouse.store.postgres.embedded import make_ready

POSTGRES_ENDED: Final = "the embedded Postgres has stopped: restart the process that started it."


@asynccontextmanager
async def open_as_it_is(
    settings: Settings, *, create: bool = False, restores: bool = False
) -> AsyncIterator[tuple[Database, Postgres | None]]:
    """The external Postgres, or the embedded one, which must exist unless it is to be created."""
    schema = settings.database_schema
    if settings.database_url:
        async with open_database(settings.database_url.get_secret_value(), schema=schema) as db:
            yield db, None
        return
    if not create:
        require_data(settings.data_dir)
    async with (
        open_postgres(
            settings.data_dir, binaries=settings.pg_bin, restores=restores, processes=settings.serve_workers
        ) as postgres,
        open_database(postgres.dsn, schema=schema) as db,
    ):
        yield db, postgres


@asynccontextmanager
async def open_ready(settings: Settings, *, create: bool = False) -> AsyncIterator[tuple[Database, Postgres | None]]:
    """The same, migrated if it is the embedded one."""
    async with open_as_it_is(settings, create=create) as (db, postgres):
        await make_ready(db, postgres)
        yield db, postgres
