"""Lets one in at each turn of the event loop, where many wait."""

import asyncio
from collections import deque
from typing import Final

FEW: Final = 3
"""Tasks that go through together: several in a row cost less than one in each turn of the event loop."""


class Turnstile:
    """Begins what would hold up others, in the order of arrival.

    A hundred sessions that go on at the same moment would make one turn of the event loop as long as all of their steps
    together, and whoever has only to be answered waits for the turn's end, several times. While more than a few wait
    here, one of them begins in each turn, so turns stay short.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False

    async def passed(self) -> None:
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiting.append(waiter)
        if not self._is_turning:
            self._is_turning = True
            loop.call_soon(self._turn)
        await waiter

    def _turn(self) -> None:
        let_in = len(self._waiting) if len(self._waiting) <= FEW else 1
        while self._waiting and let_in:
            waiter = self._waiting.popleft()
            if not waiter.done():  # cancelled ones are
                waiter.set_result(None)
                let_in -= 1
        self._is_turning = bool(self._waiting)
        if self._is_turning:
            self._waiting[0].get_loop().call_soon(self._turn)
