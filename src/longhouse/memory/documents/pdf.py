"""PDF: lines of text with their sizes and places become headings, paragraphs, lists and tables."""

import ctypes
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pypdfium2
import pypdfium2.raw as pdfium

from longhouse.memory.documents import clean, headings, tables
from longhouse.memory.documents.draft import Draft
from longhouse.memory.documents.parsed import Block, OutlineEntry, ParseLimits, Unreadable

_MAX_BOOKMARKS: Final = 10_000
_NO_TITLES: Final = frozenset({"untitled", "(anonymous)", "anonymous", "document", "title"})
"""What programs write that were told no title."""
_LARGER: Final = 1.15
"""A heading is larger than the text by this factor."""
_CELL_GAP: Final = 1.1
"""Cells of a table are this far apart, in sizes of their letters; words of a justified line are nearer."""
_BULLET: Final = re.compile(r"(?:[•▪●○◦‣⁃∙·■□\uf0b7\uf0a7]|[-*–—](?=\s))\s*")  # noqa: RUF001 - signs as printed
_MARKER: Final = re.compile(r"[•▪●○◦‣⁃∙·■□\uf0b7\uf0a7*–—-]|\(?\d{1,3}[.)]")  # noqa: RUF001
"""What stands before an item of a list, at any distance."""
_NUMBERED_ITEM: Final = re.compile(r"\(?\d{1,3}[.)]\s")
_PAGE_NUMBER: Final = re.compile(
    r"[-–—\s]*(?:page|стр\.?|страница|第)?\s*(\d{1,5})\s*(?:页|頁|(?:/|of|из)\s*\d{1,5})?[-–—\s]*",  # noqa: RUF001
    re.IGNORECASE,
)
_SENTENCE_END: Final = (".", "!", "?", ":", ";", "。", "！", "？", "：", "；", "…")  # noqa: RUF001
_LEADERS: Final = re.compile(r"(?:\s?[.·…_]){5,}\s?")
"""The dots between a title and its page in a table of contents."""
_LINE: Final = re.compile(r"[^\r\n]+")
_WORD: Final = re.compile(r"[^\s\0]+")
_HYPHENS: Final = "\x02\ufffe"
"""What stands at the end of a line for a hyphen that only breaks a word."""


@dataclass(frozen=True, slots=True)
class _Word:
    text: str
    left: float
    right: float


@dataclass(frozen=True, slots=True)
class _Line:
    """What stands on one line of a page."""

    words: tuple[_Word, ...]
    y: float
    """Of the line the letters stand on; it grows upwards."""
    end_y: float
    """Of the last letter: a word that is broken at the end of a line takes the next line along."""
    size: float
    bold: bool

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)

    @property
    def left(self) -> float:
        return self.words[0].left

    def cells(self) -> list[_Word]:
        """Words that stand near each other as one."""
        cells = [self.words[0]]
        for word in self.words[1:]:
            last = cells[-1]
            if not _MARKER.fullmatch(last.text) and word.left - last.right > self.size * _CELL_GAP:
                cells.append(word)
            else:
                cells[-1] = _Word(f"{last.text} {word.text}", last.left, word.right)
        return cells


def read(content: bytes, limits: ParseLimits) -> Draft:
    """All pages; the outline is the bookmarks, or else the headings that are seen."""
    document = _opened(content)
    count = len(document)
    if count > limits.pages:
        raise Unreadable(f"has {count} pages, and a document may have {limits.pages}: split it")
    pages = [_lines(document, n) for n in range(count)]
    if not any(pages):
        raise Unreadable("holds no text, only pictures or empty pages: run text recognition (OCR) over it first")
    _check_letters(pages)
    body = _body_size(pages)
    shown = _shown_title(pages[0], body)
    pages = list(_without_running_lines(pages, body))
    outline = _bookmarks(document, count)
    find = _Titles(outline) if len(outline) > 1 else _Sizes(pages, body)
    spacing = _spacing(pages)
    blocks = [block for n, lines in enumerate(pages, 1) for block in _blocks(find.headings(n, lines), n, spacing)]
    title = clean.one_line(document.get_metadata_value("Title") or "")
    title = "" if title.lower() in _NO_TITLES else title
    return Draft(
        blocks,
        title=title or shown or _first_heading(blocks),
        pages=count,
        outline=outline if len(outline) > 1 else None,
    )


