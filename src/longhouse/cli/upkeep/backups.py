"""`longhouse backup` and `longhouse restore`: a whole house in one file."""

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Final

import typer

from longhouse.cli.house import open_as_it_is
from longhouse.cli.one_line import plain
from longhouse.cli.running import group
from longhouse.errors import SetupError
from longhouse.settings import Settings
from longhouse.store.backups import backup as backups
from longhouse.store.backups import restore as restores
from longhouse.store.backups.backup import BackupManifest
from longhouse.store.postgres import unfinished

EVERY: Final = 1.0
"""Seconds between two lines about the same table."""


class ProgressLines:
    """What is being done, on standard error: a line for each table, and one a second for a long one."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._name, self._said_at = "", time.monotonic()

    def __call__(self, name: str, size: int) -> None:
        now = time.monotonic()
        if name == self._name and now - self._said_at < EVERY:
            return
        if name != self._name and size < 2**20 and now - self._said_at < EVERY:
            return  # small tables are done before their line is read
        self._name, self._said_at = name, now
        print(f"{self._doing} {plain(name)}: {_size(size)}", file=sys.stderr, flush=True)


async def backup(
    settings: Settings,
    file: Annotated[Path, typer.Argument(help="The file to write; it must not exist yet.")],
) -> None:
    """Write everything to one file, while it serves. Keep it safe: it holds all conversations."""
    async with open_as_it_is(settings) as (db, _):
        manifest = await backups.back_up(db, file, ProgressLines("copying"))
    typer.echo(f"{file} is written and was read back: {_size(file.stat().st_size)}, {_contents(manifest)}")


async def restore(
    settings: Settings,
    file: Annotated[Path, typer.Argument(help="A file that `longhouse backup` wrote.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Restore over a house that has sessions: what is there is gone.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only read the file, and say what is in it.")] = False,
) -> None:
    """Restore a backup here: in LONGHOUSE_DATA_DIR, or in LONGHOUSE_DATABASE_URL."""
    with backups.opened(file) as source:
        restores.split(source.manifest)
    backups.verify(file, ProgressLines("reading"))
    with backups.opened(file) as source:
        if check:
            typer.echo(f"{file} is whole: {_contents(source.manifest)}")
            return
        noted = nullcontext() if settings.database_url else unfinished.noted(settings.data_dir, file)
        with noted:
            async with open_as_it_is(settings, create=True, restores=True) as (db, postgres):
                if postgres and not postgres.owned:
                    raise SetupError(f"Another process uses {settings.data_dir}: stop it, and restore again.")
                migrated = await restores.restore(
                    db,
                    source,
                    replace=replace,
                    alone=postgres is not None,
                    may_extend=bool(postgres.vectors) if postgres else True,
                    progress=ProgressLines("restoring"),
                )
        for name in migrated:
            typer.echo(f"applied {name}")
        typer.echo(f"it is restored: {_contents(source.manifest)}")


def _contents(manifest: BackupManifest) -> str:
    """What a backup holds, in a few words."""
    counts = ((manifest.rows_of(table), word) for table, word in (("sessions", "sessions"), ("journal", "events")))
    made = f"made {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC by Longhouse {plain(manifest.longhouse, 40)}"
    return f"{', '.join(f'{count} {word}' for count, word in counts)}, schema {manifest.schema:04d}, {made}"


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MB" if count >= 2**20 // 10 else f"{count / 1024:.1f} kB"


cli = group({"backup": backup, "restore": restore})
