"""Text of others without our keys: what a peer sends back may hold the key that it was sent."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

LONGEST_QUOTE: Final = 300
SHORTEST_SECRET: Final = 6
"""Shorter values are not hidden: `x`, `1` or `prod` would be found everywhere."""


@dataclass(frozen=True, slots=True)
class Redaction:
    """Values that are replaced by a mark wherever they turn up."""

    values: tuple[str, ...] = field(default=(), repr=False)
    mark: str = "[hidden]"

    def hide(self, text: str) -> str:
        for value in self.values:
            text = text.replace(value, self.mark)
        return text

    def quoted(self, text: str) -> str:
        """The text in one bounded line for an error of ours. Values are hidden before it is cut: half a secret is
        still one."""
        line = " ".join("".join(char if char.isprintable() else " " for char in self.hide(text)).split())
        return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}…"


def redaction_of(values: Iterable[str], mark: str = "[hidden]") -> Redaction:
    """Hides values in all forms in which they may turn up, the longest first: one may be a part of another."""
    forms = set[str]()
    for value in values:
        bare = value.removeprefix("Bearer ").strip()
        if len(bare) >= SHORTEST_SECRET and not _is_path(bare):
            escaped = (json.dumps(bare, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
            forms |= {value.strip(), bare, quote(bare, safe=""), *escaped}
    return Redaction(tuple(sorted(forms, key=lambda form: (-len(form), form))), mark)


def _is_path(value: str) -> bool:
    """A place on this machine, such as `${HOME}`: an agent that may read files there has to know their names."""
    try:
        return Path(value).is_absolute() and Path(value).exists()
    except (OSError, ValueError):
        return False
