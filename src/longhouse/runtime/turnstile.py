"""Lets one in at each turn of the event loop."""

import asyncio
from collections import deque


class Turnstile:
    """Begins what would hold up others one after the other, in the order of arrival.

    A hundred sessions that go on at the same moment would make one turn of the event loop as long as all of their steps
    together, and whoever has only to be answered waits for the turn's end, several times. Through here at most one step
    begins in each turn, so turns stay short, and the rest waits in front.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turning = False

    async def passed(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_turning:  # the first one of this turn
            self._is_turning = True
            loop.call_soon(self._turn)
            return
        waiter = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _turn(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # cancelled ones are
                waiter.set_result(None)
                asyncio.get_running_loop().call_soon(self._turn)
                return
        self._is_turning = False
