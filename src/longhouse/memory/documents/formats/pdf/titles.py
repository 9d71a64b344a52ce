"""Headings of pages: the lines that bookmarks name, or else those in larger letters and with section numbers."""

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Final

from longhouse.memory.documents.formats import headings
from longhouse.memory.documents.formats.pdf.lines import BULLET, SENTENCE_END, Line, joined
from longhouse.memory.documents.parsed import Block, OutlineLine

_LARGER: Final = 1.15
"""A heading is larger than the text by this factor."""


class Titles:
    """Headings are the lines that the bookmarks name."""

    def __init__(self, outline: Iterable[OutlineLine]) -> None:
        self._by_page: dict[int, list[OutlineLine]] = {}
        for entry in outline:
            self._by_page.setdefault(entry.page, []).append(entry)

    def headings(self, page: int, lines: Sequence[Line]) -> Iterator[Block | Line]:
        """The page with its headings; one that no line shows comes first, so that the text is known to be below it."""
        wanted = self._by_page.get(page, [])
        found: dict[int, tuple[int, int]] = {}
        for same in (_is_same, _is_alike):
            for n, entry in enumerate(wanted):
                taken = {start for start, _ in found.values()}
                if n not in found and (match := _match(entry.title, lines, same, taken)):
                    found[n] = match
        starts = {start: (wanted[n], end) for n, (start, end) in found.items()}
        yield from (
            Block("heading", entry.title, page, entry.level) for n, entry in enumerate(wanted) if n not in found
        )
        skip = 0
        for place, line in enumerate(lines):
            if place in starts:
                entry, skip = starts[place]
                yield Block("heading", entry.title, page, entry.level)
            if place >= skip:
                yield line


def _match(
    title: str, lines: Sequence[Line], same: Callable[[str, str], bool], taken: Container[int]
) -> tuple[int, int] | None:
    """The lines that show a title: from, and up to."""
    for start in range(len(lines)):
        shown = ""
        for end in range(start, min(start + 3, len(lines))):
            shown = joined(shown, lines[end].text)
            if start not in taken and same(title, shown):
                return start, end + 1
            if len(shown) > 2 * len(title) + 20:
                break
    return None


def _is_same(title: str, shown: str) -> bool:
    return bool(_bare(title)) and _bare(title) == _bare(shown)


def _is_alike(title: str, shown: str) -> bool:
    """The same, but one of them may lack the number."""
    numbers = {headings.number_of(title), headings.number_of(shown)} - {""}
    return len(numbers) < 2 and _is_same(headings.without_number(title), headings.without_number(shown))


def _bare(text: str) -> str:
    return "".join(sign for sign in text.casefold() if sign.isalnum())


def body_size(pages: Iterable[Sequence[Line]]) -> float:
    """The size of most letters."""
    letters: Counter[float] = Counter()
    for line in itertools.chain.from_iterable(pages):
        letters[line.size] += len(line.text)
    return letters.most_common(1)[0][0]


class Sizes:
    """Headings are lines in larger letters, and lines with a section number."""

    def __init__(self, pages: Iterable[Sequence[Line]], body: float) -> None:
        self._body = body
        lines = [line for page in pages for line in page]
        larger = Counter(line.size for line in lines if self._is_larger(line))
        # Where most lines are large, none of them is a heading.
        usable = larger.total() <= len(lines) * 0.4
        self._levels = {size: min(6, n) for n, size in enumerate(sorted(larger, reverse=True), 1)} if usable else {}

    def _is_larger(self, line: Line) -> bool:
        return line.size >= self._body * _LARGER and len(line.text) <= 200 and any(map(str.isalpha, line.text))

    def _level(self, line: Line) -> int:
        text = line.text
        if BULLET.match(text):
            return 0
        if self._is_larger(line) and line.size in self._levels:
            return self._levels[line.size]
        if headings.is_numbered_title(text) and len(line.cells()) == 1:
            return headings.level_of(text)
        is_title = line.bold and len(text) <= 120 and not text.endswith(SENTENCE_END)
        return headings.level_of(text) if is_title and len(line.cells()) == 1 else 0

    def headings(self, page: int, lines: Sequence[Line]) -> Iterator[Block | Line]:
        """The page with its headings; a title of several lines is one."""
        last: Line | None = None
        title: Block | None = None
        for line in lines:
            level = self._level(line)
            continues = title and last and title.level == level and line.size == last.size and level
            if continues and last and not headings.number_of(line.text) and 0 < last.end_y - line.y < 1.6 * line.size:
                assert title
                title = Block("heading", joined(title.text, line.text), page, level)
            else:
                if title:
                    yield title
                title = Block("heading", line.text, page, level) if level else None
                if not level:
                    yield line
            last = line
        if title:
            yield title
