"""Memory files as passages: indexed when a search needs them, and never longer than the file is there."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from longhouse.memory.dates import date_words
from longhouse.search.bounded_embedder import HURRIED_WITHIN
from longhouse.search.passages import Passage, PassageIndex
from longhouse.store.database import Transaction
from longhouse.store.memory import memory_files
from longhouse.store.memory.memory_files import FileVersion, Memories
from longhouse.store.memory.memory_scopes import Scope

KIND: Final = memory_files.PASSAGES
CHUNK: Final = 800
"""Characters of one passage: a thought or two, so that the answer to a question is most of what is shown."""
AT_ONCE: Final = 200_000
"""Bytes that one search indexes before it begins; the rest is left to the next ones."""


class FilePassages(msgspec.Struct, frozen=True):
    """Keeps the index of memory files up to date, one scope at a time."""

    index: PassageIndex
    memories: Memories

    async def refresh(self, scope: Scope) -> None:
        """Indexes files of the scope that were written since the last search, the newest first."""
        files = await self.memories.unindexed(scope, most=AT_ONCE)
        if not files:
            return
        passages = [passage for file in files for passage in passages_of(scope, file)]
        ready = await self.index.prepare(passages, within=HURRIED_WITHIN)

        async def store(tx: Transaction) -> None:
            # Under the scope's lock a file either is as it was read, or what was read is not written.
            await tx.lock(memory_files.LOCKS, scope.lock)
            current = await memory_files.versions(tx, scope, [file.path for file in files])
            kept = {file.path for file in files if current.get(file.path) == file.version}
            await self.index.store(tx, ready, lambda entry: entry.group in kept)

        await self.index.db.together(store)


def passages_of(scope: Scope, file: FileVersion) -> Iterator[Passage]:
    """The passages of a file; each is found by the file's name and its heading, and by the passages next to it."""
    for number, (heading, text) in enumerate(chunks(file.content)):
        yield Passage(
            scope=scope.passages,
            kind=KIND,
            source=memory_files.passage_source(file.path, number),
            group=file.path,
            text=text,
            title=f"{file.path}: {heading}" if heading else file.path,
            context=date_words(file.updated_at, text),
            at=file.updated_at,
            facts={"version": file.version, "source_type": KIND, "target_type": KIND},
            thread=f"file {file.path}",
            position=number,
        )


def chunks(content: str) -> list[tuple[str, str]]:
    """The text in pieces of about `CHUNK` characters, each with the heading above it; paragraphs stay whole if they
    can. A text without words gives one piece, so that the file counts as indexed."""
    found: list[tuple[str, str]] = []
    heading, piece = "", ""
    for paragraph in _paragraphs(content):
        is_heading = paragraph.startswith("#")
        if piece and (is_heading or len(piece) + len(paragraph) > CHUNK):
            found.append((heading, piece))
            piece = ""
        if is_heading:
            heading = paragraph.splitlines()[0].strip("# ")
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph
    return [*found, (heading, piece)]


def _paragraphs(content: str) -> Iterator[str]:
    block: list[str] = []
    for line in [*content.splitlines(), ""]:
        if block and (not line.strip() or line.startswith("#")):
            yield from _pieces("\n".join(block))
            block = []
        if line.strip():
            block.append(line.rstrip())


def _pieces(text: str) -> Sequence[str]:
    """A long paragraph in pieces, cut at the last space before the limit where there is one."""
    pieces = []
    while len(text) > CHUNK:
        cut = max(text.rfind(mark, CHUNK // 2, CHUNK) for mark in ("\n", ". ", "。", " ")) + 1 or CHUNK
        pieces.append(text[:cut].strip())
        text = text[cut:].strip()
    return [*pieces, text]
