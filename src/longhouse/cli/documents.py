"""`longhouse documents …`: add files, list, show and remove documents; directly in the database."""

import glob
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from longhouse.app.memory import open_library
from longhouse.cli.one_line import columns, plain
from longhouse.cli.owners import default_owner
from longhouse.cli.running import group
from longhouse.errors import SetupError
from longhouse.memory.documents import outline
from longhouse.memory.documents.detect import SUFFIXES
from longhouse.memory.documents.library import (
    DEEPEST,
    DocumentLibrary,
    DocumentOutcome,
    checked_reg_id,
    is_reg_id,
    reg_id_of,
)
from longhouse.memory.documents.parsed import DocumentError
from longhouse.settings import Settings
from longhouse.store.memory import documents
from longhouse.store.memory.documents import Document, UnknownDocument

Owner = Annotated[
    str | None, typer.Option(help="Of this owner; by default, while no API key is set, `local`; else shared ones.")
]
Shared = Annotated[bool, typer.Option("--shared", help="The document that all owners see.")]
RegId = Annotated[str, typer.Argument(help="The reg_id, as `longhouse documents list` shows it.")]

WIDEST: Final = 2_000
OTHERS: Final = 6
"""Owners that are looked for; one fewer is named."""


@dataclass(frozen=True, slots=True)
class _DocumentFile:
    path: Path
    reg_id: str
    is_outside: bool = False
    """A link that leads out of the folder in which it was found: whoever may write there could offer any file."""


async def add_documents(
    settings: Settings,
    paths: Annotated[list[str], typer.Argument(help="Files, folders, or patterns such as 'rules/*.pdf'.")],
    owner: Owner = None,
    reg_id: Annotated[str, typer.Option("--id", help="The reg_id of a single file; by default made of its name.")] = "",
    *,
    shared: Shared = False,
) -> None:
    """Add files as documents. A changed file becomes a new version; a bad one is named, and the rest goes on."""
    found = list(_files(paths))
    files, problems = _unique([one for one in found if not one.is_outside])
    problems += [
        f"{one.path} is a link that leads outside of what was named, and is left out; add it by its own path."
        for one in found
        if one.is_outside
    ]
    if reg_id:
        if len(files) != 1:
            raise SetupError(f"--id names one document, and there are {len(files)} files; leave it out.")
        files = [_DocumentFile(files[0].path, checked_reg_id(reg_id))]
    async with open_library(settings) as library:
        problems += await _add_all(library, files, await _whose(settings, library, owner, shared=shared))
    for problem in problems:
        typer.echo(f"longhouse: {plain(problem, WIDEST)}", err=True)
    if problems:
        raise typer.Exit(1)


async def list_documents(
    settings: Settings,
    *,
    owner: Annotated[str | None, typer.Option(help="Only what this owner sees; by default those of all.")] = None,
) -> None:
    """List the documents, each with its owner, or `shared`."""
    async with open_library(settings) as library:
        if owner is None:
            (shown, count), rest = await library.of_all_owners(), "--owner lists those of one owner"
        else:
            shown, count = await library.visible(owner), await library.count(owner)
            rest = "GET /v1/documents lists all, page by page"
        for one in shown:
            size = _count(one.pages, "page")
            typer.echo(columns(one.reg_id, f"version {one.version}", size, one.format, _owner(one), one.title))
        if (left_out := count - len(shown)) > 0:
            typer.echo(f"and {_count(left_out, 'more document')}; {rest}")


async def show_document(settings: Settings, reg_id: RegId, owner: Owner = None, *, shared: Shared = False) -> None:
    """Show a document: its versions and its table of contents."""
    async with open_library(settings) as library:
        document = await _found(library, await _whose(settings, library, owner, shared=shared), reg_id)
        versions = await documents.versions(library.db, document)
        sections = await library.outline(document)
    typer.echo(plain(f"{document.reg_id}: {document.title}"))
    size = f"{_count(document.pages, 'page')}, {_count(document.chunks, 'passage')}"
    typer.echo(plain(f"{size}, {_owner(document)}"))
    for version in versions:
        added = f"{version.added_at:%Y-%m-%d %H:%M:%S}"
        typer.echo(columns(f"version {version.version}", added, version.filename, f"{version.size} bytes"))
    for depth, line in _lines(outline.tree(sections, DEEPEST)):
        typer.echo(f"{'  ' * depth}{line}")


async def remove_document(settings: Settings, reg_id: RegId, owner: Owner = None, *, shared: Shared = False) -> None:
    """Remove a document with all its versions, pages and passages. What agents have read stays in their sessions."""
    async with open_library(settings) as library:
        whose = await _whose(settings, library, owner, shared=shared)
        if not is_reg_id(reg_id) or not await library.remove(whose, reg_id):
            await _found(library, whose, reg_id)
            raise SetupError(f"{reg_id!r} is a shared document: remove it with --shared.")
    typer.echo(f"removed {reg_id}")


