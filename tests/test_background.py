"""One loop for all that is repeated in the background: it goes on over trouble, says so once, and ends when told."""

import asyncio
from collections.abc import Sequence

import structlog

from longhouse import background


class Steps:
    """Fails as it is told to, step by step, and then goes well."""

    def __init__(self, errors: Sequence[Exception | None]) -> None:
        self.errors = list(errors)
        self.is_done = asyncio.Event()

    async def __call__(self) -> None:
        error = self.errors.pop(0) if self.errors else None
        if not self.errors:
            self.is_done.set()
        if error:
            raise error


async def told_of(*errors: Exception | None, away: background.Errors = ()) -> list[str]:
    steps = Steps(errors)
    with structlog.testing.capture_logs() as logs:
        async with background.running("mending", steps, away=away), asyncio.timeout(20):
            await steps.is_done.wait()
    assert {one["task"] for one in logs} <= {"mending"}
    return [one["event"] for one in logs]


async def test_trouble_is_told_once_until_it_is_over() -> None:
    lost = ConnectionResetError("gone")
    told = await told_of(lost, lost, lost, None, lost, None, None)
    assert told == ["database_unreachable", "database_reachable"] * 2


async def test_a_defect_is_told_each_time_and_ends_nothing() -> None:
    assert await told_of(ValueError("ours"), ValueError("ours"), None) == ["background_task_failed"] * 2


async def test_another_service_that_is_away_is_not_taken_for_postgres() -> None:
    errors = (
        LookupError("redis"),
        LookupError("redis"),
        ConnectionResetError(),
        None,
        LookupError("redis"),
        None,
        None,
    )
    told = await told_of(*errors, away=(LookupError,))
    assert told == ["service_unreachable", "database_unreachable", "database_reachable", "service_unreachable"]


async def test_a_cancellation_that_a_driver_swallows_ends_it_even_so() -> None:
    has_begun, times = asyncio.Event(), 0

    async def step() -> None:
        nonlocal times
        times += 1
        has_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionResetError("instead of the cancellation") from None

    async with asyncio.timeout(20):
        async with background.running("stubborn", step):
            await has_begun.wait()
    assert times == 1


async def test_what_is_repeated_begins_at_the_same_moments_and_never_later_than_asked() -> None:
    loop = asyncio.get_running_loop()
    for seconds in (background.TICK, 0.5, 1.0, 600.0):
        waits = []
        for _ in range(20):
            waits.append((loop.time(), background.until_tick(seconds)))
            await asyncio.sleep(0.003)
        assert all(seconds - background.TICK <= wait <= seconds for _, wait in waits)
        ticks = [(now + wait) / background.TICK % 1 for now, wait in waits]
        assert all(min(abs(one - ticks[0]), 1 - abs(one - ticks[0])) < 0.05 for one in ticks), "one phase for all"
    assert background.until_tick(0.05) <= 0.05, "what is repeated more often has moments of its own"
    assert background.until_tick(-1.0) <= 0, "what is late begins at once"


def test_a_timer_that_rings_a_little_early_counts_as_its_moment() -> None:
    """Else the step would begin twice, and what is to come once a second would come after three quarters of one."""
    moment = 40_000 * background.TICK + background.OWN
    for seconds in (background.TICK, 0.5, 1.0):
        for now in (moment - 0.0004, moment, moment + 0.0004):
            assert abs(background._until_tick(now, seconds) - seconds) < 0.001
