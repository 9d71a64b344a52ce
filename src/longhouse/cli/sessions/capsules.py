"""`longhouse sessions export`, `import` and `replay`: a session in one file, opened read-only elsewhere."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer

from longhouse.api.sessions import capsules as capsule_making
from longhouse.api.sessions.routes import Sessions
from longhouse.app.memory import memory_of, open_ledger
from longhouse.cli.one_line import plain
from longhouse.config.effective import configure
from longhouse.errors import SetupError
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.inbox import Inbox
from longhouse.settings import Settings
from longhouse.store import sessions as session_store
from longhouse.store.capsules import format, importing
from longhouse.store.capsules.format import Replayed
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database

SessionId = Annotated[
    str, typer.Argument(help="The id, as `longhouse sessions list` shows it; its beginning is enough where one has it.")
]


async def export_session(
    settings: Settings,
    session_id: SessionId,
    file: Annotated[Path | None, typer.Argument(help="The file to write; by default the id with .capsule.")] = None,
) -> None:
    """Write a session and the agents that it called to one file, with all that their requests were made with."""
    async with _open(settings) as sessions:
        session_id = await found(sessions.db, session_id)
        target = file or Path(f"{session_id.replace('/', '_')}.capsule")
        manifest = await capsule_making.make(sessions, target, session_id)
    if manifest is None:
        raise SetupError(f"the session {session_id!r} was deleted meanwhile.")
    typer.echo(f"{target} is written and was read back: {len(manifest.sessions)} sessions, {len(manifest.files)} files")
    for one in manifest.sessions:
        typer.echo(_line(one, None))


async def import_capsule(
    settings: Settings, file: Annotated[Path, typer.Argument(help="A file that `sessions export` wrote.")]
) -> None:
    """Open a capsule read-only: it can be shown and replayed, and never goes on."""
    format.verify(file)
    async with _open(settings) as sessions:
        with format.reading(file) as capsule:
            ids = await importing.bring(sessions.db, capsule)
            top = capsule.manifest.session
        results = await capsule_making.replay(sessions, top)
    typer.echo(f"imported, read-only: {len(ids)} sessions; `longhouse sessions show {plain(top)}` draws them")
    _print_results(results)


async def replay_session(settings: Settings, session_id: SessionId) -> None:
    """Fold a session again, and compose every request again; ends with 1 if anything is not as it was."""
    async with _open(settings) as sessions:
        results = await capsule_making.replay(sessions, await found(sessions.db, session_id))
    _print_results(results)
    if any((then and then.fold != now.fold) or now.same != now.requests for now, then in results):
        raise typer.Exit(1)


def _print_results(results: Sequence[tuple[Replayed, Replayed | None]]) -> None:
    for now, then in results:
        typer.echo(_line(now, then))


def _line(now: Replayed, then: Replayed | None) -> str:
    parts = [plain(now.id), now.state, f"{now.head} events"]
    if then:
        parts.append("the same state" if then.fold == now.fold else f"ANOTHER STATE, it was {plain(then.state)}")
    parts.append(f"{now.same} of {now.requests} requests the same")
    return "  ".join(parts)


@asynccontextmanager
async def _open(settings: Settings) -> AsyncIterator[Sessions]:
    """Sessions as the API has them, without a server."""
    settings = configure(settings).settings
    async with open_ledger(settings) as ledger:
        catalog = Catalog(ledger.db, model=settings.llm_model)
        yield Sessions(inbox_of(ledger.db), catalog, memory_of(settings, ledger))


def inbox_of(db: Database) -> Inbox:
    # Nobody follows this process: workers and gateways find what was written in the database.
    return Inbox(db, Bus())


async def found(db: Database, start: str) -> str:
    """The session that an id means, or the beginning of one."""
    ids = await session_store.beginning_with(db, start) if start else []
    if not ids:
        raise SetupError(f"there is no session {start!r}; `longhouse sessions list` shows the newest.")
    if len(ids) > 1:
        raise SetupError(f"several sessions begin with {start!r}: {', '.join(map(plain, ids))}; name one of them.")
    return ids[0]
