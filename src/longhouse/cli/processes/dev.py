"""`longhouse dev`: serves a project, and reads its files again when they are saved.

A reload opens the whole house anew beside the one that serves, as a second process would on the same database, and
then lets the former leave: sessions go on at their next step, in their own versions. A house that does not open
changes nothing.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer
from msgspec.structs import replace
from pydantic import SecretStr
from starlette.types import Receive, Scope, Send

from longhouse import background
from longhouse.agents.entrypoints import imported_anew
from longhouse.app import App, open_app
from longhouse.app.store import open_store
from longhouse.cli.processes.serving import serve_house
from longhouse.cli.running import AgentsFile, ConfigFile, Host, Port, given, run
from longhouse.config.loader import LoadedFiles
from longhouse.config.mistakes import FileError
from longhouse.errors import LonghouseError
from longhouse.journal.words.visible_text import readable_lines
from longhouse.settings import Settings

LOOK_EVERY: Final = 0.3
"""Seconds between two looks at the files. What has changed is read once it is the same at two looks."""
LEAVE_WITHIN: Final = 60.0
"""Seconds that the open responses of a former house have to end."""
WATCHED: Final = (".py", ".yaml", ".yml")
MOST_FILES: Final = 5_000
NOT_OURS: Final = ("__pycache__", "node_modules", "site-packages")
NO_FILES: Final = (
    "there is no agents.yaml in this folder, so the agents that come with Longhouse are served; "
    "`longhouse init NAME` makes a project"
)

Seen = Mapping[Path, tuple[int, int]]
"""File -> when it was changed, and its size."""

cli = typer.Typer()


@cli.command()
def dev(host: Host = None, port: Port = None, config_file: ConfigFile = None, agents_file: AgentsFile = None) -> None:
    """Serve a project while you work on it: its files are read again when they are saved, and what changed is said."""
    settings = Settings(**given(host=host, port=port, config_file=config_file, agents_file=agents_file))
    run(settings, partial(serve_house, open_house=open_reloading))


@asynccontextmanager
async def open_reloading(settings: Settings) -> AsyncIterator[App]:
    """Opens a house that follows its files; the Postgres that it brings along stays the same."""
    async with open_store(settings) as (_, postgres):
        if postgres:
            settings = settings.model_copy(update={"database_url": SecretStr(postgres.dsn)})
        async with Reloader(settings).running() as reloader:
            if not reloader.app.files.read:
                typer.echo(NO_FILES)
            yield replace(reloader.app, asgi=reloader, postgres=postgres)


class Reloader:
    """The house as its files are now: an ASGI application that hands each request to it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._house: House | None = None
        self._leaving: set[asyncio.Task[str]] = set()
        self._named: set[Path] = set()
        """Files that the files of the project have named so far, such as prompts."""
        self._before: Seen = {}
        self._seen: Seen = {}

    @property
    def app(self) -> App:
        assert self._house is not None
        return self._house.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._house is not None
        await self._house(scope, receive, send)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Reloader"]:
        last = await self._look()
        self._house = await House.opened(self._settings)
        self._keep(last, self.app.files.read)
        try:
            async with background.running("files", self._follow, every=LOOK_EVERY):
                yield self
        finally:
            await asyncio.gather(self._house.close(), *self._leaving, return_exceptions=True)

    async def _look(self) -> Seen:
        named = {path for path in (self._settings.mcp_config, Path(".env"), *self._named) if path}
        return await asyncio.to_thread(lambda: dict(seen(Path.cwd(), named)))

    def _keep(self, last: Seen, read: Iterable[Path]) -> None:
        """Remembers the files as they were before opening, so that a later save is not missed, and files that are newly
        named."""
        self._named |= {*read}
        self._before = {**{path: at for one in self._named for path, at in _stamp(one.absolute())}, **last}

    async def _follow(self) -> None:
        """One look: files that changed, and are stable now, are read."""
        last, self._seen = self._seen, await self._look()
        if self._seen == last and last != self._before:
            changed = changed_files(self._before, last)
            self._before = last
            await self._reload(changed, last)

    async def _reload(self, changed: list[str], last: Seen) -> None:
        before = self._house
        assert before is not None
        if ".env" in changed:
            typer.echo(".env has changed: start `longhouse dev` again to use it")
        if changed == [".env"]:
            return
        try:
            with imported_anew(before.app.files.packages, last):
                house = await House.opened(self._settings)
        except LonghouseError as error:
            self._keep(last, error.read if isinstance(error, FileError) else ())
            says = "; ".join(readable_lines(str(error)).splitlines()).replace(":; ", ": ")
            # Said last: whoever reads that a file is missing may write it at once.
            typer.echo(f"not reloaded, what was there goes on serving: {says}")
            return
        house.app.authenticator.stay_shut(before.app.authenticator)
        self._house = house
        self._keep(last, self.app.files.read)
        differences = sorted(compared(before.app.files, self.app.files))
        if code := [name for name in changed if name.endswith(".py")]:
            differences = differences or [f"the code of {', '.join(code)}"]
        if differences:
            typer.echo(f"reloaded: {'; '.join(differences)}")
        leaving = asyncio.create_task(background.guarded("former_house", before.leave()))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


