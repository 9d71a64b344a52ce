"""The live tail of a session, on the event loop of a server: its clock is not asyncio's."""

import asyncio
from typing import Any

import uvloop

from longhouse.api.sessions.tail import follow
from longhouse.runtime.bus.items import SubagentsChanged
from longhouse.runtime.bus.local import Subscription


def test_a_silent_follower_beats_again_and_again_whatever_the_clock_rounds() -> None:
    async def beats(seconds: float) -> None:
        nothing_is_read: Any = None
        subscription = Subscription()
        followed = follow(nothing_is_read, "s", subscription, after=0, beat=seconds)
        async with asyncio.timeout(10):
            for _ in range(20):
                assert await anext(followed) == []
            subscription.put(SubagentsChanged())
            assert SubagentsChanged() in [item for _ in range(2) for item in await anext(followed)]
        await followed.aclose()

    async def all_of_them() -> None:
        await asyncio.gather(*(beats(seconds) for seconds in (0.05, 0.0123, 0.03, 0.0071)))

    uvloop.run(all_of_them())
