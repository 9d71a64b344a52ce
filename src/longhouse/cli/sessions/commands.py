"""`longhouse sessions …`: list sessions, draw or follow one, decide what it waits for, answer, cancel, fork.

All of it is written to the database, as the API writes it; a worker goes on with the session within half a second.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final, Literal

import typer
from rich.console import Console

from longhouse import clock
from longhouse.api.caller import Caller
from longhouse.api.sessions import decisions
from longhouse.api.sessions.listing import listed
from longhouse.api.sessions.waiting import Question, find_questions, shown, waiting_status
from longhouse.app.memory import open_ledger
from longhouse.app.store import open_existing, with_database
from longhouse.cli.one_line import columns, plain
from longhouse.cli.running import group
from longhouse.cli.sessions.capsules import SessionId, export_session, found, import_capsule, inbox_of, replay_session
from longhouse.cli.sessions.table import table
from longhouse.cli.sessions.tail import event_lines
from longhouse.cli.sessions.tree import TreeDrawing
from longhouse.errors import AlreadyReturned, SetupError
from longhouse.journal.events import Decision
from longhouse.journal.session import Session, State
from longhouse.journal.words.visible_text import readable_json
from longhouse.settings import Settings
from longhouse.store import journals, leases, sessions
from longhouse.store.database import Database
from longhouse.store.forks import NoSuchEvent
from longhouse.store.lists.timelines import timelines_of

WIDEST: Final = 10_000
BY: Final = "cli"
OPERATOR: Final = Caller("", BY, "admin")
UNASKED: Final = "no call waits for approval (for an unknown outcome, use `longhouse sessions settle`)"
UNDOUBTED: Final = (
    "no step can be settled so, and no call has an unknown outcome (for approvals, use `longhouse sessions approve` or"
    " `deny`)"
)
GONE: Final = "the session moved on meanwhile; `longhouse sessions show` tells what it waits for now."

Call = Annotated[str | None, typer.Argument(help="Which call, where several wait; `sessions show` tells their names.")]
Outcome = Literal["happened", "did-not-happen", "give-up"]
DECISIONS: Final[dict[Outcome, Decision]] = {
    "happened": "happened",
    "did-not-happen": "did_not_happen",
    "give-up": "give_up",
}
Comment = Annotated[str, typer.Option(help="Why; the agent is told it with a denial.")]


@with_database
async def list_sessions(
    db: Database,
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 20,
    owner: Annotated[str | None, typer.Option(help="Only those of this owner.")] = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state themselves.")] = None,
) -> None:
    """List the sessions, newest first."""
    console = Console(highlight=False)
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
        typer.echo(columns(row.id, row.state, opened, row.owner, row.task or ""))


@with_database
async def show_session(
    db: Database,
    session_id: SessionId,
    turns: Annotated[int, typer.Option(min=1, help="How many turns, from the last one back.")] = 10,
) -> None:
    """Draw a session: its turns, steps, tools and timings, with sub-agents below their calls."""
    session_id = await found(db, session_id)
    timelines = (await timelines_of(db, session_id, turns)).sessions
    session = await journals.load(db, session_id)
    status = await waiting_status(db, session)
    console = Console(highlight=False)
    if not console.is_terminal:
        # On a terminal long lines wrap within their branch; elsewhere they stay whole, for programs to read.
        console.width = WIDEST
    console.print(TreeDrawing(timelines, clock.now()).session(session, status))


@with_database
async def tail_session(
    db: Database,
    session_id: SessionId,
    last: Annotated[int, typer.Option(min=0, help="How many events of before.")] = 20,
) -> None:
    """Follow a session and its sub-agents, until nobody can go on without a person."""
    session_id = await found(db, session_id)
    async for line in event_lines(db, session_id, last):
        typer.echo(line)


@with_database
async def approve_call(
    db: Database,
    session_id: SessionId,
    call: Call = None,
    comment: Comment = "",
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, on a terminal.")] = False,
) -> None:
    """Approve a call that waits for it; its tool and arguments are shown first."""
    await _decide(db, session_id, call, "approve", comment, asks=not yes and sys.stdin.isatty())


@with_database
async def deny_call(db: Database, session_id: SessionId, call: Call = None, comment: Comment = "") -> None:
    """Deny a call that waits for approval; the agent is told so, with the comment."""
    await _decide(db, session_id, call, "deny", comment)


async def _decide(
    db: Database, session_id: str, call: str | None, decision: Decision, comment: str, *, asks: bool = False
) -> None:
    def show(what: str) -> None:
        typer.echo(readable_json(what))
        if asks:
            typer.confirm("Approve it?", abort=True)

    name = await _settled(db, await found(db, session_id), call, decision, comment=comment, show=show)
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
    async with open_existing(settings) as db:
        name = await _settled(db, await found(db, session_id), call, DECISIONS[outcome], result=result)
    typer.echo(f"{plain(name)} is settled: {outcome}")


@with_database
async def answer_question(
    db: Database,
    session_id: SessionId,
    answer: Annotated[str, typer.Argument(help="The answer.")],
    call: Annotated[str | None, typer.Option(help="Which question, where several are open.")] = None,
) -> None:
    """Answer the oldest open question of a session, or the one that --call names."""
    session = await journals.load(db, await found(db, session_id))
    waiting = await find_questions(db, session, call, lambda one: one.call.call_kind == "ask")
    one = _only(waiting[:1], session, "it asks nothing")
    try:
        await inbox_of(db).answer(one.session, one.call.call, answer, by=BY)
    except (AlreadyReturned, journals.NotThere):
        raise SetupError(GONE) from None
    typer.echo(f"{plain(one.label(session))} is answered")


@with_database
async def fork_session(
    db: Database,
    session_id: SessionId,
    *,
    after: Annotated[
        int | None, typer.Option(min=1, help="The last event that the branch has of it; by default its last one.")
    ] = None,
) -> None:
    """Open a branch of a session at one of its events, with the agents that it had called by then; both go on."""
    session_id = await found(db, session_id)
    owner = await sessions.owner_of(db, session_id) or ""
    head = (await leases.heads(db, [session_id])).get(session_id, (0, ""))[0]
    try:
        forked = await inbox_of(db).fork(session_id, owner, head if after is None else after)
    except NoSuchEvent as error:
        raise SetupError(f"--after should be an event of the session: 1 to {error.head}.") from None
    if forked is None:
        raise SetupError(GONE)
    top = forked.top
    typer.echo(f"{plain(top.session.id)}  {top.session.state}  after {top.origin.after} of {plain(top.origin.session)}")
    for one in forked.below:
        typer.echo(f"  {plain(one.session.id)}  {one.session.state}  after {one.origin.after}")
    for path in forked.left_out:
        typer.echo(f"  without the memory file {plain(path)}: it was changed since", err=True)


@with_database
async def cancel_turn(db: Database, session_id: SessionId) -> None:
    """Cancel the running turn of a session, or the next one that waits."""
    session = await inbox_of(db).cancel(await journals.load(db, await found(db, session_id)), by=BY)
    typer.echo(str(session.state))


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
        parties = f"{plain(one.source)} → {plain(one.target)}"
        typer.echo(f"{one.timestamp:%H:%M:%S.%f}  {parties}  {one.type}  {plain(one.content)}".rstrip())


async def _settled(
    db: Database,
    session_id: str,
    name: str | None,
    decision: Decision,
    *,
    comment: str = "",
    result: str | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> str:
    """Decides a call that waits for approval, or settles one whose outcome is unknown, or a lost step; its name.

    `show` is told the tool and its arguments first, and may raise."""
    first: Question | None = None
    for _ in range(decisions.RACES):
        session = await journals.load(db, session_id)
        fits = partial(decisions.is_possible, decision)
        waiting = await find_questions(db, session, name, fits)
        one = _only(waiting, session, UNASKED if decision in ("approve", "deny") else UNDOUBTED)
        if first is None:
            show(f"{one.call.tool} {one.call.arguments}")
        elif not one.is_same(first):
            raise SetupError(GONE)
        first = one
        decided = decisions.decided(OPERATOR, one, decision, comment=comment)
        try:
            await inbox_of(db).decide(one.session, decided, result)
        except journals.NotThere:
            continue
        return one.label(session)
    raise decisions.too_many_races()


def _only(waiting: Sequence[Question], session: Session, nothing: str) -> Question:
    if not waiting:
        raise SetupError(f"{nothing}: {session.id} is {session.state}; `longhouse sessions show` tells more.")
    if len(waiting) > 1:
        names = ", ".join(one.label(session) for one in waiting)
        raise SetupError(f"several calls wait: {names}; name one of them.")
    return waiting[0]


cli = group(
    {
        "list": list_sessions,
        "show": show_session,
        "story": show_story,
        "tail": tail_session,
        "approve": approve_call,
        "deny": deny_call,
        "settle": settle_call,
        "answer": answer_question,
        "cancel": cancel_turn,
        "fork": fork_session,
        "export": export_session,
        "import": import_capsule,
        "replay": replay_session,
    }
)