async def _whose(settings: Settings, library: DocumentLibrary, owner: str | None, *, shared: bool) -> str | None:
    """The owner that is meant; None: everybody."""
    if shared and owner is not None:
        raise SetupError("a shared document has no owner: give --owner or --shared, not both.")
    if shared or owner is not None:
        return owner
    return await default_owner(settings, library.db)


def _owner(document: Document) -> str:
    return "shared" if document.owner is None else document.owner


async def _found(library: DocumentLibrary, owner: str | None, reg_id: str) -> Document:
    try:
        return await library.find(owner, reg_id)
    except UnknownDocument as error:
        others = await documents.owners(library.db, reg_id, OTHERS) if is_reg_id(reg_id) else []
        if not others:
            raise SetupError(f"{error}.") from None
        missing = (
            f"there is no shared document {reg_id!r}" if owner is None else f"{plain(owner)} has no document {reg_id!r}"
        )
        raise SetupError(f"{missing}, but {_having(others)} one: name the owner with --owner.") from None


def _having(owners: Sequence[str]) -> str:
    named = ", ".join(map(plain, owners[: OTHERS - 1])) + (" and others" if len(owners) == OTHERS else "")
    return f"{named} {'has' if len(owners) == 1 else 'have'}"


async def _add_all(library: DocumentLibrary, files: Sequence[_DocumentFile], owner: str | None) -> list[str]:
    """Adds the files one after another; returns what is wrong with those that could not be added."""
    problems = []
    console = Console(stderr=True)
    # What is printed goes above the bar on a terminal, and elsewhere where it belongs.
    progress = Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    )
    with progress:
        task = progress.add_task("", total=len(files))
        for file in files:
            progress.update(task, description=plain(file.path.name))
            try:
                added = await library.add(file.path, file.path.name, owner=owner, reg_id=file.reg_id)
                typer.echo(_said(added))
            except DocumentError as error:
                # The path in the place of the name, with which the sentence begins.
                problems.append(f"{file.path}{str(error).removeprefix(file.path.name)}")
            progress.advance(task)
    return problems


def _said(added: DocumentOutcome) -> str:
    one = added.document
    size = (_count(one.pages, "page"), _count(one.chunks, "passage"))
    return columns(f"{added.change} {one.reg_id}", f"version {one.version}", *size, _owner(one))


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _files(paths: Sequence[str]) -> Iterator[_DocumentFile]:
    """The files that are meant, with their reg_ids; below a folder these tell where a file lies in it."""
    for given in paths:
        path = Path(given)
        if path.is_dir():
            below = sorted(one for one in path.rglob("*") if _is_document(one.relative_to(path)) and one.is_file())
            if not below:
                raise SetupError(f"{given} holds no file that can be read ({', '.join(sorted(SUFFIXES))}).")
            for one in below:
                yield _DocumentFile(one, reg_id_of("_".join(one.relative_to(path).parts)), _leads_out(one, path))
        elif not path.exists() and glob.has_magic(given):
            found = sorted(one for one in map(Path, glob.glob(given, recursive=True)) if one.is_file())
            if not found:
                raise SetupError(f"no file matches {given!r}.")
            named = Path(*takewhile(lambda part: not glob.has_magic(part), path.parts))
            yield from (_DocumentFile(one, reg_id_of(one.name), _leads_out(one, named)) for one in found)
        else:
            yield _DocumentFile(path, reg_id_of(path.name))


def _leads_out(file: Path, folder: Path) -> bool:
    return not file.resolve().is_relative_to(folder.resolve())


def _is_document(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not any(part.startswith(".") for part in path.parts)


def _unique(files: Sequence[_DocumentFile]) -> tuple[list[_DocumentFile], list[str]]:
    """The files that have a reg_id for themselves, and a sentence for the others: one would replace the other."""
    named: dict[str, set[Path]] = {}
    for file in files:
        named.setdefault(file.reg_id, set()).add(file.path)
    problems = [
        f"{' and '.join(map(str, sorted(paths)))} would all be {reg_id}; add each alone, with --id."
        for reg_id, paths in named.items()
        if len(paths) > 1
    ]
    return [
        _DocumentFile(path, reg_id) for reg_id, paths in named.items() if len(paths) == 1 for path in paths
    ], problems


def _lines(items: Sequence[outline.OutlineEntry], depth: int = 0) -> Iterator[tuple[int, str]]:
    """The entries of a table of contents, with their depth."""
    for item in items:
        title = item["title"]
        number = "" if title.startswith(item["section_number"]) else f"{item['section_number']} "
        yield depth, columns(f"{number}{title}", f"P{item['page']}")
        yield from _lines(item["children"], depth + 1)


cli = group({"add": add_documents, "list": list_documents, "show": show_document, "remove": remove_document})
