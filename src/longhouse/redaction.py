"""Redaction: removes secrets from text that comes from outside, such as a response that repeats the API key."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

LONGEST_QUOTE: Final = 300
SHORTEST_SECRET: Final = 6
"""Shorter values are not redacted: `x`, `1` or `prod` occur everywhere."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """Values that are replaced by a mark wherever they occur."""

    values: tuple[str, ...] = field(default=(), repr=False)
    mark: str = "[hidden]"

    def hide(self, text: str) -> str:
        for value in self.values:
            text = text.replace(value, self.mark)
        return text

    def quoted(self, text: str) -> str:
        """The text as one bounded line for an error message. Values are redacted before it is cut: half a secret is
        still a secret."""
        line = " ".join("".join(char if char.isprintable() else " " for char in self.hide(text)).split())
        return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}…"


def redaction_of(values: Iterable[str], mark: str = "[hidden]") -> Redaction:
    """A redaction of these values in all their encodings, the longest first: one may be a part of another."""
    forms = set[str]()
    for value in values:
        bare = value.removeprefix("Bearer ").strip()
        if len(bare) >= SHORTEST_SECRET and not _is_path(bare):
            escaped = (json.dumps(bare, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
            forms |= {value.strip(), bare, quote(bare, safe=""), *escaped}
    return Redaction(tuple(sorted(forms, key=lambda form: (-len(form), form))), mark)


def _is_path(value: str) -> bool:
    """Whether the value is an existing path, such as `${HOME}`: an agent that reads files needs to know their names."""
    try:
        return Path(value).is_absolute() and Path(value).exists()
    except (OSError, ValueError):
        return False
