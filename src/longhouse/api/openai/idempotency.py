"""Requests that are being placed: whoever has lost patience with one, and sends it again, waits for it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from longhouse.store.requests import Accepted


class RequestsInProgress:
    """Which requests are on their way into a journal in this process, by who sent them and what they say."""

    def __init__(self) -> None:
        self._placing: dict[tuple[str, str], list[asyncio.Event]] = {}

    @contextmanager
    def placing(self, accepted: Accepted) -> Iterator[None]:
        """While this one is placed, whether or not it arrives."""
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
        """Waits for those that say the same; were there any?"""
        placing = list(self._placing.get((accepted.owner, accepted.digest), ()))
        for over in placing:
            await over.wait()
        return bool(placing)
