"""Texts and times as they stand on one line of a terminal."""

from datetime import datetime
from typing import Final

from longhouse.journal.words.visible_text import readable

SHOWN: Final = 120
"""Characters shown of a task, of arguments, of an outcome."""


def plain(text: str, most: int = SHOWN) -> str:
    """Text on one line, cut with an ellipsis; what a terminal obeys and what nobody sees are written out."""
    line = " ".join(text[: 20 * most].split())
    is_whole = len(line) <= most and len(text) <= 20 * most
    return readable(line if is_whole else f"{line[: most - 1]}…")


def columns(*texts: str) -> str:
    """Texts beside each other, each as `plain` has it."""
    return "  ".join(map(plain, texts)).rstrip()


def minute(at: datetime | None) -> str:
    """A time to the minute; empty where there is none."""
    return f"{at:%Y-%m-%d %H:%M}" if at else ""


def lasting(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    if not minutes:
        return f"{rest:.2f} s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02.0f} s"
