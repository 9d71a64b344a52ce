"""Hints on their way out: what is left is written when a process leaves, and leaving comes to an end."""

import asyncio
import signal
from collections.abc import Iterator, Sequence

import pytest

from longhouse.runtime.bus.hints import Hint, Wake
from longhouse.runtime.bus.outbox import Outbox

WITHIN = 10
"""Seconds; a loop that never gives way is ended by a signal alone."""


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("the event loop is held")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(WITHIN)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


async def test_what_is_left_is_written_at_the_end() -> None:
    written: list[Hint] = []

    async def write(hints: Sequence[Hint]) -> None:
        await asyncio.sleep(0.01)
        written.extend(hints)

    outbox = Outbox("test", write)
    outbox.put(Wake("a"))
    await asyncio.sleep(0.005)  # the first batch is under way
    outbox.put(Wake("b"))
    await outbox.close()
    assert written == [Wake("a"), Wake("b")]


async def test_one_that_is_closed_at_the_moment_its_last_batch_ends_is_closed() -> None:
    """The batch is over by then, and the loop has yet to say so."""
    closing: list[asyncio.Task[None]] = []

    async def write(hints: Sequence[Hint]) -> None:
        await asyncio.sleep(0)
        closing.append(asyncio.create_task(outbox.close()))

    outbox = Outbox("test", write)
    outbox.put(Wake("a"))
    async with asyncio.timeout(WITHIN / 2):
        while not closing:
            await asyncio.sleep(0.001)
        await closing[0]