def _shown_title(lines: Sequence[_Line], body: float) -> str:
    """The largest letters of the first page, if they are clearly larger than the text."""
    size = max((line.size for line in lines), default=0.0)
    title = ""
    for line in itertools.takewhile(
        lambda one: one.size == size, itertools.dropwhile(lambda one: one.size < size, lines)
    ):
        title = _joined(title, line.text)
    return title if size >= 1.3 * body and len(title) <= 200 else ""


def _first_heading(blocks: Iterable[Block]) -> str:
    return next((block.text for block in blocks if block.kind == "heading" and block.page == 1), "")


def _opened(content: bytes) -> pypdfium2.PdfDocument:
    try:
        return pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise Unreadable("is protected by a password: save it without one") from None
        raise Unreadable("is a damaged PDF: save or print it to PDF again") from None


def _lines(document: pypdfium2.PdfDocument, index: int) -> list[_Line]:
    try:
        page = document.get_page(index)
        text = page.get_textpage()
    except pypdfium2.PdfiumError:
        raise Unreadable(
            f"is a damaged PDF, its page {index + 1} cannot be read: save or print it to PDF again"
        ) from None
    lines = list(_lines_of(text))
    text.close()
    page.close()
    return lines


def _lines_of(text: pypdfium2.PdfTextPage) -> Iterator[_Line]:
    signs = _signs(text)
    for found in _LINE.finditer(signs):
        if words := list(_WORD.finditer(signs, found.start(), found.end())):
            yield _line(text.raw, words)


def _signs(text: pypdfium2.PdfTextPage) -> str:
    """The characters of a page, each at its index."""
    count = text.count_chars()
    signs = text.get_text_range(errors="surrogatepass") if count else ""
    # The text as a whole has no characters beyond 16 bits but others in their place, and may leave some out.
    if len(signs) == count and max(text.get_text_bounded(), default="") <= "\uffff":
        return str(signs)
    return "".join(chr(min(pdfium.FPDFText_GetUnicode(text.raw, n), 0x10FFFF)) for n in range(count))


def _line(text: ctypes.c_void_p, found: Sequence[re.Match[str]]) -> _Line:
    words = (_Word(word[0], _edges(text, word.start())[0], _edges(text, word.end() - 1)[1]) for word in found)
    # Not the first letter: a bullet or an initial has a size of its own.
    size, bold = _style(text, max(found, key=lambda word: word.end() - word.start()).end() - 1)
    return _Line(tuple(words), _y(text, found[0].start()), _y(text, found[-1].end() - 1), size, bold)


_box: Final = tuple(ctypes.c_double() for _ in range(4))
_matrix: Final = pdfium.FS_MATRIX()


def _edges(text: ctypes.c_void_p, n: int) -> tuple[float, float]:
    left, right, bottom, top = _box
    pdfium.FPDFText_GetCharBox(text, n, left, right, bottom, top)
    return left.value, right.value


def _y(text: ctypes.c_void_p, n: int) -> float:
    x, y = _box[:2]
    pdfium.FPDFText_GetCharOrigin(text, n, x, y)
    return y.value


def _style(text: ctypes.c_void_p, n: int) -> tuple[float, bool]:
    """The size of a character on the page, and whether it is bold."""
    scale = math.hypot(_matrix.c, _matrix.d) if pdfium.FPDFText_GetMatrix(text, n, _matrix) else 1.0
    size = pdfium.FPDFText_GetFontSize(text, n) * (scale or 1.0)
    flags = ctypes.c_int()
    name = ctypes.create_string_buffer(128)
    pdfium.FPDFText_GetFontInfo(text, n, name, 128, flags)
    bold = pdfium.FPDFText_GetFontWeight(text, n) >= 600 or b"bold" in name.value.lower()
    return round(size, 1) or 1.0, bold


