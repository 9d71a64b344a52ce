"""Hints in one process: who follows hears, in batches, and nothing is left behind."""

import asyncio
from contextlib import ExitStack

import pytest

from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.runtime.bus import local
from longhouse.runtime.bus.hints import Ask, Hint, News
from longhouse.runtime.bus.items import (
    Draft,
    Facts,
    Fragment,
    GrowingDraft,
    Item,
    JournalGrew,
    SubagentsChanged,
    Written,
)
from longhouse.runtime.bus.local import Bus, Subscription
from server_helpers import BEGAN, so_far

FACTS = Facts((Recorded(seq=1, at=BEGAN, event=events.Finished(answer="x")),))
FRAGMENT = Fragment(after=1, fence=1, kind="content", offset=0, text="x")


async def taken(subscription: Subscription) -> list[Item]:
    async with asyncio.timeout(20):
        return await subscription.take()


async def test_a_follower_takes_everything_since_its_last_look_in_one_batch() -> None:
    bus = Bus()
    with bus.subscribed("s") as subscription:
        for item in (FRAGMENT, FACTS, JournalGrew(3)):
            bus.publish("s", item)
        assert await taken(subscription) == [FRAGMENT, FACTS, JournalGrew(3)]
        bus.publish("s", JournalGrew(4))
        assert await taken(subscription) == [JournalGrew(4)]


async def test_what_happens_in_the_middle_of_a_turn_comes_together_with_what_follows() -> None:
    """But nothing overtakes anything, and it comes by itself if nothing follows."""
    bus = Bus()
    middle: list[Item] = [Facts(FACTS.recorded, more_follow=True), SubagentsChanged(more_follow=True)]
    with bus.subscribed("s") as subscription:
        waiting = asyncio.create_task(taken(subscription))
        for item in middle:
            bus.publish("s", item)
            await asyncio.sleep(0)
            assert not waiting.done()
        bus.publish("s", FRAGMENT)
        assert await waiting == [*middle, FRAGMENT]
        bus.publish("s", middle[0])
        assert await taken(subscription) == [middle[0]]


