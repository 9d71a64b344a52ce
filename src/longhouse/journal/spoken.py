"""What a client is told as content: the texts of an agent's replies, then its answer or its question."""

from collections.abc import Sequence
from typing import Final

BLANK_LINE: Final = "\n\n"


def together(said: Sequence[str], words: str = "") -> str:
    """What each reply has said, then these words, a blank line between them.

    Words that only repeat what their own reply, the last one, has said are not said twice.
    """
    if said and words.strip() == said[-1].strip():
        words = ""
    return BLANK_LINE.join(part for part in (*said, words) if part.strip())
