"""Paths of the long-term memory files of agents.

The files are database rows, never files on disk, so path traversal is impossible. Paths such as `../secret.md` are
refused nevertheless, so that nobody mistakes them for something else.
"""

import re
import unicodedata
from typing import Final

ROOT: Final = "memory_dir"

MAX_PATH: Final = 512
"""Maximum bytes of a path; with its owner and scope it must fit into an index row."""
MAX_DEPTH: Final = 16
"""Maximum names in a path; a deeper path is most likely a loop."""

_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories of invisible characters: names that look the same must be the same."""


class MemoryRefused(ValueError):  # noqa: N818 - it says what happened to the call
    """The operation is refused; the agent reads the message."""


def normalised(path: str) -> str:
    """Normalises a path: `./a//b.md` and `memory_dir/a/b.md` become `a/b.md`, the root is ""."""
    # Checked before normalisation: a long text is expensive to process, and compatibility forms can deceive.
    if len(path.encode("utf-8", "replace")) > MAX_PATH:
        raise MemoryRefused(f"the path is longer than {MAX_PATH} bytes")
    path = unicodedata.normalize("NFC", path)
    if any(unicodedata.category(character) in _HIDDEN for character in path):
        raise MemoryRefused(f"{_quoted(path)} has characters that cannot be seen")
    if path.startswith(("/", "~")) or "\\" in path or ":" in path:
        raise MemoryRefused(f"{_quoted(path)} is not a path inside {ROOT}; use one such as people/ann.md")
    if _ESCAPED.search(path):
        raise MemoryRefused(f"{_quoted(path)} has percent escapes; write the characters themselves")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if names and names[0] == ROOT:
        names = names[1:]
    if len(names) > MAX_DEPTH:
        raise MemoryRefused(f"{_quoted(path)} is deeper than {MAX_DEPTH} names")
    for name in names:
        _check(name, path)
    # Composed characters may take more bytes than decomposed ones.
    if len("/".join(names).encode()) > MAX_PATH:
        raise MemoryRefused(f"the path is longer than {MAX_PATH} bytes")
    return "/".join(names)


def _check(name: str, path: str) -> None:
    """Refuses names with a special meaning on some systems, even if a compatibility character hides it."""
    looks_like = unicodedata.normalize("NFKC", name)
    if not looks_like.strip(". ") or any(character in looks_like for character in "/\\"):
        raise MemoryRefused(f"{_quoted(path)} leads elsewhere; paths only go down from {ROOT}")
    if name != name.strip() or name.endswith("."):
        raise MemoryRefused(f"in {_quoted(path)} a name begins or ends with a space, or ends with a dot")
    if _DEVICE.fullmatch(looks_like):
        raise MemoryRefused(f"in {_quoted(path)} a name is that of a device; choose another")
    if _ESCAPED.search(looks_like):
        raise MemoryRefused(f"{_quoted(path)} has percent escapes; write the characters themselves")


def _quoted(path: str) -> str:
    return repr(path) if len(path) <= 100 else f"{path[:100]!r}…"
