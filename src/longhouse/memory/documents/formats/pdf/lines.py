"""Lines of a page: words with their places, sizes and weights, as pdfium tells them."""

import ctypes
import math
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pypdfium2
import pypdfium2.raw as pdfium

from longhouse.memory.documents import clean
from longhouse.memory.documents.parsed import UnreadableFile

_CELL_GAP: Final = 1.1
"""Cells of a table are this far apart, in sizes of their letters; words of a justified line are nearer."""
_MARKER: Final = re.compile(r"[•▪●○◦‣⁃∙·■□\uf0b7\uf0a7*–—-]|\(?\d{1,3}[.)]")  # noqa: RUF001
"""What stands before an item of a list, at any distance."""
BULLET: Final = re.compile(r"(?:[•▪●○◦‣⁃∙·■□\uf0b7\uf0a7]|[-*–—](?=\s))\s*")  # noqa: RUF001 - signs as printed
SENTENCE_END: Final = (".", "!", "?", ":", ";", "。", "！", "？", "：", "；", "…")  # noqa: RUF001
LEADERS: Final = re.compile(r"(?:\s?[.·…_]){5,}\s?")
"""The dots between a title and its page in a table of contents."""
_LINE: Final = re.compile(r"[^\r\n]+")
_WORD: Final = re.compile(r"[^\s\0]+")
HYPHENS: Final = "\x02\ufffe"
"""What stands at the end of a line for a hyphen that only breaks a word."""


class Word(msgspec.Struct, frozen=True):
    text: str
    left: float
    right: float


class Line(msgspec.Struct, frozen=True):
    """What stands on one line of a page."""

    words: tuple[Word, ...]
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

    def cells(self) -> list[Word]:
        """Words that stand near each other as one."""
        cells = [self.words[0]]
        for word in self.words[1:]:
            last = cells[-1]
            if not _MARKER.fullmatch(last.text) and word.left - last.right > self.size * _CELL_GAP:
                cells.append(word)
            else:
                cells[-1] = Word(f"{last.text} {word.text}", last.left, word.right)
        return cells


def lines_of_page(document: pypdfium2.PdfDocument, index: int) -> list[Line]:
    """The lines of a page, in the order in which they were written."""
    try:
        page = document.get_page(index)
        text = page.get_textpage()
    except pypdfium2.PdfiumError:
        raise UnreadableFile(
            f"is a damaged PDF, its page {index + 1} cannot be read: save or print it to PDF again"
        ) from None
    lines = list(_lines_of(text))
    text.close()
    page.close()
    return lines


def _lines_of(text: pypdfium2.PdfTextPage) -> Iterator[Line]:
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


def _line(text: ctypes.c_void_p, found: Sequence[re.Match[str]]) -> Line:
    words = (Word(word[0], _edges(text, word.start())[0], _edges(text, word.end() - 1)[1]) for word in found)
    # Not the first letter: a bullet or an initial has a size of its own.
    size, bold = _style(text, max(found, key=lambda word: word.end() - word.start()).end() - 1)
    return Line(tuple(words), _y(text, found[0].start()), _y(text, found[-1].end() - 1), size, bold)


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


def joined(above: str, below: str) -> str:
    """Two lines as one; a word that was only broken at the end of a line is whole again."""
    if not above:
        return below
    if above[-1] in HYPHENS:
        return above[:-1] + below
    return above + clean.joint(above[-1], below[:1]) + below
