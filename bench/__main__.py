"""Runs every benchmark and prints what it measured, with the machine it ran on."""

import uvloop

from bench import (
    baseline,
    catalog,
    curves,
    delegation,
    fleet,
    interactions,
    isolation,
    ledger,
    loop_turns,
    processes,
    search,
    slots,
    spine,
    start,
    takeover,
    thinking,
)
from bench.house import ground, house
from bench.report import console, machine, show


async def main() -> None:
    console.print(machine())
    show("building the request of a step", thinking.requests())
    show("a tool in a warm process of its own", [await isolation.warm_calls()])
    show("20 others beside tools that exit, loop and take 4 GB", [await isolation.beside_deadly()])
    async with ground() as under:
        bare = await baseline.play(under, sessions=60, at_once=20)
        await delegation.prepare(under)
        async with house(under) as served:
            await spine.play(under, served, sessions=40, at_once=20)  # warm-up
            rows = []
            for sessions, at_once in ((60, 1), (300, 20), (400, 100)):
                played = await spine.play(under, served, sessions=sessions, at_once=at_once)
                rows.append(played.row())
            show("a durable ten-step session over HTTP", rows)
            show("the bare durable loop, for comparison (model calls and fsynced appends, nothing else)", [bare])
            show("two ways to think", await thinking.sides(under, served, sessions=100, at_once=20))
            await delegation.overhead(served, sessions=20, at_once=4)  # warm-up
            rows = [await delegation.overhead(served, sessions=n, at_once=m) for n, m in ((200, 1), (400, 20))]
            show("asking another agent", rows)
            rows = [await spine.plain_text(served, sessions=n, at_once=m) for n, m in ((10, 1), (100, 20))]
            show("an answer in plain text that takes a second to write, by an agent with tools", rows)
            show("relayed chunks", [await spine.relay(served)])
            show("idle event streams", [await spine.idle_streams(served)])
        show("a gateway and a worker", [await fleet.measure(under, nats=nats) for nats in (True, False)])
        show("a worker is lost in the middle of a step", await takeover.measure(under, kills=20, stops=1))
        show("turns of the event loop", await loop_turns.measure(under))
        show("one process and two", await processes.measure(under))
        show("one worker and two", await slots.measure(under))
        show("turns of one person's talks, found by words and meaning", [await interactions.measure(under)])
        show(
            "the ledger of one conversation (a page of 50 through each filter, ms)",
            [await ledger.measure(under, 100_000)],
        )
        show("tool search", [await search.measure(under, count) for count in (4_000, 100_000)])
    show("a catalog of many tools (read over HTTP, p50 / p95)", await catalog.play())
    for title, rows in await start.measure():
        show(title, rows)
    curves.show_all(await curves.measure(), curves.PICTURE)


if __name__ == "__main__":
    uvloop.run(main())
