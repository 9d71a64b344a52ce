"""`longhouse ledger …`: make the ledger of interactions again from the journals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
import typer
from rich.progress import Progress

from longhouse.app.models import open_embedder
from longhouse.app.store import open_store
from longhouse.cli.running import add_commands
from longhouse.errors import SetupError
from longhouse.memory.ledger import Ledger
from longhouse.memory.ledger_projection import LedgerProjector
from longhouse.search.passages import PassageIndex
from longhouse.settings import Settings

log = structlog.get_logger()


@asynccontextmanager
async def open_ledger(settings: Settings) -> AsyncIterator[Ledger]:
    """The ledger alone, without a server."""
    async with open_store(settings, create=False) as (db, _), open_embedder(settings) as embedder:
        projector = LedgerProjector(db, PassageIndex(db, embedder))
        yield Ledger(db, projector, enabled=settings.conversation_memory_enabled)


async def rebuild(settings: Settings) -> None:
    """Drop the ledger and make it again from the journals; what was deleted stays deleted."""
    if not settings.conversation_memory_enabled:
        raise SetupError("interactions are not collected here: set LONGHOUSE_CONVERSATION_MEMORY_ENABLED.")
    async with open_ledger(settings) as ledger:
        count = await ledger.reset()
        log.info("ledger_dropped", by="cli", count=count)
        with Progress(transient=True) as progress:
            task = progress.add_task("sessions", total=count)
            projected = await ledger.projector.catch_up_all(lambda number: progress.advance(task, number))
        log.info("ledger_rebuilt", by="cli", count=projected)
        typer.echo(f"{projected} sessions told")


cli = typer.Typer(help="The ledger: who said what to whom.", no_args_is_help=True)
add_commands(cli, {"rebuild": rebuild})
