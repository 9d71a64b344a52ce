"""Sessions that this process has in memory: what a journal has told already is not read and folded once more.

A journal only grows and sessions are frozen, so one that is in memory is right up to its head. What requests are made
of (`agents/requests/pieces.py`) stays with it too.
"""

import time
from collections import OrderedDict
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from longhouse.agents.requests import pieces
from longhouse.journal.session import Session
from longhouse.store import journals
from longhouse.store.database import Database

MOST_BYTES: Final = 32 * 2**20
"""Of all sessions that are kept between their turns; in memory, with what requests are made of, it is twice as much."""
KEPT_FOR: Final = 300.0
"""Seconds; people who write again mostly do so within minutes."""


class _KeptSession(msgspec.Struct, frozen=True):
    session: Session
    size: int
    until: float


class ResidentSessions:
    def __init__(self, *, most_bytes: int = MOST_BYTES, kept_for: float = KEPT_FOR) -> None:
        self._most_bytes = most_bytes
        self._kept_for = kept_for
        self._held: WeakValueDictionary[str, Session] = WeakValueDictionary()
        """Those that others hold anyway, such as the stream of a request that a worker is about to serve."""
        self._kept: OrderedDict[str, _KeptSession] = OrderedDict()
        """Those at rest, the longest unused first."""
        self._size = 0
        self._retries = 0

    @property
    def ids(self) -> set[str]:
        return {*self._held, *self._kept}

    async def load(self, db: Database, session_id: str, head: int | None = None) -> Session:
        """The session, at least up to this head; None: up to its last event."""
        if db.retries != self._retries:  # Postgres was away; where it failed over, its last events may be gone
            self._retries = db.retries
            self.clear()
        known = self._newest(session_id)
        if known is None:
            session = await journals.load(db, session_id, head)
        elif head == known.head:
            return known
        elif head is not None and known.head > head:
            # Somebody has just appended, or Postgres has lost events in a failover: only the journal can tell.
            self.drop(session_id)
            session = await journals.load(db, session_id, head)
        else:
            session = await journals.catch_up(db, known)
        self.note(session)
        return session

    def _newest(self, session_id: str) -> Session | None:
        held, kept = self._held.get(session_id), self._kept.get(session_id)
        if kept and (held is None or held.head <= kept.session.head):
            return kept.session
        return held

    def note(self, session: Session) -> None:
        """Notes a recorded session, which others can use as long as somebody holds it."""
        held = self._held.get(session.id)
        if held is None or held.head < session.head:
            self._held[session.id] = session

    def keep(self, session: Session) -> None:
        """Keeps a session that rests for its next turn; those that were not used for longest make room."""
        self._let_go(session.id)
        # As in a snapshot: MessagePack has no numbers beyond 64 bits. A transcript was encoded for requests already.
        size = len(msgspec.json.encode(replace(session, transcript=()))) + pieces.size_of(session.transcript)
        if size > self._most_bytes:
            return
        self._kept[session.id] = _KeptSession(session, size, time.monotonic() + self._kept_for)
        self._size += size
        while self._size > self._most_bytes:
            self._let_go(next(iter(self._kept)))

    def drop(self, session_id: str, fence: int = 0) -> None:
        """The session was deleted, or its run was stopped."""
        self._held.pop(session_id, None)
        self._let_go(session_id)

    def clear(self) -> None:
        self._held.clear()
        self._kept.clear()
        self._size = 0

    def drop_idle(self) -> None:
        """Lets go of those that were not used for a while: what people have said does not stay in memory."""
        now = time.monotonic()
        while self._kept and next(iter(self._kept.values())).until < now:
            self._let_go(next(iter(self._kept)))

    def _let_go(self, session_id: str) -> None:
        if kept := self._kept.pop(session_id, None):
            self._size -= kept.size
