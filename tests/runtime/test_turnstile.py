"""Steps begin one in each turn of the event loop: whoever has only to be answered waits for one, not for all."""

import asyncio

from longhouse.runtime.turnstile import Turnstile


async def test_one_is_let_in_at_each_turn_of_the_loop_in_the_order_of_arrival() -> None:
    turnstile, turns, let_in = Turnstile(), 0, list[tuple[int, int]]()
    loop = asyncio.get_running_loop()

    def count() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(count)

    async def step(number: int) -> None:
        await turnstile.passed()
        let_in.append((number, turns))

    steps = [asyncio.create_task(step(number)) for number in range(5)]
    await asyncio.sleep(0)
    loop.call_soon(count)
    steps[1].cancel()
    await asyncio.wait(steps)
    assert [number for number, _ in let_in] == [0, 2, 3, 4]
    assert len({turn for _, turn in let_in}) == 4
    # It opens again after everybody has gone through.
    await asyncio.wait_for(turnstile.passed(), 20)