def _check_letters(pages: Iterable[Sequence[_Line]]) -> None:
    """Refuses text that is none: some fonts draw letters and do not say which."""
    signs = Counter(sign for lines in pages for line in lines for word in line.words for sign in word.text)
    unknown = sum(count for sign, count in signs.items() if sign < " " and sign not in _HYPHENS)
    unknown += sum(count for sign, count in signs.items() if "\ue000" <= sign <= "\uf8ff" or sign == "\ufffd")
    if unknown > sum(signs.values()) * 0.3:
        raise Unreadable("has fonts that do not say which letters they show: run text recognition (OCR) over it first")


def _without_running_lines(pages: Sequence[list[_Line]], body: float) -> Iterator[list[_Line]]:
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


def _edge_line(line: _Line, number: int | None, known: Container[str]) -> _Line | None:
    """The line, or nothing if all of it is known or the number of the page."""
    is_known = all(cell.text in known or (number is not None and _page_number(cell) == number) for cell in line.cells())
    return None if is_known else line


def _calm(line: _Line, seen: Mapping[str, int], often: float, body: float) -> _Line:
    """A running line that is kept is no heading, however large it is."""
    runs = any(seen[cell.text] >= often for cell in line.cells())
    return replace(line, size=min(line.size, body), bold=False) if runs else line


def _edge_lines(lines: Sequence[_Line]) -> list[_Line]:
    """The first and the last line of a page, as they were written and as they stand."""
    if len(lines) < 3:
        return []
    by_height = sorted(lines, key=lambda line: line.y)
    return list({id(line): line for line in (lines[0], lines[-1], by_height[0], by_height[-1])}.values())


def _page_number(cell: _Word) -> int | None:
    found = _PAGE_NUMBER.fullmatch(cell.text)
    return int(found[1]) if found else None


def _bookmarks(document: pypdfium2.PdfDocument, pages: int) -> list[OutlineEntry]:
    outline: list[OutlineEntry] = []
    page = 1
    for bookmark in itertools.islice(document.get_toc(max_depth=12), _MAX_BOOKMARKS):
        target = bookmark.get_dest()
        index = target.get_index() if target else None
        page = index + 1 if index is not None and 0 <= index < pages else page
        title = clean.one_line(clean.cleaned(bookmark.get_title() or ""))[:300]
        if title:
            outline.append(OutlineEntry(title, min(6, bookmark.level + 1), page, headings.number_of(title)))
    return outline


@dataclass(frozen=True, slots=True)
class _Heading:
    text: str
    level: int


class _Titles:
    """Headings are the lines that the bookmarks name."""

    def __init__(self, outline: Iterable[OutlineEntry]) -> None:
        self._by_page: dict[int, list[OutlineEntry]] = {}
        for entry in outline:
            self._by_page.setdefault(entry.page, []).append(entry)

    def headings(self, page: int, lines: Sequence[_Line]) -> Iterator[_Heading | _Line]:
        """The page with its headings; one that no line shows comes first, so that the text is known to be below it."""
        wanted = self._by_page.get(page, [])
        found: dict[int, tuple[int, int]] = {}
        for same in (_is_same, _is_alike):
            for n, entry in enumerate(wanted):
                taken = {start for start, _ in found.values()}
                if n not in found and (match := _match(entry.title, lines, same, taken)):
                    found[n] = match
        starts = {start: (wanted[n], end) for n, (start, end) in found.items()}
        yield from (_Heading(entry.title, entry.level) for n, entry in enumerate(wanted) if n not in found)
        skip = 0
        for place, line in enumerate(lines):
            if place in starts:
                entry, skip = starts[place]
                yield _Heading(entry.title, entry.level)
            if place >= skip:
                yield line