class House:
    """An open house, in a task of its own: what is opened in a task is closed in it."""

    def __init__(self) -> None:
        self._opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._requests = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def app(self) -> App:
        app: App = self._opened.result()
        return app

    @classmethod
    async def opened(cls, settings: Settings) -> "House":
        house = cls()
        house._task = opening = asyncio.create_task(house._live(settings))
        try:
            await asyncio.wait((house._opened, opening), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            raise
        if opening.done():
            await opening
        return house

    async def _live(self, settings: Settings) -> None:
        async with open_app(settings) as app:
            self._opened.set_result(app)
            await self._closing.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Counts a request from its first byte: one that is not authenticated yet is in flight, too."""
        self._requests += 1
        self._is_idle.clear()
        try:
            await self.app.asgi(scope, receive, send)
        finally:
            self._requests -= 1
            if not self._requests:
                self._is_idle.set()

    async def leave(self) -> None:
        """Begins nothing new, lets open responses end, and closes."""
        self.app.worker.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_WITHIN):
                await self._is_idle.wait()
        self.app.authenticator.inflight.end_all()
        await self.close()

    async def close(self) -> None:
        self._closing.set()
        if self._task:
            await self._task


def compared(before: LoadedFiles, after: LoadedFiles) -> Iterator[str]:
    """What is new, changed or gone, in words."""
    was, now = _described(before), _described(after)
    for name in {**was, **now}:
        if name not in was:
            yield f"{name} is new"
        elif name not in now:
            yield f"{name} is gone from the files, and stays in the catalog until it is retired"
        elif was[name] != now[name]:
            yield f"{name} is changed"


def _described(files: LoadedFiles) -> dict[str, Any]:
    agents = {f"agent {one.name}": one for one in files.templates}
    return {**agents, **{f"tool {name}": one for name, one in files.tools.items()}}


def seen(folder: Path, named: Iterable[Path]) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Code and YAML files below a folder, and the named ones, as they are now."""
    found = 0
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_ours(Path(place, name)))
        for name in files:
            if name.endswith(WATCHED) and found < MOST_FILES:
                found += 1
                yield from _stamp(Path(place, name))
    for path in named:
        yield from _stamp(path.absolute())


def _is_ours(folder: Path) -> bool:
    is_hidden = folder.name.startswith(".") or folder.name in NOT_OURS
    return not is_hidden and not (folder / "pyvenv.cfg").exists()


def _stamp(path: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    try:
        about = path.stat()
    except OSError:
        return
    yield path, (about.st_mtime_ns, about.st_size)


def changed_files(before: Seen, after: Seen) -> list[str]:
    """The files that are new, changed or gone, by their names."""
    return sorted({path.name for path in {**before, **after} if before.get(path) != after.get(path)})
