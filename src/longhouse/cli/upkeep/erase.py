"""`longhouse erase …`: what goes is counted first, asked for, and erased for good; directly in the database."""

import sys
import uuid
from collections import Counter
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.status import Status

from longhouse.agents.template import MemoryScope
from longhouse.app.copies import remove_copies
from longhouse.app.store import open_existing, with_database
from longhouse.cli.configured import as_served
from longhouse.cli.one_line import plain
from longhouse.cli.owners import default_owner
from longhouse.cli.running import group
from longhouse.cli.sessions.capsules import SessionId, found, inbox_of
from longhouse.errors import SetupError
from longhouse.runtime.cleanup.eraser import Eraser
from longhouse.settings import Settings
from longhouse.store import sessions
from longhouse.store.database import Database
from longhouse.store.erasing import compaction
from longhouse.store.erasing.erasure_plan import ErasurePlan
from longhouse.store.erasing.erasures import Kind, Target
from longhouse.store.memory import memory_scopes
from longhouse.store.memory.memory_files import Memories
from longhouse.store.memory.memory_scopes import Scope
from longhouse.tools.builtin.memory_paths import MemoryRefused, normalised

Owner = Annotated[
    str | None, typer.Option(help="Whose; by default `local`, while no API key is set: after that, name one.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would go, and erase nothing.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]

REST: Final = (
    "Postgres keeps deleted bytes in free space of its files until something else is written there:"
    " `longhouse erase compact` takes them out."
)
KEY: Final = "cli"


async def erase_session(
    settings: Settings, session_id: SessionId, *, dry_run: DryRun = False, yes: Yes = False
) -> None:
    """Erase a session and the sub-agents that it called."""
    await _erase(settings, "session", session_id, dry_run=dry_run, yes=yes)


async def erase_conversation(
    settings: Settings,
    conversation_id: Annotated[str, typer.Argument(help="The id, as sessions show it.")],
    owner: Owner = None,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Erase a conversation: all its sessions, what was added to it, the memory that belongs to it alone."""
    await _erase(settings, "conversation", conversation_id, owner, dry_run=dry_run, yes=yes)


async def erase_user(
    settings: Settings,
    user: Annotated[str, typer.Argument(help="The name, as requests send it in `user`.")],
    owner: Owner = None,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Erase a user: all sessions that were opened for it, with their sub-agents, and its memory."""
    if not user.strip():
        raise SetupError("name a user, as requests send it in `user`.")
    await _erase(settings, "user", user, owner, dry_run=dry_run, yes=yes)


async def erase_owner(
    settings: Settings,
    owner: Annotated[str, typer.Argument(help="The owner, as `longhouse keys list` shows it.")],
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Erase an owner: its keys, sessions, users, memory, documents, tools and templates."""
    await _erase(settings, "owner", owner=owner, dry_run=dry_run, yes=yes)


async def erase_memory(
    settings: Settings,
    path: Annotated[str, typer.Argument(help="The memory file, such as people/ann.md.")],
    *,
    owner: Owner = None,
    user: Annotated[str | None, typer.Option(help="Of this user.")] = None,
    agent: Annotated[str | None, typer.Option(help="Of this agent.")] = None,
    conversation: Annotated[str | None, typer.Option(help="Of this conversation.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Erase one memory file, or an empty directory. What sessions said of it stays in them."""
    async with open_existing(settings) as db:
        memories = Memories(db)
        # While no API key is set, whoever names no user is the owner.
        user = user or (await default_owner(settings, db) if owner is None else None)
        scope = _scope(await _owner(settings, db, owner), user, agent, conversation)
        try:
            name = normalised(path)
        except MemoryRefused as error:
            raise SetupError(f"the path is refused: {error}.") from None
        entry = await memories.entry(scope, name) if name else None
        if entry is None:
            raise SetupError(f"there is no memory file {path!r} here; --user, --agent and --conversation say whose.")
        typer.echo(f"{'would erase' if dry_run else 'erases'} {plain(name)} ({entry.size} bytes)")
        writer = entry.written_by.partition(":")[0]
        if await sessions.owner_of(db, writer):
            typer.echo(f"stays: what {writer}, which wrote it last, said of it")
        if dry_run or not _is_agreed(yes=yes):
            return
        verdict = await memories.delete(scope, name, key=f"{KEY}:{uuid.uuid4().hex}")
    if verdict not in ("done", "repeated"):
        raise SetupError(f"{name!r} is not erased: it is {verdict.replace('_', ' ')}.")
    typer.echo(REST)


@with_database
async def compact(db: Database, *, yes: Yes = False) -> None:
    """Take the bytes of erased rows out of the files of Postgres: all tables are written anew, one after another."""
    typer.echo("Each table is written anew, and needs its own size of free disk; turns that use it wait meanwhile.")
    if not _is_agreed(yes=yes):
        return
    with Status("", console=Console(stderr=True)) as status:
        done = await compaction.compact(db, lambda table, nth, of: status.update(f"{table} ({nth + 1} of {of})"))
    typer.echo(f"{done.tables} tables are written anew")
    for problem in done.left:
        typer.echo(f"longhouse: {problem}", err=True)
    if done.left:
        raise typer.Exit(1)


async def _erase(
    settings: Settings, kind: Kind, name: str = "", owner: str | None = None, *, dry_run: bool, yes: bool
) -> None:
    # With the folders that the files name: copies are removed there too.
    setup = as_served(settings)
    async with open_existing(setup.settings) as db:
        if kind == "session":
            name = await found(db, name)
            owner = await sessions.owner_of(db, name)
        elif kind != "owner":
            owner = await _owner(settings, db, owner)
        target = Target(kind, owner or "", name)
        eraser = Eraser(inbox_of(db))
        plan = await eraser.plan(target)
        if not await eraser.is_there(target, plan):
            raise SetupError(f"there is no {target.kind} {target.name or target.owner!r}: nothing is erased.")
        _print_counts("would erase" if dry_run else "erases", plan.counts)
        _print_kept(plan)
        if dry_run or not _is_agreed(yes=yes):
            return
        with Status("erasing", console=Console(stderr=True)) as status:
            erased = await eraser.erase(target, progress=lambda counts: status.update(f"erased {_counted(counts)}"))
            trouble = await remove_copies(setup, db)
    _print_counts("erased", erased.counts)
    if trouble:
        typer.echo(f"longhouse: {trouble}", err=True)
    typer.echo(REST)


def _print_counts(verb: str, counts: Counter[str]) -> None:
    typer.echo(f"{verb} {_counted(counts) or 'nothing more'}")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count)


def _print_kept(plan: ErasurePlan) -> None:
    for one in plan.kept_sessions:
        typer.echo(f"stays: {one}, a session of others in which this user spoke too")
    for path in plan.kept_files:
        typer.echo(f"stays: memory file {plain(path)}, which others wrote too")


def _is_agreed(*, yes: bool) -> bool:
    """Asks, where somebody can answer."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise SetupError("nothing is erased: say --yes where nobody can be asked, or --dry-run to see what would go.")
    return typer.confirm("Erase it for good?")


async def _owner(settings: Settings, db: Database, owner: str | None) -> str:
    owner = owner or await default_owner(settings, db)
    if owner is None:
        raise SetupError("name the owner with --owner; `longhouse keys list` shows them.")
    return owner


def _scope(owner: str, user: str | None, agent: str | None, conversation: str | None) -> Scope:
    """The scope that these names mean, as over HTTP."""
    kind: MemoryScope = "agent" if agent else "conversation" if conversation else "owner"
    if kind == "agent" and not user and not conversation:
        raise SetupError("name a --user or a --conversation: without either, files of an agent are nobody's.")
    return memory_scopes.scope_for(kind, owner, user, agent or "", conversation or "")


cli = group(
    {
        "session": erase_session,
        "conversation": erase_conversation,
        "user": erase_user,
        "owner": erase_owner,
        "memory": erase_memory,
        "compact": compact,
    }
)
