"""`longhouse sessions …`: list sessions, draw or follow one, decide what it waits for; directly in the database."""

import sys
from typing import Annotated, Final, Literal

import typer
from rich.console import Console

from longhouse import clock
from longhouse.api.sessions.listing import listed
from longhouse.api.sessions.waiting import shown, waiting_status
from longhouse.app.store import open_store
from longhouse.cli.one_line import plain
from longhouse.cli.running import add_commands
from longhouse.cli.sessions import acting
from longhouse.cli.sessions.capsules import SessionId, export_session, found, import_capsule, replay_session
from longhouse.cli.sessions.table import table
from longhouse.cli.sessions.tail import event_lines
from longhouse.cli.sessions.tree import TreeDrawing
from longhouse.cli.upkeep.ledger import open_ledger
from longhouse.errors import SetupError
from longhouse.journal.events import Decision
from longhouse.journal.session import State
from longhouse.settings import Settings
from longhouse.store import journals, sessions
from longhouse.store.lists.timelines import timelines_of

WIDEST: Final = 10_000
SHOWN: Final = 300
"""Characters of one message in a story."""

Call = Annotated[str | None, typer.Argument(help="Which call, where several wait; `sessions show` tells their names.")]
Outcome = Literal["happened", "did-not-happen", "give-up"]
DECISIONS: Final[dict[Outcome, Decision]] = {
    "happened": "happened",
    "did-not-happen": "did_not_happen",
    "give-up": "give_up",
}
Comment = Annotated[str, typer.Option(help="Why; the agent is told it with a denial.")]


async def list_sessions(
    settings: Settings,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 20,
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state themselves.")] = None,
) -> None:
    """List the sessions, newest first."""
    console = Console(highlight=False)
    async with open_store(settings, create=False) as (db, _):
        rows = await sessions.sessions(db, limit=limit, owner=owner, state=state)
        if console.is_terminal:
            owners = {row.id: row.owner for row in rows}
            is_one = len(set(owners.values())) < 2
            console.print(table(await listed(db, rows), clock.now(), console.width, owners=None if is_one else owners))
            return
        rows = await shown(db, rows)
    # Elsewhere whole ids and lines, for programs to read.
    for row in rows:
        opened = f"{row.created_at:%Y-%m-%d %H:%M:%S}"
        typer.echo("  ".join(map(plain, (row.id, row.state, opened, row.owner, row.task or ""))).rstrip())


async def show_session(
    settings: Settings,
    session_id: SessionId,
    turns: Annotated[int, typer.Option(min=1, help="How many turns, from the last one back.")] = 10,
) -> None:
    """Draw a session: its turns, steps, tools and timings, with sub-agents below their calls."""
    async with open_store(settings, create=False) as (db, _):
        session_id = await found(db, session_id)
        timelines = (await timelines_of(db, session_id, turns)).sessions
        session = await journals.load(db, session_id)
        status = await waiting_status(db, session)
    console = Console(highlight=False)
    if not console.is_terminal:
        # On a terminal long lines wrap within their branch; elsewhere they stay whole, for programs to read.
        console.width = WIDEST
    console.print(TreeDrawing(timelines, clock.now()).session(session, status))


async def tail_session(
    settings: Settings,
    session_id: SessionId,
    last: Annotated[int, typer.Option(min=0, help="How many events of before.")] = 20,
) -> None:
    """Follow a session and its sub-agents, until nobody can go on without a person."""
    async with open_store(settings, create=False) as (db, _):
        session_id = await found(db, session_id)
        async for line in event_lines(db, session_id, last):
            typer.echo(line)


async def approve_call(
    settings: Settings,
    session_id: SessionId,
    call: Call = None,
    comment: Comment = "",
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, on a terminal.")] = False,
) -> None:
    """Approve a call that waits for it; its tool and arguments are shown first."""
    await _decide(settings, session_id, call, "approve", comment, asks=not yes and sys.stdin.isatty())


async def deny_call(settings: Settings, session_id: SessionId, call: Call = None, comment: Comment = "") -> None:
    """Deny a call that waits for approval; the agent is told so, with the comment."""
    await _decide(settings, session_id, call, "deny", comment)


