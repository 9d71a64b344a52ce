"""`longhouse tools …` and `longhouse templates …`: catalog commands that work directly on the database."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from longhouse.app import open_store, validator_of
from longhouse.catalog import security
from longhouse.catalog.diff import differences
from longhouse.catalog.service import merge
from longhouse.cli import tool_check
from longhouse.config.effective import configure
from longhouse.errors import SetupError
from longhouse.settings import Settings, comma_list
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.catalog.publish import LAST
from longhouse.store.catalog.repository import CatalogEntry, Kind, Version, VersionRepository

BY: Final = "command line"
"""The publisher recorded for these commands."""
BATCH: Final = 1_000
PAGE: Final = 1_000

Run = Callable[[Settings, Callable[[], Coroutine[Any, Any, None]]], None]
Name = Annotated[str, typer.Argument(help="The name.")]
Number = Annotated[int, typer.Argument(help="The number of a version.", min=1, max=LAST)]


def commands(run: Run, kind: Kind) -> typer.Typer:
    cli = typer.Typer(help=f"The {kind}s of the catalog: publish them, compare them, roll them back.")
    cli.info.no_args_is_help = True
    _add_reading(cli, run, kind)
    _add_changing(cli, run, kind)
    if kind == "tool":
        _add_deciding(cli, run)
        _add_asking(cli, run)
    return cli


def _add_reading(cli: typer.Typer, run: Run, kind: Kind) -> None:
    @cli.command(name="list")
    def list_names(inactive: Annotated[bool, typer.Option(help="Also those that are not active.")] = True) -> None:
        """List the names, each with its active version."""
        settings = Settings()
        run(settings, lambda: list_all(settings, kind, inactive=inactive))

    @cli.command()
    def show(name: Annotated[str, typer.Argument(help="A name, or name@version.")]) -> None:
        """Print a descriptor as JSON: the active version, or the one you name."""
        settings = Settings()
        run(settings, lambda: show_one(settings, kind, name))

    @cli.command()
    def versions(name: Name) -> None:
        """List the versions of a name, newest first."""
        settings = Settings()
        run(settings, lambda: list_versions(settings, kind, name))

    @cli.command()
    def diff(name: Name, older: Number, newer: Number) -> None:
        """Print the differences between two versions."""
        settings = Settings()
        run(settings, lambda: compare(settings, kind, name, older, newer))


def _add_changing(cli: typer.Typer, run: Run, kind: Kind) -> None:
    @cli.command()
    def publish(
        file: Annotated[Path, typer.Argument(help="JSON: one descriptor or a list; or JSONL: one on each line.")],
        activate: Annotated[bool, typer.Option(help="Make what is published active.")] = True,
    ) -> None:
        """Publish descriptors from a file. Unchanged content makes no new version."""
        settings = Settings()
        run(settings, lambda: publish_file(settings, kind, file, activate=activate))

    @cli.command()
    def activate(name: Name, version: Number) -> None:
        """Make a version active."""
        settings = Settings()
        run(settings, lambda: activate_one(settings, kind, name, version))

    @cli.command()
    def rollback(name: Name) -> None:
        """Make the previously active version active again."""
        settings = Settings()
        run(settings, lambda: roll_back(settings, kind, name))

    @cli.command()
    def deactivate(name: Name) -> None:
        """Make no version active; a rollback restores the last one."""
        settings = Settings()
        run(settings, lambda: deactivate_one(settings, kind, name, retire=False))

    @cli.command()
    def retire(name: Name) -> None:
        """Remove a name from lists and from use; turns that began with it keep it."""
        settings = Settings()
        run(settings, lambda: deactivate_one(settings, kind, name, retire=True))


def _add_deciding(cli: typer.Typer, run: Run) -> None:
    @cli.command()
    def policy(
        name: Name,
        *,
        risk_level: Annotated[str | None, typer.Option(help="low, medium or high.")] = None,
        per_minute: Annotated[int | None, typer.Option(help="Calls of one owner in a minute.", min=1)] = None,
        templates: Annotated[str | None, typer.Option(help="The only ones that may use it, with commas.")] = None,
        sub_agents: Annotated[bool | None, typer.Option(help="May agents use it that others have called?")] = None,
        needs_approval: Annotated[bool | None, typer.Option(help="Do its calls wait for a person?")] = None,
        enabled: Annotated[bool | None, typer.Option("--on/--off", help="Is it offered at all?")] = None,
        clear: Annotated[bool, typer.Option(help="First take away what was said before.")] = False,
    ) -> None:
        """Show a tool's effective security policy, or override it, whoever published the tool."""
        settings = Settings()
        allow = {"templates": comma_list(templates), "sub_agents": sub_agents}
        said = {
            "risk_level": risk_level,
            "allow": _given(**allow) or None,
            "rate_limits": _given(per_minute=per_minute) or None,
            "needs_approval": needs_approval,
            "enabled": enabled,
        }
        run(settings, lambda: decide(settings, name, _given(**said), clear=clear))


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


async def decide(settings: Settings, name: str, said: dict[str, Any], *, clear: bool) -> None:
    async with _opened(settings, "tool") as (shelf, catalog):
        tool = await _version(shelf, name, None)
        if said or clear:
            held = await security.decide(catalog, tool, lambda before: merge({} if clear else before, said), by=BY)
        else:
            held = await security.held(catalog, tool)
        typer.echo(msgspec.json.format(msgspec.json.encode(held.shown())).decode())


