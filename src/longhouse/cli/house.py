"""Opens the database of a house: as it is, or with its schema brought up to date."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import Postgres, holds_data, open_postgres
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
    if not create and not holds_data(settings.data_dir):
        raise SetupError(
            f"there is no Longhouse in {settings.data_dir.absolute()}: change to the folder where it was started, or"
            " set LONGHOUSE_DATA_DIR or LONGHOUSE_DATABASE_URL."
        )
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