async def _decide(
    settings: Settings, session_id: str, call: str | None, decision: Decision, comment: str, *, asks: bool = False
) -> None:
    def show(what: str) -> None:
        typer.echo(plain(what, WIDEST))
        if asks:
            typer.confirm("Approve it?", abort=True)

    async with open_store(settings, create=False) as (db, _):
        name = await acting.decide(db, await found(db, session_id), call, decision, comment=comment, show=show)
    typer.echo(f"{plain(name)} is {'approved' if decision == 'approve' else 'denied'}")


async def settle_call(
    settings: Settings,
    session_id: SessionId,
    outcome: Annotated[Outcome, typer.Argument(help="What became of it; what did not happen is made now.")],
    call: Call = None,
    result: Annotated[str | None, typer.Option(help="With `happened`: what the agent is told it returned.")] = None,
) -> None:
    """Say what became of a call whose outcome is unknown, as when its worker was lost. A step that lost three workers
    is tried again with `did-not-happen`, and `give-up` ends its turn."""
    if result is not None and outcome != "happened":
        raise SetupError("--result goes with `happened` only: leave it out.")
    async with open_store(settings, create=False) as (db, _):
        name = await acting.decide(db, await found(db, session_id), call, DECISIONS[outcome], result=result)
    typer.echo(f"{plain(name)} is settled: {outcome}")


async def answer_question(
    settings: Settings,
    session_id: SessionId,
    answer: Annotated[str, typer.Argument(help="The answer.")],
    call: Annotated[str | None, typer.Option(help="Which question, where several are open.")] = None,
) -> None:
    """Answer the oldest open question of a session, or the one that --call names."""
    async with open_store(settings, create=False) as (db, _):
        name = await acting.answer(db, await found(db, session_id), call, answer)
    typer.echo(f"{plain(name)} is answered")


async def fork_session(
    settings: Settings,
    session_id: SessionId,
    *,
    after: Annotated[
        int | None, typer.Option(min=1, help="The last event that the branch has of it; by default its last one.")
    ] = None,
) -> None:
    """Open a branch of a session at one of its events, with the agents that it had called by then; both go on."""
    async with open_store(settings, create=False) as (db, _):
        forked = await acting.fork(db, await found(db, session_id), after)
    top = forked.top
    typer.echo(f"{plain(top.session.id)}  {top.session.state}  after {top.origin.after} of {plain(top.origin.session)}")
    for one in forked.below:
        typer.echo(f"  {plain(one.session.id)}  {one.session.state}  after {one.origin.after}")
    for path in forked.left_out:
        typer.echo(f"  without the memory file {plain(path)}: it was changed since", err=True)


async def cancel_turn(settings: Settings, session_id: SessionId) -> None:
    """Cancel the running turn of a session, or the next one that waits."""
    async with open_store(settings, create=False) as (db, _):
        state = await acting.cancel(db, await found(db, session_id))
    typer.echo(state)


async def show_story(
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
        story = await ledger.story(trace, owner=owner)
    if not story:
        raise SetupError(
            f"there is nothing of a trace {trace!r}; `longhouse sessions show` tells the traces of a session."
        )
    for one in story:
        line = " ".join(plain(one.content).split())
        shown = line if len(line) <= SHOWN else f"{line[:SHOWN]}…"
        typer.echo(
            f"{one.timestamp:%H:%M:%S.%f}  {plain(one.source)} → {plain(one.target)}  {one.type}  {shown}".rstrip()
        )


cli = typer.Typer(help="Sessions: which there are, what happened in one, what it waits for.", no_args_is_help=True)
add_commands(cli, {"list": list_sessions, "show": show_session, "story": show_story, "tail": tail_session})
add_commands(cli, {"approve": approve_call, "deny": deny_call, "settle": settle_call})
add_commands(cli, {"answer": answer_question, "cancel": cancel_turn, "fork": fork_session})
add_commands(cli, {"export": export_session, "import": import_capsule, "replay": replay_session})
