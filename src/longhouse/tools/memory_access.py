"""The long-term files of agents, as tools see them: what can be done with them, and what a path may look like.

They are rows under a name, never files of the machine, so no path leads out. Names that would lead out elsewhere
are refused all the same: nobody should take `../secret.md` for something that it is not.
"""

import re
import unicodedata
from typing import Final, Protocol

from longhouse.store.memory_files import File, FileEntry, Scope, Verdict

ROOT: Final = "memory_dir"

MAX_PATH: Final = 512
"""Bytes of a path; with its owner and scope it has to fit an index."""
MAX_DEPTH: Final = 16
"""Names in a path: deeper is a loop, not an order."""

_ESCAPED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_DEVICE: Final = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of characters that cannot be seen: two names that look alike shall be alike."""


class Memory(Protocol):
    """Files and directories of text. Every change carries the key of its call and is made once for each."""

    async def read(self, scope: Scope, path: str) -> File | None: ...
    async def exists(self, scope: Scope, path: str, *, directory: bool) -> bool: ...
    async def list(self, scope: Scope, path: str = "") -> list[FileEntry]: ...
    async def size(self, scope: Scope, path: str = "") -> int | None: ...
    async def write(self, scope: Scope, path: str, content: str, *, key: str) -> Verdict: ...
    async def make_dir(self, scope: Scope, path: str, *, key: str) -> Verdict: ...
    async def update(self, scope: Scope, path: str, old: str, new: str, *, key: str) -> Verdict: ...
    async def delete(self, scope: Scope, path: str, *, key: str) -> Verdict: ...


class BadPath(ValueError):  # noqa: N818 - it says what is wrong
    """This is no path below the root, in words that a model can act on."""


def plain(path: str) -> str:
    """The one spelling of a path: `./a//b.md` and `memory_dir/a/b.md` are `a/b.md`, the root is ""."""
    # Before anything is normalised: a long text is expensive to look at, and compatibility forms are there to deceive.
    if len(path.encode("utf-8", "replace")) > MAX_PATH:
        raise BadPath(f"the path is longer than {MAX_PATH} bytes")
    path = unicodedata.normalize("NFC", path)
    if any(unicodedata.category(character) in _HIDDEN for character in path):
        raise BadPath(f"{_shown(path)} has characters that cannot be seen")
    if path.startswith(("/", "~")) or "\\" in path or ":" in path:
        raise BadPath(f"{_shown(path)} is not a path inside {ROOT}; use one such as people/ann.md")
    if _ESCAPED.search(path):
        raise BadPath(f"{_shown(path)} has percent escapes; write the characters themselves")
    names = [name for name in path.split("/") if name not in ("", ".")]
    if names and names[0] == ROOT:
        names = names[1:]
    if len(names) > MAX_DEPTH:
        raise BadPath(f"{_shown(path)} is deeper than {MAX_DEPTH} names")
    for name in names:
        _check(name, path)
    # Composed characters may take more bytes than they did apart.
    if len("/".join(names).encode()) > MAX_PATH:
        raise BadPath(f"the path is longer than {MAX_PATH} bytes")
    return "/".join(names)


def _check(name: str, path: str) -> None:
    """Refuses names that mean something else on some machine, also where another form of a character hides it."""
    looks_like = unicodedata.normalize("NFKC", name)
    if not looks_like.strip(". ") or any(character in looks_like for character in "/\\"):
        raise BadPath(f"{_shown(path)} leads elsewhere; paths only go down from {ROOT}")
    if name != name.strip() or name.endswith("."):
        raise BadPath(f"in {_shown(path)} a name begins or ends with a space, or ends with a dot")
    if _DEVICE.fullmatch(looks_like):
        raise BadPath(f"in {_shown(path)} a name is that of a device; choose another")
    if _ESCAPED.search(looks_like):
        raise BadPath(f"{_shown(path)} has percent escapes; write the characters themselves")


def _shown(path: str) -> str:
    return repr(path) if len(path) <= 100 else f"{path[:100]!r}…"
