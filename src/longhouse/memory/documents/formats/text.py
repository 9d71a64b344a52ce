"""Plain text: its encoding is found or refused, never guessed badly; paragraphs, and headings with clear numbers."""

import codecs
import re
from collections.abc import Iterator
from typing import Final

import chardet

from longhouse.memory.documents import clean
from longhouse.memory.documents.draft import DraftDocument
from longhouse.memory.documents.formats import headings
from longhouse.memory.documents.parsed import Block, ParseLimits, UnreadableFile

_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SAMPLE: Final = 20_000
_SURE: Final = 0.1
"""Below this confidence a guess is as often wrong as right; texts of a few words have it."""
_MIXED_WORD: Final = re.compile(r"[a-zA-Z][\u0370-\u04ff]|[\u0370-\u04ff][a-zA-Z]")
_LARGER: Final = {"gb2312": "gb18030", "gbk": "gb18030", "iso-8859-1": "cp1252", "ascii": "cp1252"}
"""Encodings that files name, and the larger ones that they mean."""
_UNKNOWN: Final = "is text in an encoding that cannot be told for sure: save it as UTF-8"


def read(content: bytes, limits: ParseLimits) -> DraftDocument:
    """Paragraphs between empty lines."""
    text = clean.cleaned(decoded(content))
    blocks = list(_blocks(text))
    return DraftDocument(blocks, title=next((b.text for b in blocks[:1] if b.kind == "heading"), ""))


def _blocks(text: str) -> Iterator[Block]:
    for paragraph in re.split(r"\n[^\S\n]*\n", text):
        lines = paragraph.strip("\n").split("\n")
        first = lines[0].strip()
        if headings.is_numbered_title(first):
            yield Block("heading", first, level=headings.level_of(first))
            lines = lines[1:]
        yield Block("text", "\n".join(line.rstrip() for line in lines))


def decoded(content: bytes) -> str:
    """The text of these bytes."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return _strict(content, encoding)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return _guessed(content)
    if "\0" in text:
        return _guessed(content)
    return text


def _strict(content: bytes, encoding: str) -> str:
    try:
        return content.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        raise UnreadableFile(f"says that it is {encoding}, and holds bytes that are not: save it as UTF-8") from None


def declared(content: bytes, encoding: str) -> str:
    """The text of bytes that say their encoding themselves."""
    return _strict(content, _LARGER.get(encoding.lower(), encoding))


def _guessed(content: bytes) -> str:
    if b"\0" in content:
        return _wide(content)
    guess = chardet.detect(_sample(content))
    encoding = guess["encoding"] or ""
    try:
        text = content.decode(_LARGER.get(encoding.lower(), encoding))
    except (UnicodeDecodeError, LookupError):
        raise UnreadableFile(_UNKNOWN) from None
    if guess["confidence"] < _SURE or len(_MIXED_WORD.findall(text)) > len(text.split()) * 0.02:
        raise UnreadableFile(_UNKNOWN)
    return text


def _sample(content: bytes) -> bytes:
    """Whole lines from the beginning: a cut in the middle of a character would count as a mistake."""
    return content[: content.rfind(b"\n", 0, _SAMPLE) + 1] or content[:_SAMPLE]


def _wide(content: bytes) -> str:
    """UTF-16 without its mark: every other byte of Latin text is zero. Anything else with zeros is no text."""
    even, odd = content[0::2].count(0), content[1::2].count(0)
    length = len(content) / 2
    if odd > length * 0.1 and even < odd * 0.05:
        return _strict(content, "utf-16-le")
    if even > length * 0.1 and odd < even * 0.05:
        return _strict(content, "utf-16-be")
    raise UnreadableFile("is not text: it holds bytes that no text has")
