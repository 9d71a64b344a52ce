"""Where sessions that lost a worker do, one at a time, what may take this one down too."""

import asyncio
from dataclasses import dataclass
from typing import Final

from longhouse.store import leases
from longhouse.store.database import Database
from longhouse.store.leases import Lease

QUIET: Final = 0.2
"""Seconds after which as many again join those inside: what takes a process down mostly does so at once."""
ALONE_WITHIN: Final = 30.0
"""Seconds that a blamed session lets the others end first."""
ON_TRIAL: Final = 1
WAITING: Final = -1


@dataclass(eq=False)
class _Entrant:
    session_id: str
    is_blamed: bool
    since: float
    admitted: asyncio.Future[None]


class Trials:
    """The trial place of a process. Only sessions that lost a worker enter it, and only while they do something here.

    Who is inside is written down before. If this process dies, those inside may have been the cause; all others merely
    waited, for the model or for the place, and the loss does not count against them. A blamed session, which was inside
    already when a worker died, is tried alone, after the others have ended: they shall not lose another worker by it.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._queue: list[_Entrant] = []
        self._inside: dict[str, bool] = {}
        """Session -> whether it is blamed."""
        self._under_way: set[str] = set()
        """Sessions that have been inside and still run here, other than blamed ones."""
        self._width = 1
        """How many may be inside."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False

    def has(self, session_id: str) -> bool:
        return session_id in self._inside

    async def enter(self, lease: Lease, *, is_blamed: bool) -> None:
        """Waits for the place, and writes down that the session has it."""
        if self.has(lease.session_id):
            return
        loop = asyncio.get_running_loop()
        entrant = _Entrant(lease.session_id, is_blamed, loop.time(), loop.create_future())
        self._queue.append(entrant)
        self._admit()
        try:
            await entrant.admitted
            await leases.note_trial(self._db, lease, ON_TRIAL)
        except BaseException:
            if entrant in self._queue:
                self._queue.remove(entrant)
            self.acquit(lease.session_id)
            raise

    async def step_aside(self, lease: Lease) -> None:
        """Gives the place up while the session merely waits."""
        if self.has(lease.session_id):
            await leases.note_trial(self._db, lease, WAITING)
            self.acquit(lease.session_id)

    def acquit(self, session_id: str) -> None:
        """Gives the place up, without a word: the session has got on, and the journal says so."""
        if self._inside.pop(session_id, None) is not None:
            self._admit()

    def end(self, session_id: str) -> None:
        """The run is over."""
        self._under_way.discard(session_id)
        self._inside.pop(session_id, None)
        self._admit()

    def open(self) -> None:
        """Lets everybody in: the process leaves, and nobody is to wait for that."""
        self._is_open = True
        self._admit()

    def _admit(self) -> None:
        if not self._inside:
            self._stop_timer()
            self._width = 1
        while entrant := self._next():
            self._queue.remove(entrant)
            self._inside[entrant.session_id] = entrant.is_blamed
            if not entrant.is_blamed:
                self._under_way.add(entrant.session_id)
            entrant.admitted.set_result(None)
        if self._queue and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(QUIET, self._widen)

    def _next(self) -> _Entrant | None:
        """Who may enter now."""
        waiting = [entrant for entrant in self._queue if not entrant.admitted.done()]  # cancelled ones are
        if self._is_open:
            return next(iter(waiting), None)
        if any(self._inside.values()):
            return None
        for entrant in waiting:
            if not entrant.is_blamed:
                return entrant if len(self._inside) < self._width else None
        for entrant in waiting:
            has_waited = asyncio.get_running_loop().time() - entrant.since >= ALONE_WITHIN
            return entrant if not self._inside and (has_waited or not self._under_way) else None
        return None

    def _widen(self) -> None:
        self._timer = None
        self._width *= 2
        self._admit()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
