"""Where sessions that lost a worker do, one at a time, what may take this one down too."""

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from longhouse.store import leases
from longhouse.store.database import Database
from longhouse.store.leases import Lease

QUIET: Final = 0.2
"""Seconds after which as many again join those inside: what takes a process down mostly does so at once."""
ALONE_WITHIN: Final = 30.0
"""Seconds that a blamed session lets the others end first."""
BLAMED_FOR: Final = 1.0
"""Seconds after which the next one joins a blamed session that is inside: it may run a tool that takes long."""
ON_TRIAL: Final = 1
WAITING: Final = -1


class _Entrant(msgspec.Struct, eq=False):
    is_blamed: bool
    since: float


class Trials:
    """The trial place of a process. Only sessions that lost a worker enter it, and only while they do something here.

    Who is inside is written down before. If this process dies, those inside may have been the cause; all others merely
    waited, for the model or for the place, and the loss does not count against them. A blamed session, which was inside
    already when a worker died, is tried alone, after the others have ended: they shall not lose another worker by it.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._queue: list[_Entrant] = []
        self._inside: dict[str, _Entrant] = {}
        self._under_way: set[str] = set()
        """Sessions that have been inside and still run here, other than blamed ones."""
        self._entered_at = 0.0
        """When somebody came into the empty place, or a blamed session came in."""
        self._is_open = False
        self._changed = asyncio.Event()

    @property
    def waiting(self) -> int:
        """How many sessions wait for the place."""
        return len(self._queue)

    def has(self, session_id: str) -> bool:
        return session_id in self._inside

    async def enter(self, lease: Lease, *, is_blamed: bool) -> None:
        """Waits for the place, and writes down that the session has it."""
        if self.has(lease.session_id):
            return
        entrant = _Entrant(is_blamed, _now())
        self._queue.append(entrant)
        try:
            while not self._may_enter(entrant):
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET):
                        await self._changed.wait()
        finally:
            self._queue.remove(entrant)
        if is_blamed or not self._inside:
            self._entered_at = _now()
        self._inside[lease.session_id] = entrant
        if not is_blamed:
            self._under_way.add(lease.session_id)
        try:
            await leases.note_trial(self._db, lease, ON_TRIAL)
        except BaseException:
            self.acquit(lease.session_id)
            raise

    async def step_aside(self, lease: Lease) -> None:
        """Gives the place up while the session merely waits."""
        if self.has(lease.session_id):
            await leases.note_trial(self._db, lease, WAITING)
            self.acquit(lease.session_id)

    def acquit(self, session_id: str) -> None:
        """Gives the place up, without a word: the session has got on, and the journal says so."""
        if session_id in self._inside:
            del self._inside[session_id]
            self._wake()

    def end(self, session_id: str) -> None:
        """The run is over."""
        was_inside = self._inside.pop(session_id, None)
        if was_inside or session_id in self._under_way:
            self._under_way.discard(session_id)
            self._wake()

    def open(self) -> None:
        """Lets everybody in: the process leaves, and nobody is to wait for that."""
        self._is_open = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _may_enter(self, entrant: _Entrant) -> bool:
        if self._is_open:
            return True
        inside_for = _now() - self._entered_at
        if any(one.is_blamed for one in self._inside.values()) and inside_for < BLAMED_FOR:
            return False
        # Blamed ones let all others go first.
        first = min(self._queue, key=lambda one: one.is_blamed)
        if first is not entrant:
            return False
        if not entrant.is_blamed:
            return not self._inside or len(self._inside) < 2 ** int(inside_for / QUIET)
        has_waited = _now() - entrant.since >= ALONE_WITHIN
        is_alone = all(one.is_blamed for one in self._inside.values())
        return is_alone and (has_waited or not self._under_way)


def _now() -> float:
    return asyncio.get_running_loop().time()
