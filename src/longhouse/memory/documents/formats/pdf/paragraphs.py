"""Blocks of a page: headings, paragraphs, lists and tables, in its order."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from longhouse.memory.documents.formats import tables
from longhouse.memory.documents.formats.pdf.columns import table
from longhouse.memory.documents.formats.pdf.lines import BULLET, LEADERS, SENTENCE_END, Line, joined
from longhouse.memory.documents.parsed import Block

_NUMBERED_ITEM: Final = re.compile(r"\(?\d{1,3}[.)]\s")


def spacing_of(pages: Iterable[Sequence[Line]]) -> float:
    """How far lines of a paragraph are apart, in sizes of their letters."""
    steps = Counter(
        round((above.end_y - below.y) / above.size, 1)
        for lines in pages
        for above, below in itertools.pairwise(lines)
        if 0.8 * above.size < above.end_y - below.y < 3 * above.size and above.size == below.size
    )
    return steps.most_common(1)[0][0] if steps else 1.3


def blocks_of(parts: Iterable[Block | Line], page: int, spacing: float) -> Iterator[Block]:
    """The blocks of a page whose headings are found."""
    lines: list[Line] = []
    for part in parts:
        if isinstance(part, Line):
            lines.append(part)
            continue
        yield from _body(lines, page, spacing)
        lines = []
        yield part
    yield from _body(lines, page, spacing)


def _body(lines: Sequence[Line], page: int, spacing: float) -> Iterator[Block]:
    """Paragraphs, lists and tables, in the order of the page."""
    start = 0
    pending = 0
    while start < len(lines):
        rows, end = table(lines, start)
        if rows:
            yield from _paragraphs(lines[pending:start], page, spacing)
            yield Block("table", tables.markdown(rows), page)
            pending = start = end
        else:
            start += 1
    yield from _paragraphs(lines[pending:], page, spacing)


def _paragraphs(lines: Sequence[Line], page: int, spacing: float) -> Iterator[Block]:
    """Lines that belong together as one; items of a list together."""
    items: list[str] = []
    for paragraph in _grouped(lines, spacing):
        text = ""
        for line in paragraph:
            text = joined(text, line.text)
        text = LEADERS.sub(" … ", text)
        if bullet := BULLET.match(text):
            items.append("- " + text[bullet.end() :])
        elif _NUMBERED_ITEM.match(text):
            items.append(text)
        else:
            yield from _listed(items, page)
            items = []
            yield Block("text", text, page)
    yield from _listed(items, page)


def _listed(items: Sequence[str], page: int) -> Iterator[Block]:
    if items:
        yield Block("list", "\n".join(items), page)


def _grouped(lines: Sequence[Line], spacing: float) -> Iterator[list[Line]]:
    group: list[Line] = []
    for line in lines:
        if group and _begins_paragraph(group[-1], line, spacing):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _begins_paragraph(above: Line, line: Line, spacing: float) -> bool:
    if BULLET.match(line.text) or _NUMBERED_ITEM.match(line.text):
        return True
    ended = above.text.endswith(SENTENCE_END)
    step = above.end_y - line.y
    if step < 0:
        return ended or not line.text[:1].islower()
    is_far = step > max(spacing * 1.25, 1.4) * max(above.size, line.size)
    is_indented = line.left > above.left + 0.8 * line.size
    return is_far or (ended and is_indented) or abs(above.size - line.size) > 0.15 * above.size
