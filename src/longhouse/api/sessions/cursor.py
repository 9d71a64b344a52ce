"""The resume cursor of an event stream: an event id with which a client continues on any server."""

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
from longhouse.store.sessions import SessionRow

BEGINNING: Final = "0"
NOW: Final = "now"
LONGEST: Final = 60_000
"""Characters of an id; servers and proxies refuse longer headers anyway."""

_Seq = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_decoder: Final = msgspec.json.Decoder(tuple[str, _Seq, dict[str, _Seq]])


@dataclass(slots=True)
class SessionCursor:
    """How far a client has read the journal of a session."""

    root: str
    seen_heads: dict[str, int]

    @property
    def seq(self) -> int:
        """The seq of the top session."""
        return self.seen_heads.get(self.root, 0)

    @property
    def id(self) -> str:
        return str(self.seq)


class TreeCursor(SessionCursor):
    """How far a client has read each journal of a tree."""

    @property
    def id(self) -> str:
        subagents = {_mark(session): seq for session, seq in self.seen_heads.items() if session != self.root}
        encoded = msgspec.json.encode((_mark(self.root), self.seq, subagents))
        return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


async def cursor_of(db: Database, row: SessionRow, text: str, *, is_tree: bool) -> SessionCursor:
    """Decodes a cursor; an invalid one, or one of another session, is refused."""
    if text == NOW:
        nodes = await tree.nodes(db, [Root(row.id, row.id, None)]) if is_tree else []
        heads = {**{node.id: node.head for node in nodes}, row.id: row.head}
        return TreeCursor(row.id, heads) if is_tree else SessionCursor(row.id, heads)
    if not is_tree:
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) <= row.head):
            raise _refusal()
        return SessionCursor(row.id, {row.id: int(text)})
    if text == BEGINNING:
        return TreeCursor(row.id, {})
    mark, seq, subagents = _decoded(text)
    known = {_mark(node.id): node for node in await tree.nodes(db, [Root(row.id, row.id, None)])}
    seqs = {mark: seq, **subagents}
    is_ours = mark == _mark(row.id) and mark not in subagents
    if not is_ours or any(key not in known or seqs[key] > known[key].head for key in seqs):
        raise _refusal()
    return TreeCursor(row.id, {known[key].id: seqs[key] for key in seqs})


def _decoded(text: str) -> tuple[str, int, dict[str, int]]:
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
