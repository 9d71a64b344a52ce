"""Pieces of a reply as they are sent on: what the client has cannot be changed, and is not sent again."""

from typing import Any

import pytest

from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.turn_stream import TurnStream
from longhouse.journal import events
from longhouse.journal.events import Event, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.runtime.bus.items import Facts, Fragment
from longhouse.runtime.bus.local import Bus, Subscription
from server_helpers import BEGAN

LIMITS = events.Limits(max_iterations=20, max_clarifications=3, time_budget=1800)
STARTED = events.Started(trace="t", prompt=2, version=1, instance="i", limits=LIMITS, date="2026-01-31")
LOOKED = (
    events.Replied(text="Я смотрю.", streamed_chars=9),
    events.Called(call="1-action-0", tool="clocktool", arguments="{}"),
)


def journal(*more: Event) -> list[Recorded]:
    opened = events.Opened(agent="clerk", version=1, owner="local", conversation="c")
    prompted = events.Prompted(trace="t", content=("Который час?",))
    return [Recorded(seq=seq, at=BEGAN, event=one) for seq, one in enumerate((opened, prompted, STARTED, *more), 1)]


async def sent(*steps: tuple[int, int, tuple[str, ...]], records: list[Recorded]) -> tuple[list[str], str]:
    """The contents that are sent of replies written at (seq, fence), and the code of an error."""
    nothing_is_read: Any = None
    begun = fold(records[:2], blank("clerk_1"))
    stream = TurnStream(nothing_is_read, Bus(), TurnHandle(begun, "t"), Subscription())
    stream.subscription.put(Facts(tuple(records[2:])))
    for after, fence, texts in steps:
        offset = 0
        for text in texts:
            stream.subscription.put(Fragment(after, fence, "content", offset, text))
            offset += len(text)
    pieces = await anext(stream.pieces())
    return [one.content for one in pieces if one.content], stream.error.code or "" if stream.error else ""


@pytest.mark.parametrize(
    ("again", "expected", "error"),
    [
        (("на", "на", " часах", " 午"), ["на", "на", " часах", " 午"], ""),
        (("нана часах",), ["на", "на", " часах"], ""),
        (("н", "ан"), ["на", "на"], ""),
        (("на", "не", "т"), ["на", "на"], "step_restarted"),
    ],
)
async def test_a_step_that_is_written_again_goes_on_where_the_client_is(
    again: tuple[str, ...], expected: list[str], error: str
) -> None:
    assert await sent((3, 1, ("на", "на")), (3, 2, again), records=journal()) == (expected, error)


async def test_a_reply_goes_on_after_one_that_is_recorded_and_white_space_alone_is_no_reply() -> None:
    contents, _ = await sent((5, 1, ("\n", "Сейчас", " полдень")), records=journal(*LOOKED))
    assert contents == ["Я смотрю.", "\n\n\nСейчас", " полдень"]
