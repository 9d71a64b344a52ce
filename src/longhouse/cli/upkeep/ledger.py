"""`longhouse ledger …`: make the ledger of interactions again from the journals."""

import structlog
import typer
from rich.progress import Progress

from longhouse.app.memory import open_ledger
from longhouse.cli.running import group
from longhouse.errors import SetupError
from longhouse.settings import Settings

log = structlog.get_logger()


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


cli = group({"rebuild": rebuild})
