"""A slot of this process's worker for a session that is about to be opened: opened and claimed by one statement."""

import asyncio

from longhouse.store.journals import Placed
from longhouse.store.leases import Claimant, Lease


class Reservation:
    def __init__(self, claimant: Claimant) -> None:
        self.claimant = claimant
        self._lease: asyncio.Future[Lease | None] = asyncio.get_running_loop().create_future()

    async def lease(self) -> Lease | None:
        """The lease, once the session is opened; None: it was not claimed, or not opened."""
        return await self._lease

    def give(self, lease: Lease | None) -> None:
        """Ends the reservation. A worker that was stopped meanwhile finds the session later, like a lost run."""
        if not self._lease.done():
            self._lease.set_result(lease)

    def settle(self, opening: asyncio.Future[Placed]) -> None:
        """The same, where nobody waits for what was opened: the client has left, or it failed."""
        failed = opening.cancelled() or opening.exception() is not None
        self.give(None if failed else opening.result().lease)
