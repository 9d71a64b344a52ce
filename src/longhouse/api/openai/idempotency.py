"""Idempotency of racing retries: a retry waits for the same request that is still being committed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from longhouse.store.requests import RequestIdentity


class RequestsInProgress:
    """Requests that this process is writing to a journal."""

    def __init__(self) -> None:
        self._done: dict[asyncio.Event, RequestIdentity] = {}

    @contextmanager
    def writing(self, accepted: RequestIdentity) -> Iterator[None]:
        """Registers the request while it is being written, whether or not that succeeds."""
        done = asyncio.Event()
        self._done[done] = accepted
        try:
            yield
        finally:
            del self._done[done]
            done.set()

    async def others(self, accepted: RequestIdentity) -> bool:
        """Waits for identical requests in progress; returns whether there were any."""
        mine = (accepted.owner, accepted.digest)
        identical = [done for done, one in self._done.items() if (one.owner, one.digest) == mine]
        for done in identical:
            await done.wait()
        return bool(identical)
