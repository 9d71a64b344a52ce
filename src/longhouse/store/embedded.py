"""The embedded Postgres and the database in it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from longhouse.store.database import Database, open_database
from longhouse.store.postgres import Postgres, open_postgres

Embedded = tuple[Database, Postgres]


@asynccontextmanager
async def open_embedded(data_dir: Path, *, binaries: Path | None, schema: str) -> AsyncIterator[Embedded]:
    """Starts Postgres and connects to it; its schema stays as it is."""
    async with open_postgres(data_dir, binaries=binaries) as postgres, open_database(postgres.dsn, schema=schema) as db:
        yield db, postgres
