"""`longhouse sessions …`: list sessions, draw one as a tree; directly from the database."""

from typing import Annotated, Final

import typer
from rich.console import Console

from longhouse import clock
from longhouse.api.sessions.waiting import shown, waiting_status
from longhouse.app import open_store
from longhouse.cli.ledger import open_ledger
from longhouse.cli.running import add_commands
from longhouse.cli.session_tree import TreeDrawing, plain
from longhouse.cli.timeline import timelines_of
from longhouse.errors import SetupError
from longhouse.journal.session import State
from longhouse.settings import Settings
from longhouse.store import sessions

WIDEST: Final = 10_000
SHOWN: Final = 300
"""Characters of one message in a story."""


async def list_sessions(
    settings: Settings,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 20,
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state themselves.")] = None,
) -> None:
    """List the sessions, newest first."""
    async with open_store(settings, create=False) as (db, _):
        rows = await shown(db, await sessions.sessions(db, limit=limit, owner=owner, state=state))
    for row in rows:
        opened = f"{row.created_at:%Y-%m-%d %H:%M:%S}"
        typer.echo("  ".join(map(plain, (row.id, row.state, opened, row.owner, row.task or ""))).rstrip())


async def show_session(
    settings: Settings,
    session_id: Annotated[str, typer.Argument(help="The id, as `longhouse sessions list` shows it.")],
    turns: Annotated[int, typer.Option(min=1, help="How many turns, from the last one back.")] = 10,
) -> None:
    """Draw a session: its turns, steps, tools and timings, with sub-agents below their calls."""
    async with open_store(settings, create=False) as (db, _):
        timelines = await timelines_of(db, session_id, turns)
        if session_id not in timelines:
            raise SetupError(f"there is no session {session_id!r}; `longhouse sessions list` shows the newest.")
        status = await waiting_status(db, timelines[session_id].session)
    console = Console(highlight=False)
    if not console.is_terminal:
        # On a terminal long lines wrap within their branch; elsewhere they stay whole, for programs to read.
        console.width = WIDEST
    console.print(TreeDrawing(timelines, clock.now()).session(session_id, status, turns))


async def tell_story(
    settings: Settings,
    trace: Annotated[str, typer.Argument(help="The trace, as a session shows it as its trace_id.")],
    owner: Annotated[str | None, typer.Option(help="Only what belongs to this owner.")] = None,
) -> None:
    """Tell what happened in a trace, in order, over all its agents: who said what to whom."""
    async with open_ledger(settings) as ledger:
        await ledger.catch_up_all()
        if owner is None and len(owners := await ledger.owners(trace)) > 1:
            named = ", ".join(map(plain, owners))
            raise SetupError(f"several owners have something of the trace {trace!r}: {named}; name one by --owner.")
        told = await ledger.story(trace, owner=owner)
    if not told:
        raise SetupError(
            f"there is nothing of a trace {trace!r}; `longhouse sessions show` tells the traces of a session."
        )
    for one in told:
        line = " ".join(plain(one.content).split())
        shown = line if len(line) <= SHOWN else f"{line[:SHOWN]}…"
        typer.echo(
            f"{one.timestamp:%H:%M:%S.%f}  {plain(one.source)} → {plain(one.target)}  {one.type}  {shown}".rstrip()
        )


cli = typer.Typer(help="Sessions: which there are, and what happened in one.", no_args_is_help=True)
add_commands(cli, {"list": list_sessions, "show": show_session, "story": tell_story})
