"""Lines that run through a document: headers, footers and page numbers at the edges of its pages."""

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from longhouse.memory.documents.formats.pdf.lines import Line, Word

_PAGE_NUMBER: Final = re.compile(
    r"[-–—\s]*(?:page|стр\.?|страница|第)?\s*(\d{1,5})\s*(?:页|頁|(?:/|of|из)\s*\d{1,5})?[-–—\s]*",  # noqa: RUF001
    re.IGNORECASE,
)


def without_running_lines(pages: Sequence[list[Line]], body: float) -> Iterator[list[Line]]:
    """Without what stands at the top or the bottom of most pages: the same words, which stay once, and page numbers."""
    often = max(4, len(pages) / 2)
    edges = [_edge_lines(lines) for lines in pages]
    cells = [[cell for line in edge for cell in line.cells()] for edge in edges]
    seen = Counter(text for page in cells for text in {cell.text for cell in page})
    numbers = [{_page_number(cell) for cell in page} - {None} for page in cells]
    offsets = Counter(number - n for n, page in enumerate(numbers) for number in page if number is not None)
    offset, times = offsets.most_common(1)[0] if offsets else (0, 0)
    said: set[str] = set()
    for n, (lines, edge) in enumerate(zip(pages, edges, strict=True)):
        number = n + offset if times >= often else None
        kept = {id(line): _edge_line(line, number, {text for text in said if seen[text] >= often}) for line in edge}
        kept = {key: line and _calm(line, seen, often, body) for key, line in kept.items()}
        said |= {cell.text for cell in cells[n]}
        yield [line for before in lines if (line := kept.get(id(before), before))]


def _edge_line(line: Line, number: int | None, known: Container[str]) -> Line | None:
    """The line, or nothing if all of it is known or the number of the page."""
    is_known = all(cell.text in known or (number is not None and _page_number(cell) == number) for cell in line.cells())
    return None if is_known else line


def _calm(line: Line, seen: Mapping[str, int], often: float, body: float) -> Line:
    """A running line that is kept is no heading, however large it is."""
    runs = any(seen[cell.text] >= often for cell in line.cells())
    return replace(line, size=min(line.size, body), bold=False) if runs else line


def _edge_lines(lines: Sequence[Line]) -> list[Line]:
    """The first and the last line of a page, as they were written and as they stand."""
    if len(lines) < 3:
        return []
    by_height = sorted(lines, key=lambda line: line.y)
    return list({id(line): line for line in (lines[0], lines[-1], by_height[0], by_height[-1])}.values())


def _page_number(cell: Word) -> int | None:
    found = _PAGE_NUMBER.fullmatch(cell.text)
    return int(found[1]) if found else None
