"""Finds the workers that are dead, by their locks and heartbeats, and removes them: their sessions are free then."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import structlog

from longhouse.runtime.workers.heartbeat import Heartbeat
from longhouse.store import leases
from longhouse.store.database import Database
from longhouse.store.leases import Suspect

log = structlog.get_logger()

POLL_EVERY: Final = 0.25
"""Seconds between two checks of other workers' locks. Free at both and no heartbeat in between: the worker is dead."""
BACK_WITHIN: Final = 2.0
"""Seconds that other workers have to be back after Postgres was away or cut connections: whoever is back first does not
take the rest for dead."""
FOUND_WITHIN: Final = 2 * POLL_EVERY
"""Seconds before the end of a lease at which a silent worker is taken for dead, so another goes on in time. It has
stopped its own runs after half a lease."""
MOST_BEATS: Final = 1_000
"""Other workers whose last heartbeat is kept."""


class DeadWorkers:
    """The other workers, as this one sees them."""

    def __init__(
        self, db: Database, worker: str, heartbeat: Heartbeat, beats: dict[str, datetime], *, lease: float
    ) -> None:
        """`beats`: takes the last heartbeat that was seen of each, also of those that others have removed since."""
        self._db = db
        self._worker = worker
        self._heartbeat = heartbeat
        self._beats = beats
        self._lease = lease
        self._silent_after = lease - min(FOUND_WITHIN, lease / 12)
        self._suspected: dict[str, Suspect] = {}
        self._looked_at = self._back_at = float("-inf")
        """The last look at the others, and the start of looks without a gap of half a lease."""

    async def remove(self) -> bool:
        """Removes dead workers: lock free at two checks and no heartbeat between, or none for almost a lease.

        Returns whether there were any.
        """
        suspects = await leases.suspects(self._db, self._worker, self._silent_after)
        self._note_look()
        self._note_beats(suspects)
        dead = [suspect for suspect in suspects if self._is_dead(suspect)]
        self._suspected = {suspect.worker: suspect for suspect in suspects if suspect.unlocked}
        for suspect in dead:
            log.warning("worker_dead", message="a worker is dead; its sessions are taken over", worker=suspect.worker)
            await leases.delete_dead_worker(self._db, suspect)
        return bool(dead)

    def _note_look(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._looked_at > self._lease / 2:
            self._back_at = now
        self._looked_at = now

    def _note_beats(self, suspects: Sequence[Suspect]) -> None:
        for suspect in suspects:
            self._beats[suspect.worker] = suspect.beat_at
        while len(self._beats) > max(MOST_BEATS, len(suspects)):
            del self._beats[next(iter(self._beats))]

    def _is_dead(self, suspect: Suspect) -> bool:
        if suspect.silent:
            return self._looked_at - self._back_at >= BACK_WITHIN
        if self._looked_at - self._heartbeat.lost_at < BACK_WITHIN:
            return False  # whatever cut our connection may have cut theirs: they reconnect, as we did
        before = self._suspected.get(suspect.worker)
        return bool(before and suspect.unlocked and not suspect.restarted and before.beat_at == suspect.beat_at)
