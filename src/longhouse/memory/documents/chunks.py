"""Cuts a parsed document into chunks that a search can find, and into pages that an agent can read."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from longhouse.journal.messages import clean
from longhouse.lazy_pattern import compiled_later
from longhouse.memory.documents.parsed import Block

LONGEST: Final = 900
"""Characters of a chunk: a few paragraphs, which working memory keeps whole and which have one subject.

A character of Chinese, Japanese or Korean says as much as two of others, and counts twice.
"""
_WIDE: Final = compiled_later("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]")
_ENDS: Final = re.compile(r"(?<=[.!?…;])\s+|(?<=[\u3002\uff01\uff1f\uff1b])|\n+")
"""Where a long text may be cut: behind a sentence, or at the end of a line."""
_NO_SPACE_AFTER: Final = "\u3002\uff01\uff1f\uff1b"


class Chunk(msgspec.Struct, frozen=True):
    """Blocks that are found together, or a part of a long one."""

    text: str
    page: int
    section: int
    """Its entry of the outline."""
    kind: str
    """heading, text, table, list or code: what most of it is."""


def chunks_of(blocks: Sequence[Block], sections: Iterable[int]) -> Iterator[Chunk]:
    """The chunks in reading order: each lies on one page and in one section, and tables stand alone."""
    waiting: list[Chunk] = []
    size, has_text = 0, False
    for piece in _pieces(blocks, sections):
        length = _length(piece.text)
        if waiting and _begins_chunk(piece, waiting[-1], fits=size + length <= LONGEST, has_text=has_text):
            yield _joined(waiting)
            waiting, size, has_text = [], 0, False
        waiting.append(piece)
        size, has_text = size + length, has_text or piece.kind != "heading"
    if waiting:
        yield _joined(waiting)


def pages_of(blocks: Iterable[Block]) -> dict[int, str]:
    """The text of each page, as Markdown."""
    texts: dict[int, list[str]] = {}
    for block in blocks:
        if text := clean(block.text).strip():
            mark = f"{'#' * block.level} " if block.kind == "heading" and block.level else ""
            texts.setdefault(block.page, []).append(f"{mark}{text}")
    return {page: "\n\n".join(parts) for page, parts in texts.items()}


def _pieces(blocks: Sequence[Block], sections: Iterable[int]) -> Iterator[Chunk]:
    """Blocks, and the parts of long ones."""
    for block, section in zip(blocks, sections, strict=True):
        text = clean(block.text).strip()
        for part in _parts(block.kind, text):
            yield Chunk(part, block.page, section, block.kind)


def _begins_chunk(piece: Chunk, last: Chunk, *, fits: bool, has_text: bool) -> bool:
    if piece.page != last.page or not fits:
        return True
    # Headings stand before what they are the headings of.
    is_apart = piece.kind == "heading" or piece.section != last.section or "table" in (piece.kind, last.kind)
    return has_text and is_apart


def _joined(pieces: Sequence[Chunk]) -> Chunk:
    amounts = Counter[str]()
    for piece in pieces:
        amounts[piece.kind] += len(piece.text)
    body = {kind: amount for kind, amount in amounts.items() if kind != "heading"}
    kind = max(body or amounts, key=amounts.__getitem__)
    last = pieces[-1]
    return Chunk("\n\n".join(piece.text for piece in pieces), last.page, last.section, kind)


def _length(text: str) -> int:
    return len(text) + len(_WIDE.findall(text))


def _parts(kind: str, text: str) -> Iterator[str]:
    """The text, cut where it is too long."""
    if _length(text) <= LONGEST:
        if text:
            yield text
    elif kind == "table":
        yield from _table_parts(text)
    elif kind in ("list", "code"):
        yield from _packed(text.split("\n"), "\n")
    else:
        yield from _packed(_ENDS.split(text), " ")


def _table_parts(text: str) -> Iterator[str]:
    """Rows of a long table, each part under the table's own head."""
    lines = text.split("\n")
    has_head = len(lines) > 2 and set(lines[1]) <= set("|-: ")
    head, rows = (lines[:2], lines[2:]) if has_head else ([], lines)
    room = LONGEST - _length("\n".join(head))
    if room < LONGEST // 2:
        head, rows, room = [], lines, LONGEST
    for part in _packed(rows, "\n", room):
        yield "\n".join([*head, part])


def _packed(parts: Iterable[str], between: str, room: int = LONGEST) -> Iterator[str]:
    """Parts joined up to the length that there is room for; a part that is longer is cut."""
    waiting, size = "", 0
    for part in (piece for one in parts if one.strip() for piece in _slices(one, room)):
        length = _length(part)
        if waiting and size + length > room:
            yield waiting
            waiting, size = "", 0
        glue = "" if not waiting or (between == " " and waiting[-1] in _NO_SPACE_AFTER) else between
        waiting, size = f"{waiting}{glue}{part}", size + len(glue) + length
    if waiting:
        yield waiting


def _slices(text: str, room: int) -> Iterator[str]:
    """A text without sentences, cut between words, or else anywhere."""
    start = 0
    while start < len(text):
        part = text[start : start + room]
        if _length(part) > room:
            part = part[: room // 2]
        end = start + len(part)
        if end < len(text) and (space := part.rfind(" ", len(part) // 2)) > 0:
            end = start + space + 1
        yield text[start:end].rstrip()
        start = end