def _match(
    title: str, lines: Sequence[_Line], same: Callable[[str, str], bool], taken: Container[int]
) -> tuple[int, int] | None:
    """The lines that show a title: from, and up to."""
    for start in range(len(lines)):
        shown = ""
        for end in range(start, min(start + 3, len(lines))):
            shown = _joined(shown, lines[end].text)
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


def _body_size(pages: Iterable[Sequence[_Line]]) -> float:
    """The size of most letters."""
    letters: Counter[float] = Counter()
    for line in itertools.chain.from_iterable(pages):
        letters[line.size] += len(line.text)
    return letters.most_common(1)[0][0]


class _Sizes:
    """Headings are lines in larger letters, and lines with a section number."""

    def __init__(self, pages: Iterable[Sequence[_Line]], body: float) -> None:
        self._body = body
        lines = [line for page in pages for line in page]
        larger = Counter(line.size for line in lines if self._is_larger(line))
        # Where most lines are large, none of them is a heading.
        usable = larger.total() <= len(lines) * 0.4
        self._levels = {size: min(6, n) for n, size in enumerate(sorted(larger, reverse=True), 1)} if usable else {}

    def _is_larger(self, line: _Line) -> bool:
        return line.size >= self._body * _LARGER and len(line.text) <= 200 and any(map(str.isalpha, line.text))

    def _level(self, line: _Line) -> int:
        text = line.text
        if _BULLET.match(text):
            return 0
        if self._is_larger(line) and line.size in self._levels:
            return self._levels[line.size]
        if headings.is_numbered_title(text) and len(line.cells()) == 1:
            return headings.level_of(text)
        is_title = line.bold and len(text) <= 120 and not text.endswith(_SENTENCE_END)
        return headings.level_of(text) if is_title and len(line.cells()) == 1 else 0

    def headings(self, page: int, lines: Sequence[_Line]) -> Iterator[_Heading | _Line]:
        """The page with its headings; a title of several lines is one."""
        last: _Line | None = None
        title: _Heading | None = None
        for line in lines:
            level = self._level(line)
            continues = title and last and title.level == level and line.size == last.size and level
            if continues and last and not headings.number_of(line.text) and 0 < last.end_y - line.y < 1.6 * line.size:
                assert title
                title = _Heading(_joined(title.text, line.text), level)
            else:
                if title:
                    yield title
                title = _Heading(line.text, level) if level else None
                if not level:
                    yield line
            last = line
        if title:
            yield title


def _spacing(pages: Iterable[Sequence[_Line]]) -> float:
    """How far lines of a paragraph are apart, in sizes of their letters."""
    steps = Counter(
        round((above.end_y - below.y) / above.size, 1)
        for lines in pages
        for above, below in itertools.pairwise(lines)
        if 0.8 * above.size < above.end_y - below.y < 3 * above.size and above.size == below.size
    )
    return steps.most_common(1)[0][0] if steps else 1.3


def _blocks(parts: Iterable[_Heading | _Line], page: int, spacing: float) -> Iterator[Block]:
    for is_heading, group in itertools.groupby(parts, lambda part: isinstance(part, _Heading)):
        if is_heading:
            yield from (Block("heading", one.text, page, level=one.level) for one in group if isinstance(one, _Heading))
        else:
            yield from _body([one for one in group if isinstance(one, _Line)], page, spacing)


def _body(lines: Sequence[_Line], page: int, spacing: float) -> Iterator[Block]:
    """Paragraphs, lists and tables, in the order of the page."""
    start = 0
    pending = 0
    while start < len(lines):
        rows, end = _table(lines, start)
        if rows:
            yield from _paragraphs(lines[pending:start], page, spacing)
            yield Block("table", tables.markdown(rows), page)
            pending = start = end
        else:
            start += 1
    yield from _paragraphs(lines[pending:], page, spacing)


