"""A block that ends after so many seconds."""

import asyncio

import pytest

from longhouse.time_limit import TimeLimit


async def test_what_ends_in_time_returns_and_raises_as_it_does() -> None:
    here = asyncio.current_task()
    assert here is not None
    limit = TimeLimit(10)
    with limit:
        await asyncio.sleep(0)
    with pytest.raises(ValueError, match="own"), TimeLimit(10):
        raise ValueError("own")
    assert (limit.is_over, here.cancelling()) == (False, 0)


async def test_what_takes_longer_is_cancelled_and_told_by_its_reason() -> None:
    here = asyncio.current_task()
    assert here is not None
    limit = TimeLimit(0.01)
    with pytest.raises(TimeoutError) as late, limit:
        await asyncio.sleep(60)
    assert isinstance(late.value.__cause__, asyncio.CancelledError)

    async def in_vain() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise ValueError("nothing was sent") from None

    with pytest.raises(TimeoutError) as late, TimeLimit(0.01):
        await in_vain()
    assert isinstance(late.value.__cause__, ValueError)
    with TimeLimit(0.01):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            result = "after all"
    assert (result, limit.is_over, here.cancelling()) == ("after all", True, 0)
    await asyncio.sleep(0)  # no cancellation is left


async def test_of_two_limits_the_one_that_is_over_counts() -> None:
    outer, inner = TimeLimit(0.01), TimeLimit(60)
    with pytest.raises(TimeoutError), outer, inner:
        await asyncio.sleep(60)
    assert (outer.is_over, inner.is_over) == (True, False)


async def test_who_cancels_the_task_is_heard_although_the_time_is_over() -> None:
    ends = asyncio.Event()

    async def work() -> None:
        with TimeLimit(0.01):
            try:
                await asyncio.sleep(60)
            finally:
                await ends.wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
