"""The live tail of a session, on the event loop of a server: its clock is not asyncio's."""

import asyncio
from typing import Any

import uvloop
from msgspec.structs import replace

from longhouse.api.sessions.tail import follow
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import blank
from longhouse.runtime.bus.items import Facts, JournalGrew, SubagentsChanged
from longhouse.runtime.bus.local import KEPT, Subscription
from server_helpers import BEGAN


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


async def test_what_is_told_twice_or_in_part_is_given_once_and_with_the_sessions_that_are_known() -> None:
    facts = [Recorded(seq=seq, at=BEGAN, event=events.Finished(answer=f"слово {seq}")) for seq in range(1, 6)]
    after_three = replace(blank("s"), head=3)
    nothing_is_read: Any = None
    subscription = Subscription()
    followed = follow(nothing_is_read, "s", subscription, after=1, beat=30.0)
    for item in (
        Facts(tuple(facts[:2])),  # the first is known
        Facts(tuple(facts[:2])),
        Facts(tuple(facts[1:3]), session=after_three),
        JournalGrew(3),
        Facts(tuple(facts[3:])),
    ):
        subscription.put(item)
    async with asyncio.timeout(10):
        batch = await anext(followed)
    assert batch == facts[1:]
    assert batch.sessions == {3: after_three}
    # Of what a slow follower has not read, few whole sessions are kept.
    more = [Recorded(seq=seq, at=BEGAN, event=events.Finished(answer="слово")) for seq in range(6, 1_006)]
    for one in more:
        subscription.put(Facts((one,), session=replace(blank("s"), head=one.seq)))
    async with asyncio.timeout(10):
        batch = await anext(followed)
    assert batch == more
    assert list(batch.sessions) == list(range(6, 6 + KEPT))
    await followed.aclose()
