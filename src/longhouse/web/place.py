"""How far a client has read a tree of agents: an id that it hands back to go on from there, wherever it reconnects."""

import base64
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from longhouse.errors import CallerError
from longhouse.store import trees
from longhouse.store.database import Database

BEGINNING: Final = "0"
LONGEST: Final = 60_000
"""Characters of an id; servers and proxies take no longer headers anyway."""

_Seq = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_decoder: Final = msgspec.json.Decoder(tuple[str, _Seq, dict[str, _Seq]])


@dataclass(slots=True)
class Place:
    """The last event that was told of each session of a tree."""

    root: str
    seen: dict[str, int]

    @property
    def seq(self) -> int:
        """Of the session at the top."""
        return self.seen.get(self.root, 0)

    @property
    def id(self) -> str:
        below = {_mark(session): seq for session, seq in self.seen.items() if session != self.root}
        written = msgspec.json.encode((_mark(self.root), self.seq, below))
        return base64.urlsafe_b64encode(written).decode().rstrip("=")


async def place_of(db: Database, root: str, text: str) -> Place:
    """The place that an id names; one of another session, or of none, is refused."""
    if text == BEGINNING:
        return Place(root, {})
    mark, seq, below = _read(text)
    known = {_mark(node.id): node for node in await trees.grown(db, root, {})}
    seqs = {mark: seq, **below}
    if mark != _mark(root) or mark in below or any(key not in known or seqs[key] > known[key].head for key in seqs):
        raise _refusal()
    return Place(root, {known[key].id: seqs[key] for key in seqs})


def _read(text: str) -> tuple[str, int, dict[str, int]]:
    try:
        if len(text) > LONGEST:
            raise _refusal()
        return _decoder.decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):  # msgspec's are ValueErrors too
        raise _refusal() from None


@lru_cache(maxsize=10_000)
def _mark(session_id: str) -> str:
    """A few characters for a session: each event carries those of its whole tree."""
    return base64.urlsafe_b64encode(hashlib.blake2s(session_id.encode(), digest_size=6).digest()).decode()


def _refusal() -> CallerError:
    return CallerError("The event id to continue from is not one of this session.", param="after")
