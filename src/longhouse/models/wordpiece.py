"""WordPiece tokenizer as in BERT: lower case, accents removed, the longest known piece first."""

import unicodedata
from collections.abc import Sequence
from typing import Final

from longhouse.lazy_pattern import compiled_later

UNKNOWN: Final = "[UNK]"
INSIDE: Final = "##"
"""Prefix of a piece that continues a word."""
LONGEST_WORD: Final = 60
"""Longer words are keys and digests; they count as unknown."""
MOST_WORDS: Final = 65_536
"""Words whose tokens are cached: nearly all words of a text were seen before."""

_HAN: Final = compiled_later(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f]"
)
"""Han characters: each is a word of its own."""


class _Folding(dict[int, str]):
    """Character -> its normalised form, computed at the first use."""

    def __missing__(self, code: int) -> str:
        self[code] = read = _read(chr(code))
        return read


def _read(char: str) -> str:
    if char in "\t\n\r" or (char.isspace() and unicodedata.category(char) != "Cc"):
        return " "
    kind = unicodedata.category(char)
    if kind in ("Cc", "Cf", "Co", "Mn") or char == "\ufffd":
        return ""
    if kind[0] == "P" or (char.isascii() and not char.isalnum()) or _HAN.match(char):
        return f" {char} "
    return char.lower()


_FOLDING: Final = _Folding()


def words(text: str) -> list[str]:
    """The words of a text; punctuation marks and Han characters are words of their own."""
    whole = text if text.isascii() else unicodedata.normalize("NFD", text)
    return whole.translate(_FOLDING).split()


class WordPiece:
    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        self._unknown = self._ids[UNKNOWN]
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, in order."""
        known, ids = self._known, []
        for word in words(text):
            found = known.get(word)
            ids += self._remembered(word) if found is None else found
        return ids

    def _remembered(self, word: str) -> list[int]:
        if len(self._known) >= MOST_WORDS:
            self._known = {}  # threads that still use the old dict finish with it
        self._known[word] = found = self._pieces(word)
        return found

    def _pieces(self, word: str) -> list[int]:
        if len(word) > LONGEST_WORD:
            return [self._unknown]
        found, start = [], 0
        while start < len(word):
            mark = INSIDE if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self._ids), None)
            if end is None:
                return [self._unknown]
            found.append(self._ids[mark + word[start:end]])
            start = end
        return found
