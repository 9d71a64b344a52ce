"""What a parser hands over, and how it becomes a document: pages are cut, headings are numbered."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from longhouse.memory.documents import clean
from longhouse.memory.documents.formats import headings
from longhouse.memory.documents.parsed import Block, Format, OutlineLine, ParsedDocument, ParseLimits, UnreadableFile

PAGE_LENGTH: Final = 3_000
"""Characters of a page of a file that has none of its own."""
MAX_TITLE: Final = 300
_MAX_HEADS: Final = 10
"""Headings that stay with the text below them; a file of headings alone has pages too."""

_SENTENCE_END: Final = re.compile(r"[.!?…][\"'»”)]?\s|[。！？；]|\n")  # noqa: RUF001 - signs of another script


class DraftDocument(msgspec.Struct, frozen=True):
    """What a parser found. Without pages of the file's own, they are cut; without an outline, it is the headings."""

    blocks: list[Block]
    title: str = ""
    pages: int = 0
    outline: list[OutlineLine] | None = None


def finish(draft: DraftDocument, name: str, kind: Format, limits: ParseLimits) -> ParsedDocument:
    """The document of a draft."""
    blocks = [_numbered(block) for block in _bounded(_tidy(draft.blocks), limits)]
    if not blocks:
        raise UnreadableFile("holds no text: nothing of it could be found later")
    blocks = [piece for block in blocks for piece in pieces(block)] if draft.pages else list(_paged(blocks))
    pages = draft.pages or blocks[-1].page
    if pages > limits.pages:
        raise UnreadableFile(f"has {pages} pages, and a document may have {limits.pages}: split it")
    outline = draft.outline
    if outline is None:
        outline = [OutlineLine(b.text, b.level, b.page, b.number) for b in blocks if b.kind == "heading"]
    title = clean.one_line(clean.cleaned(draft.title)) or _stem(name)
    return ParsedDocument(
        title=title[:MAX_TITLE], format=kind, pages=pages, blocks=tuple(blocks), outline=tuple(outline)
    )


def _stem(name: str) -> str:
    last = clean.cleaned(re.split(r"[/\\]", name)[-1])
    return last.rsplit(".", 1)[0] or last


def _tidy(blocks: Iterable[Block]) -> Iterator[Block]:
    """Without what is not shown, and without blocks in which nothing is left."""
    for block in blocks:
        text = clean.cleaned(block.text)
        text = clean.one_line(text) if block.kind == "heading" else text.strip("\n").rstrip()
        if block.kind == "heading" and len(text) > MAX_TITLE:
            yield Block("text", text, block.page)
        elif text.strip():
            yield replace(block, text=text)


def _bounded(blocks: Iterable[Block], limits: ParseLimits) -> Iterator[Block]:
    size = 0
    for count, block in enumerate(blocks, start=1):
        if count > limits.blocks:
            raise UnreadableFile(f"holds more than {limits.blocks:,} paragraphs: split it")
        size += len(block.text.encode())
        if size > limits.output_bytes:
            raise UnreadableFile(f"holds more than {limits.output_bytes // 1_000_000} MB of text: split it")
        yield block


def _numbered(block: Block) -> Block:
    return replace(block, number=headings.number_of(block.text)) if block.kind == "heading" else block


def _paged(blocks: Iterable[Block]) -> Iterator[Block]:
    """Cut into pages at headings and between paragraphs; a heading stays with what follows it."""
    page, length = 1, 0
    heads: list[Block] = []
    for block in blocks:
        if block.kind == "heading" and len(heads) < _MAX_HEADS:
            heads.append(block)
            continue
        for piece in pieces(block):
            coming = len(piece.text) + sum(len(head.text) for head in heads)
            begins_part = any(head.level <= 2 for head in heads) and length > PAGE_LENGTH // 2
            if length and (length + coming > PAGE_LENGTH or begins_part):
                page, length = page + 1, 0
            yield from (replace(one, page=page) for one in (*heads, piece))
            heads = []
            length += coming
    yield from (replace(head, page=page) for head in heads)


def pieces(block: Block) -> Iterator[Block]:
    """A block that is longer than a page, in several; a table has its header in each."""
    if len(block.text) <= PAGE_LENGTH:
        yield block
        return
    cut = {"table": _table_pieces, "code": _code_pieces}.get(block.kind, _text_pieces)
    yield from (replace(block, text=text) for text in cut(block.text))


def _table_pieces(text: str) -> Iterator[str]:
    head, rule, *rows = text.split("\n")
    for part in _packed(rows, PAGE_LENGTH - len(head) - len(rule)):
        yield "\n".join((head, rule, part))


def _code_pieces(text: str) -> Iterator[str]:
    fence, *lines = text.split("\n")
    for part in _packed(lines[:-1], PAGE_LENGTH):
        yield f"{fence}\n{part}\n{lines[-1]}"


def _packed(lines: Iterable[str], most: int) -> Iterator[str]:
    """As many lines together as fit."""
    kept: list[str] = []
    size = 0
    for line in lines:
        if kept and size + len(line) > most:
            yield "\n".join(kept)
            kept, size = [], 0
        kept.append(line)
        size += len(line) + 1
    if kept:
        yield "\n".join(kept)


def _text_pieces(text: str) -> Iterator[str]:
    """Cut after the last sentence or line that fits, else at a space, else anywhere."""
    start = 0
    while len(text) - start > PAGE_LENGTH:
        least, most = start + PAGE_LENGTH // 2, start + PAGE_LENGTH
        ends = [found.end() for found in _SENTENCE_END.finditer(text, least, most)]
        end = ends[-1] if ends else text.rfind(" ", least, most) + 1 or most
        yield text[start:end].strip()
        start = end
    yield text[start:].strip()
