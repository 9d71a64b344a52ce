"""The resume cursor of a tree stream: an event id with which a client continues on any server."""

import base64
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from longhouse.errors import CallerError
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Root

BEGINNING: Final = "0"
LONGEST: Final = 60_000
"""Characters of an id; servers and proxies refuse longer headers anyway."""

_Seq = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_decoder: Final = msgspec.json.Decoder(tuple[str, _Seq, dict[str, _Seq]])


@dataclass(slots=True)
class TreeCursor:
    """How far a client has read each journal of a tree."""

    root: str
    seen_heads: dict[str, int]

    @property
    def seq(self) -> int:
        """The seq of the top session."""
        return self.seen_heads.get(self.root, 0)

    @property
    def id(self) -> str:
        below = {_mark(session): seq for session, seq in self.seen_heads.items() if session != self.root}
        written = msgspec.json.encode((_mark(self.root), self.seq, below))
        return base64.urlsafe_b64encode(written).decode().rstrip("=")


async def cursor_of(db: Database, root: str, text: str) -> TreeCursor:
    """Decodes a cursor; an invalid one, or one of another session, is refused."""
    if text == BEGINNING:
        return TreeCursor(root, {})
    mark, seq, below = _read(text)
    known = {_mark(node.id): node for node in await tree.nodes(db, [Root(root, root, None)])}
    seqs = {mark: seq, **below}
    if mark != _mark(root) or mark in below or any(key not in known or seqs[key] > known[key].head for key in seqs):
        raise _refusal()
    return TreeCursor(root, {known[key].id: seqs[key] for key in seqs})


def _read(text: str) -> tuple[str, int, dict[str, int]]:
    try:
        if len(text) > LONGEST:
            raise _refusal()
        return _decoder.decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors too
        raise _refusal() from None


@lru_cache(maxsize=10_000)
def _mark(session_id: str) -> str:
    """A short form of a session id: each event carries those of its whole tree."""
    return base64.urlsafe_b64encode(hashlib.blake2s(session_id.encode(), digest_size=6).digest()).decode()


def _refusal() -> CallerError:
    return CallerError("The event id to continue from is not one of this session.", param="after")
