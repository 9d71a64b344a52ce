"""Joins the content that a client gets: the texts of an agent's replies, then its answer or question."""

from collections.abc import Sequence
from typing import Final

BLANK_LINE: Final = "\n\n"


def together(said: Sequence[str], words: str = "") -> str:
    """The text of each reply, then `words`, separated by blank lines.

    If `words` only repeat the text of the last reply, they are not added again.
    """
    if said and words.strip() == said[-1].strip():
        words = ""
    return BLANK_LINE.join(part for part in (*said, words) if part.strip())