async def test_what_waits_is_told_when_the_model_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first words then come alone. Followers of other sessions, and those who have nothing, hear nothing of it."""
    monkeypatch.setattr(local, "LINGER", 3600)
    bus = Bus()
    middle = Facts(FACTS.recorded, more_follow=True)
    with bus.subscribed("s") as early, bus.subscribed("other") as other:
        for session_id in ("s", "other"):
            bus.publish(session_id, middle)
        with bus.subscribed("s") as late:
            waiting = [asyncio.create_task(taken(one)) for one in (early, late, other)]
            with bus.drafting("s", GrowingDraft(after=1, fence=1)):
                assert await waiting[0] == [middle]
                assert [task.done() for task in waiting] == [True, False, False]
                bus.publish("s", FRAGMENT)
                assert (await taken(early), await waiting[1]) == ([FRAGMENT], [FRAGMENT])
            bus.publish("other", FRAGMENT)
            assert await waiting[2] == [middle, FRAGMENT]
        with ExitStack() as many:
            for number in range(local.FEW):
                many.enter_context(bus.subscribed(f"{number}"))
            bus.publish("other", middle)
            waiting = [asyncio.create_task(taken(other))]
            with bus.drafting("other", GrowingDraft(after=1, fence=1)):
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert not waiting[0].done(), "of many, what happened waits for the words"
                bus.publish("other", FRAGMENT)
                assert await waiting[0] == [middle, FRAGMENT]


async def test_a_follower_waits_until_there_is_something() -> None:
    bus = Bus()
    with bus.subscribed("s") as subscription:
        waiting = asyncio.create_task(taken(subscription))
        await asyncio.sleep(0)
        assert not waiting.done()
        bus.publish("s", JournalGrew(1))
        assert await waiting == [JournalGrew(1)]


async def test_every_follower_of_a_session_hears_and_no_other() -> None:
    bus = Bus()
    with bus.subscribed("s") as one, bus.subscribed("s") as two, bus.subscribed("other") as other:
        bus.publish("s", JournalGrew(1))
        assert await taken(one) == await taken(two) == [JournalGrew(1)]
        bus.publish("other", JournalGrew(2))
        assert await taken(other) == [JournalGrew(2)]


async def test_nothing_is_left_behind_when_followers_leave() -> None:
    bus = Bus()
    with bus.subscribed("s"):
        with bus.subscribed("s"):
            assert "s" in bus.followed
        assert bus.followed == ["s"]
    assert "s" not in bus.followed
    with pytest.raises(ValueError, match="gone"), bus.subscribed("s"):
        raise ValueError("gone")
    bus.publish("s", FRAGMENT)
    assert bus.followed == []
    assert bus == Bus()


def test_asking_leaves_nothing_behind_either() -> None:
    bus = Bus()
    assert "s" not in bus.followed
    assert bus.draft("s") is None
    bus.publish("s", JournalGrew())
    assert bus == Bus()


async def test_an_append_from_outside_wakes_the_worker_and_the_followers() -> None:
    woken: list[str] = []
    stopped: list[tuple[str, int]] = []
    bus = Bus()
    bus.on_wake.append(woken.append)
    bus.on_wake.append(woken.append)
    bus.on_stop.append(lambda session_id, fence: stopped.append((session_id, fence)))
    with bus.subscribed("s") as subscription:
        bus.appended("s", 7)
        assert woken == ["s", "s"]
        assert await taken(subscription) == [JournalGrew(7)]
    bus.wake("t")
    bus.stop("u", 3)
    assert (woken[2:], stopped) == (["t", "t"], [("u", 3)])


def test_a_draft_is_there_while_it_is_written() -> None:
    bus, draft = Bus(), GrowingDraft(after=3, fence=1)
    with bus.drafting("s", draft):
        draft.content.add("Hel")
        assert so_far(bus, "s") == Draft(after=3, fence=1, content="Hel")
        assert bus.draft("t") is None
    assert bus.draft("s") is None
    with pytest.raises(ValueError, match="cut"), bus.drafting("s", draft):
        raise ValueError("cut")
    assert bus == Bus()


def test_a_deposed_draft_does_not_take_the_new_one_with_it() -> None:
    bus, old, new = Bus(), GrowingDraft(after=3, fence=1), GrowingDraft(after=3, fence=2)
    leaving = bus.drafting("s", old)
    leaving.__enter__()
    with bus.drafting("s", new):
        leaving.__exit__(None, None, None)
        assert bus.draft("s") is new
    assert bus.draft("s") is None


class Sent:
    """A relay that keeps what it should carry."""

    reconnects = 0
    is_connected = True

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def send(self, hint: Hint) -> None:
        self.hints.append(hint)

    def follow(self, session_id: str) -> None:
        pass

    unfollow = attend = follow


async def test_a_draft_that_has_a_gap_is_asked_for_once_and_what_is_known_is_not_told_again() -> None:
    relay = Sent()
    bus = Bus(relay)
    with bus.subscribed("s") as subscription:
        for number in range(5):
            bus.receive(News("s", Fragment(1, 1, "content", 5 + number, "x")))
        assert relay.hints == [Ask("s")]
        whole, more = Written(1, 1, "12345xxxxx", "hm"), Fragment(1, 1, "content", 8, "xx, and more")
        bus.receive(News("s", whole))
        await taken(subscription)
        # Somebody elsewhere asks too: the pieces of the answer are known here.
        for item in (Written(1, 1, "123", ""), Fragment(1, 1, "content", 3, "45xxxxx"), more, whole):
            bus.receive(News("s", item))
        assert await taken(subscription) == [more]
        assert so_far(bus, "s") == Draft(1, 1, "12345xxxxx, and more", "hm")
        for number in range(5):
            bus.receive(News("s", Fragment(1, 1, "content", 30 + number, "y")))
        for number in range(5):
            bus.receive(News("s", Fragment(2, 1, "content", 30 + number, "z")))
        assert relay.hints == [Ask("s")] * 3
    assert bus == Bus(relay)
