"""Texts and times as they stand on one line of a terminal."""

from datetime import datetime
from typing import Final

SHOWN: Final = 120
"""Characters shown of a task, of arguments, of an outcome."""


def plain(text: str, most: int = SHOWN) -> str:
    """Text on one line, without terminal control sequences."""
    line = " ".join(text[: 20 * most].split())
    line = line if len(line) <= most else f"{line[: most - 1]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


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