def _table(lines: Sequence[_Line], start: int) -> tuple[list[list[str]], int]:
    """The rows of a table that begins at this line, and where it ends; no rows if there is none."""
    columns = lines[start].cells()
    if len(columns) < 2 or _LEADERS.search(lines[start].text):
        return [], start
    rows: list[list[str]] = []
    end = start
    full = 0
    for line in lines[start:]:
        cells = line.cells()
        if end > start and not 0 <= lines[end - 1].end_y - line.y < 4 * line.size:
            break
        places = _places(cells, columns)
        if places is None or (len(cells) < 2 and not rows):
            break
        if len(cells) == 1 and (places[0] == 0 or lines[end - 1].end_y - line.y > 2 * line.size):
            break
        if places[0] > 0 and len(cells) < len(columns):
            _continue(rows[-1], cells, places)
        else:
            row = [""] * len(columns)
            _continue(row, cells, places)
            rows.append(row)
            columns = [_wider(column, cells, places, n) for n, column in enumerate(columns)]
            full += len(cells) == len(columns)
        end += 1
    lengths = [len(cell) for row in rows for cell in row if cell]
    is_table = full >= 2 and len(rows) >= 2 and sum(lengths) / len(lengths) <= 60
    return (rows, end) if is_table else ([], start)


def _places(cells: Sequence[_Word], columns: Sequence[_Word]) -> list[int] | None:
    """In which column each cell stands; None if one stands in none, or two in the same."""
    places: list[int] = []
    for cell in cells:
        over = [min(cell.right, c.right) - max(cell.left, c.left) for c in columns]
        near = [abs(cell.left - c.left) < 3 or abs(cell.right - c.right) < 3 for c in columns]
        best = max(range(len(columns)), key=lambda n: (near[n], over[n]))
        if (not near[best] and over[best] <= 0) or best in places:
            return None
        places.append(best)
    return places if places == sorted(places) else None


def _continue(row: list[str], cells: Sequence[_Word], places: Sequence[int]) -> None:
    for cell, place in zip(cells, places, strict=True):
        row[place] = _joined(row[place], cell.text)


def _wider(column: _Word, cells: Sequence[_Word], places: Sequence[int], n: int) -> _Word:
    if n not in places:
        return column
    cell = cells[places.index(n)]
    return replace(column, left=min(column.left, cell.left), right=max(column.right, cell.right))


def _paragraphs(lines: Sequence[_Line], page: int, spacing: float) -> Iterator[Block]:
    """Lines that belong together as one; items of a list together."""
    items: list[str] = []
    for paragraph in _grouped(lines, spacing):
        joined = ""
        for line in paragraph:
            joined = _joined(joined, line.text)
        joined = _LEADERS.sub(" … ", joined)
        if bullet := _BULLET.match(joined):
            items.append("- " + joined[bullet.end() :])
        elif _NUMBERED_ITEM.match(joined):
            items.append(joined)
        else:
            yield from _listed(items, page)
            items = []
            yield Block("text", joined, page)
    yield from _listed(items, page)


def _listed(items: Sequence[str], page: int) -> Iterator[Block]:
    if items:
        yield Block("list", "\n".join(items), page)


def _grouped(lines: Sequence[_Line], spacing: float) -> Iterator[list[_Line]]:
    group: list[_Line] = []
    for line in lines:
        if group and _begins_paragraph(group[-1], line, spacing):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _begins_paragraph(above: _Line, line: _Line, spacing: float) -> bool:
    if _BULLET.match(line.text) or _NUMBERED_ITEM.match(line.text):
        return True
    ended = above.text.endswith(_SENTENCE_END)
    step = above.end_y - line.y
    if step < 0:
        return ended or not line.text[:1].islower()
    is_far = step > max(spacing * 1.25, 1.4) * max(above.size, line.size)
    is_indented = line.left > above.left + 0.8 * line.size
    return is_far or (ended and is_indented) or abs(above.size - line.size) > 0.15 * above.size


def _joined(above: str, below: str) -> str:
    """Two lines as one; a word that was only broken at the end of a line is whole again."""
    if not above:
        return below
    if above[-1] in _HYPHENS:
        return above[:-1] + below
    return above + clean.joint(above[-1], below[:1]) + below