def _add_asking(cli: typer.Typer, run: Run) -> None:
    @cli.command()
    def describe(place: Annotated[str, typer.Argument(help="A class, as package.module:ClassName.")]) -> None:
        """Print the complete descriptor of a class, ready to publish."""
        tool_check.describe(Settings(), place)

    @cli.command()
    def check() -> None:
        """Check whether every active tool can be used here; exit code 1 if one cannot."""
        settings = Settings()
        run(settings, lambda: tool_check.check_all(settings))


@asynccontextmanager
async def _opened(settings: Settings, kind: Kind) -> AsyncIterator[tuple[VersionRepository[Any], Catalog]]:
    async with open_store(settings, create=False) as (db, _):
        catalog = Catalog(db, model=settings.llm_model)
        shelf: VersionRepository[Any] = catalog.tools if kind == "tool" else catalog.templates
        yield shelf, catalog


async def list_all(settings: Settings, kind: Kind, *, inactive: bool) -> None:
    async with _opened(settings, kind) as (shelf, _):
        after: str | None = None
        while page := await shelf.page(after=after, limit=PAGE, inactive=inactive):
            for one in page:
                typer.echo(_told(one))
            after = page[-1].name


async def show_one(settings: Settings, kind: Kind, name: str) -> None:
    async with _opened(settings, kind) as (shelf, _):
        plain, at, number = name.partition("@")
        found = await _version(shelf, plain, _number(number) if at else None)
        typer.echo(msgspec.json.format(msgspec.json.encode({**found.descriptor, "version": found.version})).decode())


async def list_versions(settings: Settings, kind: Kind, name: str) -> None:
    async with _opened(settings, kind) as (shelf, _):
        await _version(shelf, name, 1)
        before: int | None = None
        while page := await shelf.versions(name, before=before, limit=PAGE):
            for one in page:
                active = ", active" if one.is_active else ""
                when = f"{one.published_at:%Y-%m-%d %H:%M}"
                typer.echo(f"{one.name}@{one.version}  published {when} by {one.published_by}{active}")
            before = page[-1].version


async def compare(settings: Settings, kind: Kind, name: str, older: int, newer: int) -> None:
    async with _opened(settings, kind) as (shelf, _):
        before, after = await _version(shelf, name, older), await _version(shelf, name, newer)
    for one in differences(before.descriptor, after.descriptor):
        typer.echo(f"{one.path}: {_json(one.before)} -> {_json(one.after)}")


async def publish_file(settings: Settings, kind: Kind, file: Path, *, activate: bool) -> None:
    sent = read_file(file)
    async with _opened(settings, kind) as (shelf, catalog):
        # Configuration files are read too: their keys and models apply here as they do for the server.
        new, admission = 0, validator_of(configure(settings), catalog)
        for start in range(0, len(sent), BATCH):
            some = sent[start : start + BATCH]
            for one in await admission.publish(shelf, some, by=BY, activate=activate):
                new += one.is_new
                state = "" if one.is_active else ", not active"
                typer.echo(f"{one.name}@{one.version}{'' if one.is_new else ', unchanged'}{state}")
                for warning in one.warnings:
                    typer.echo(f"{one.name}: {warning}", err=True)
    typer.echo(f"{new} new, {len(sent) - new} unchanged", err=True)


async def activate_one(settings: Settings, kind: Kind, name: str, version: int) -> None:
    async with _opened(settings, kind) as (shelf, _):
        await _version(shelf, name, version)
        await shelf.activate(name, version)
    typer.echo(f"{name}@{version} is active")


async def roll_back(settings: Settings, kind: Kind, name: str) -> None:
    async with _opened(settings, kind) as (shelf, _):
        version = await shelf.roll_back(name)
    if version is None:
        raise SetupError(f"there is no way back: {name!r} is not known, or no other version of it was active before.")
    typer.echo(f"{name}@{version} is active")


async def deactivate_one(settings: Settings, kind: Kind, name: str, *, retire: bool) -> None:
    async with _opened(settings, kind) as (shelf, _):
        found = await shelf.deactivate(name, retire=retire)
    if not found:
        raise _missing(kind, name)
    typer.echo(f"{name} is {'retired' if retire else 'not active any more'}")


def read_file(file: Path) -> list[Any]:
    """The descriptors of a file: one, a list, or one per line."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SetupError(f"{file} cannot be read: {error.strerror}.") from None
    if file.suffix == ".jsonl":
        lines = enumerate(content.splitlines(), 1)
        return [_decoded(line, f"{file}:{number} is not JSON") for number, line in lines if line.strip()]
    return _listed(_decoded(content, f"{file} is not JSON (name a file with one descriptor a line .jsonl)"))


def _decoded(content: bytes, complaint: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise SetupError(f"{complaint}: {error}.") from None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


async def _version(shelf: VersionRepository[Any], name: str, version: int | None) -> Version:
    if version is None and (named := await shelf.named(name)):
        version = named.active or named.latest
    found = await shelf.version(name, version) if version is not None else None
    if found is None:
        raise _missing(shelf.kind, name)
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise SetupError("write name@version with the number of a version.")
    return int(text)


def _missing(kind: Kind, name: str) -> SetupError:
    return SetupError(
        f"there is no {kind} {name!r}, or no such version of it; `longhouse {kind}s list` shows what is there."
    )


def _told(one: CatalogEntry) -> str:
    version = f"{one.name}@{one.active}" if one.active else f"{one.name}, not active, latest @{one.latest}"
    words = one.descriptor.get("description_short") or one.descriptor.get("base_agent_class", "")
    line = " ".join(str(words).split())[:80]
    return f"{version}  {line}"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
