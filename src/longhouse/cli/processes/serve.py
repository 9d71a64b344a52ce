"""`longhouse serve`: as one process, or as several behind one port. What each needs is loaded where it runs."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from longhouse.cli.loading import imports, load_fastapi
from longhouse.cli.processes.child import Child, ChildFailed
from longhouse.cli.running import AgentsFile, ConfigFile, Host, Port, given, run
from longhouse.errors import LonghouseError
from longhouse.settings import MOST_PROCESSES, Settings
from longhouse.store.postgres import holds_data
from longhouse.store.postgres.embedded import Embedded, open_embedded

cli = typer.Typer()


@cli.command()
def serve(
    *,
    host: Host = None,
    port: Port = None,
    config_file: ConfigFile = None,
    agents_file: AgentsFile = None,
    works: Annotated[
        bool, typer.Option("--worker/--no-worker", help="Work on sessions too, or leave that to `longhouse work`.")
    ] = True,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes that serve behind this port: one for each core.", min=1, max=MOST_PROCESSES),
    ] = None,
    child: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Serve the API and work on sessions, with an embedded Postgres unless LONGHOUSE_DATABASE_URL is set."""
    options = given(host=host, port=port, config_file=config_file, agents_file=agents_file, serve_workers=workers)
    if child:
        _serve_as(msgspec.json.decode(child, type=Child), options, works=works)
        return
    settings = Settings(**options)
    if settings.serve_workers > 1:
        run(settings, importlib.import_module("longhouse.cli.processes.supervisor").supervise)
    else:
        run(settings, partial(_serve_alone, works=works))


async def _serve_alone(settings: Settings, *, works: bool) -> None:
    """Serves as the only process. What it needs is loaded while Postgres starts and the first connections are made."""
    loading = asyncio.get_running_loop().run_in_executor(None, _load, "serving")  # at once, unlike a task
    async with _embedded(settings) as embedded:
        serving = (await loading).serving(works=works, embedded=embedded)
        await serving(settings)


def _load(module: str) -> Any:
    with imports():
        load_fastapi()
        return importlib.import_module(f"longhouse.cli.processes.{module}")


@asynccontextmanager
async def _embedded(settings: Settings) -> AsyncIterator[Embedded | None]:
    """The embedded Postgres; None if there is none, or none yet: a refused start makes no data folder."""
    if settings.database_url or not holds_data(settings.data_dir):
        yield None
        return
    schema = settings.database_schema
    async with open_embedded(settings.data_dir, binaries=settings.pg_bin, schema=schema) as embedded:
        yield embedded


def _serve_as(child: Child, options: dict[str, object], *, works: bool) -> None:
    """Serves as one of several processes; the supervisor says why that failed, once for all of them."""
    child.end_with_supervisor()
    try:
        run(Settings(**options), partial(_load("child_serving").serve_as, child, works=works))
    except LonghouseError as error:
        child.tell(ChildFailed.of(error))
        raise typer.Exit(1) from None
