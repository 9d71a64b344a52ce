"""PDF: lines of text with their sizes and places become headings, paragraphs, lists and tables."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import pypdfium2

from longhouse.memory.documents import clean
from longhouse.memory.documents.draft import DraftDocument
from longhouse.memory.documents.formats import headings
from longhouse.memory.documents.formats.pdf.lines import HYPHENS, Line, joined, lines_of_page
from longhouse.memory.documents.formats.pdf.paragraphs import blocks_of, spacing_of
from longhouse.memory.documents.formats.pdf.running_lines import without_running_lines
from longhouse.memory.documents.formats.pdf.titles import Sizes, Titles, body_size
from longhouse.memory.documents.parsed import OutlineLine, ParseLimits, UnreadableFile

_MAX_BOOKMARKS: Final = 10_000
_NO_TITLES: Final = frozenset({"untitled", "(anonymous)", "anonymous", "document", "title"})
"""What programs write in place of a title."""


def read(content: bytes, limits: ParseLimits) -> DraftDocument:
    """All pages; the outline is the bookmarks, or else the headings that are seen."""
    document = _opened(content)
    count = len(document)
    if count > limits.pages:
        raise UnreadableFile(f"has {count} pages, and a document may have {limits.pages}: split it")
    pages = [lines_of_page(document, n) for n in range(count)]
    if not any(pages):
        raise UnreadableFile("holds no text, only pictures or empty pages: run text recognition (OCR) over it first")
    _check_letters(pages)
    body = body_size(pages)
    shown = _shown_title(pages[0], body)
    pages = list(without_running_lines(pages, body))
    outline = _bookmarks(document, count)
    find = Titles(outline) if len(outline) > 1 else Sizes(pages, body)
    spacing = spacing_of(pages)
    blocks = [block for n, lines in enumerate(pages, 1) for block in blocks_of(find.headings(n, lines), n, spacing)]
    title = clean.one_line(document.get_metadata_value("Title") or "")
    title = "" if title.lower() in _NO_TITLES else title
    first = next((block.text for block in blocks if block.kind == "heading" and block.page == 1), "")
    return DraftDocument(
        blocks,
        title=title or shown or first,
        pages=count,
        outline=outline if len(outline) > 1 else None,
    )


def _shown_title(lines: Sequence[Line], body: float) -> str:
    """The largest letters of the first page, if they are clearly larger than the text."""
    size = max((line.size for line in lines), default=0.0)
    title = ""
    for line in itertools.takewhile(
        lambda one: one.size == size, itertools.dropwhile(lambda one: one.size < size, lines)
    ):
        title = joined(title, line.text)
    return title if size >= 1.3 * body and len(title) <= 200 else ""


def _opened(content: bytes) -> pypdfium2.PdfDocument:
    try:
        return pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if "password" in str(error).lower():
            raise UnreadableFile("is protected by a password: save it without one") from None
        raise UnreadableFile("is a damaged PDF: save or print it to PDF again") from None


def _check_letters(pages: Iterable[Sequence[Line]]) -> None:
    """Refuses text that is none: some fonts draw letters and do not say which."""
    signs = Counter(sign for lines in pages for line in lines for word in line.words for sign in word.text)
    unknown = sum(count for sign, count in signs.items() if _is_unknown(sign))
    if unknown > signs.total() * 0.3:
        raise UnreadableFile(
            "has fonts that do not say which letters they show: run text recognition (OCR) over it first"
        )


def _is_unknown(sign: str) -> bool:
    return (sign < " " and sign not in HYPHENS) or "\ue000" <= sign <= "\uf8ff" or sign == "\ufffd"


def _bookmarks(document: pypdfium2.PdfDocument, pages: int) -> list[OutlineLine]:
    outline: list[OutlineLine] = []
    page = 1
    for bookmark in itertools.islice(document.get_toc(max_depth=12), _MAX_BOOKMARKS):
        target = bookmark.get_dest()
        index = target.get_index() if target else None
        page = index + 1 if index is not None and 0 <= index < pages else page
        title = clean.one_line(clean.cleaned(bookmark.get_title() or ""))[:300]
        if title:
            outline.append(OutlineLine(title, min(6, bookmark.level + 1), page, headings.number_of(title)))
    return outline
