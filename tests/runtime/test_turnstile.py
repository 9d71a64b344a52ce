"""Where many steps would begin, one does in each turn of the event loop: whoever is only answered waits for one."""

import asyncio

import pytest

from longhouse.runtime.workers import turnstile
from longhouse.runtime.workers.turnstile import Turnstile


async def test_of_many_one_is_let_in_at_each_turn_of_the_loop_in_the_order_of_arrival(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turnstile, "FEW", 2)
    stile, turns, let_in = Turnstile(), 0, list[tuple[int, int]]()
    loop = asyncio.get_running_loop()

    def count() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(count)

    async def step(number: int) -> None:
        await stile.passed()
        let_in.append((number, turns))

    steps = [asyncio.create_task(step(number)) for number in range(6)]
    await asyncio.sleep(0)
    loop.call_soon(count)
    steps[1].cancel()
    await asyncio.wait(steps)
    assert [number for number, _ in let_in] == [0, 2, 3, 4, 5]
    at = [turn for _, turn in let_in]
    assert len(set(at[:3])) == 3, "one in each turn"
    assert at[3] == at[4], "the last few together"
    # It opens again after everybody has gone through.
    await asyncio.wait_for(stile.passed(), 20)
