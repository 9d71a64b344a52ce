"""Opens Postgres: for the application, and for commands that need nothing else."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, nullcontext
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from longhouse.settings import Settings
from longhouse.store.database import Database, open_database
from longhouse.store.postgres import Postgres, require_data
from longhouse.store.postgres.embedded import Embedded, make_ready, open_embedded

P = ParamSpec("P")


@asynccontextmanager
async def open_store(
    settings: Settings, *, create: bool = True, embedded: Embedded | None = None
) -> AsyncIterator[tuple[Database, Postgres | None]]:
    """Opens the embedded Postgres and migrates it; or an external one, which only `longhouse migrate` migrates.

    Without `create`, an embedded Postgres must exist: a command in the wrong folder fails instead of creating one.
    `embedded`: it is open already, and the caller closes it.
    """
    if settings.database_url:
        dsn = settings.database_url.get_secret_value()
        async with open_database(dsn, schema=settings.database_schema) as db:
            await make_ready(db, None)
            yield db, None
        return
    if not create:
        require_data(settings.data_dir)
    opening = open_embedded(settings.data_dir, binaries=settings.pg_bin, schema=settings.database_schema)
    async with nullcontext(embedded) if embedded else opening as (db, postgres, is_current):
        await make_ready(db, postgres, is_current=is_current)
        yield db, postgres


@asynccontextmanager
async def open_existing(settings: Settings) -> AsyncIterator[Database]:
    """Opens the database alone, for a command: a house that is not there is not made."""
    async with open_store(settings, create=False) as (db, _):
        yield db


def with_database(
    main: Callable[Concatenate[Database, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Settings, P], Coroutine[Any, Any, None]]:
    """Decorates a command that needs nothing but the database, which is opened for it."""

    @wraps(main)
    async def command(settings: Settings, /, *args: P.args, **options: P.kwargs) -> None:
        async with open_existing(settings) as db:
            await main(db, *args, **options)

    return command
