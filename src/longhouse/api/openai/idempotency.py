"""Idempotency of racing retries: a retry waits for the same request that is still being committed."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from longhouse.store.requests import Accepted


class RequestsInProgress:
    """Requests that this process is writing to a journal, by sender and digest."""

    def __init__(self) -> None:
        self._placing: dict[tuple[str, str], list[asyncio.Event]] = {}

    @contextmanager
    def placing(self, accepted: Accepted) -> Iterator[None]:
        """Registers the request while it is being written, whether or not that succeeds."""
        if accepted.lock is None:
            yield
            return
        mark, over = (accepted.owner, accepted.digest), asyncio.Event()
        self._placing.setdefault(mark, []).append(over)
        try:
            yield
        finally:
            self._placing[mark].remove(over)
            if not self._placing[mark]:
                del self._placing[mark]
            over.set()

    async def others(self, accepted: Accepted) -> bool:
        """Waits for identical requests in progress; returns whether there were any."""
        placing = list(self._placing.get((accepted.owner, accepted.digest), ()))
        for over in placing:
            await over.wait()
        return bool(placing)
