"""The title of a session: one short line, whoever wrote it."""

import unicodedata
from collections.abc import Iterable
from typing import Final

from longhouse.journal.messages import Content, text_of

LONGEST: Final = 80
"""Characters of a title."""
_READ: Final = 2_000
"""Characters of a text that its first words are taken from."""
_JOINERS: Final = "\u200c\u200d"
"""Invisible, but part of words in some languages, and of emoji."""
_LEFT_OUT: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that are no text: controls, direction marks, halves of characters, unknown ones."""


def first_words(text: str) -> str:
    """The first words of a text, on one line, without control and direction characters."""
    line = " ".join("".join(map(_shown, text[:_READ])).split())
    if len(line) <= LONGEST:
        return line
    cut = line[: LONGEST - 1]
    whole, space, _ = cut.rpartition(" ")
    # Chinese and Japanese have no spaces, and one long word is better cut than left out.
    return f"{(whole if space and len(whole) > LONGEST // 2 else cut).rstrip()}…"


def of_prompt(content: Iterable[Content]) -> str:
    return first_words(" ".join(text_of(part)[:_READ] for part in content))


def _shown(char: str) -> str:
    if char.isspace():
        return " "
    return char if char in _JOINERS or unicodedata.category(char) not in _LEFT_OUT else ""
