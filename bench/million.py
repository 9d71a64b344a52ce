"""A thousand, a hundred thousand and a million sessions in the tables: does anything get slower?

`python -m bench.million [sizes]`. Of each size, 60 in 100 are finished, 30 wait for a person (three of them also for a
time), 9.8 are due and wait for a worker, and 0.2 are held by living workers. Every waiting, due and held session has
its events, and every sixth of the finished ones.
"""

import itertools
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp
import numpy as np
import uvloop

from bench import filling
from bench.filling import AGENT
from bench.house import Ground, ground, house
from bench.report import console, machine, show
from longhouse import clock
from longhouse.journal import events
from longhouse.journal.fold import extended
from longhouse.journal.session import Session
from longhouse.store import journals, leases

SIZES: Final = (1_000, 100_000, 1_000_000)
SLOTS: Final = 32
PAGES: Final = {
    "/v1/sessions": "/v1/sessions",
    "of a state": "/v1/sessions?state=WAITING_FOR_CLARIFICATION",
    "of a state that none has": "/v1/sessions?state=FAILED",
    "of a conversation": "/v1/sessions?conversation_id=c-asked10",
    "/admin/sessions": "/admin/sessions",
    "of one owner": "/admin/sessions?owner=owner-7",
    "/v1/questions": "/v1/questions?limit=200",
    "/admin/questions": "/admin/questions?limit=200",
    "/admin/operations": "/admin/operations",
}


async def grow(under: Ground, before: int, size: int) -> None:
    """Brings the tables from one size to the next."""

    async def add(name: str, share: float, **more: Any) -> None:
        await filling.fill(under.db, f"{name}{before or ''}", round((size - before) * share), **more)

    await add("finished", 0.6, state="COMPLETED", journals=round((size - before) / 10))
    await add("asked", 0.27, state="WAITING_FOR_CLARIFICATION", told=filling.ASKED)
    await add("timed", 0.03, state="WAITING_FOR_CLARIFICATION", told=filling.ASKED, wakes=True)
    await add("due", 0.098, state="INITED", told=filling.ASKED[:2], due=True)
    await add("held", 0.002, state="RESEARCHING", told=filling.ASKED[:3], due=True, holder="living")
    await filling.settle(under.db)


async def measure(under: Ground, size: int) -> dict[str, Any]:
    found: dict[str, Any] = {"sessions": f"{size:,}"}
    own = await own_session(under)
    found["claim"] = await p50(lambda: _claim(under, own))
    found["RUNNABLE"] = await p50(lambda: leases.runnable(under.db, "another", 4 * SLOTS, running=[]), 20)
    found["FIRE"] = await p50(lambda: leases.fire(under.db), 100)
    found["append"] = await p50(await _appending(under, own))
    found["append that asks"] = await p50(await _asking(under))
    await under.db.run("ALTER TABLE sessions DISABLE TRIGGER USER")
    found["the same without the trigger"] = await p50(await _asking(under))
    await under.db.run("ALTER TABLE sessions ENABLE TRIGGER USER")
    found["opening"] = await p50(lambda: own_session(under))
    async with (
        house(under, "serve", "--port", "0", "--no-worker") as served,
        aiohttp.ClientSession(served.url) as http,
    ):
        for name, path in PAGES.items():
            found[name] = await p50(lambda path=path: _get(http, path), 20)  # type: ignore[misc]
    return found


async def p50(act: Callable[[], Awaitable[Any]], times: int = 300) -> str:
    """Milliseconds."""
    taken = []
    for number in range(times + times // 10):
        began = time.perf_counter()
        await act()
        if number >= times // 10:  # the first ones warm up
            taken.append(1000 * (time.perf_counter() - began))
        if sum(taken) > 10_000:
            break
    return f"{np.median(taken):.2f}"


async def own_session(under: Ground, owner: str = "local") -> str:
    """A session with a prompt that waits for a worker."""
    session_id, conversation = f"{AGENT}_{uuid.uuid4()}", str(uuid.uuid4())
    opened = events.Opened(agent=AGENT, version=1, owner=owner, conversation=conversation)
    prompted = events.Prompted(trace=conversation, content=("Will it rain?",))
    await journals.open(under.db, session_id, opened, prompted, task="Will it rain?")
    return session_id


async def _claim(under: Ground, session_id: str) -> None:
    assert (await leases.claim(under.db, session_id, "living")).lease


async def _appending(under: Ground, session_id: str) -> Callable[[], Awaitable[None]]:
    """Appends a call and its outcome, as the holder does."""
    lease = (await leases.claim(under.db, session_id, "living")).lease
    assert lease
    session, numbers = await journals.load(under.db, session_id), itertools.count()

    async def append() -> None:
        call = f"{next(numbers)}-action-0"
        called = events.Called(call=call, tool="clocktool", arguments='{"timezone":"UTC"}')
        new: list[events.Event] = [called, events.Returned(call=call, outcome=events.Output(content="12:00"))]
        now = clock.now()
        await journals.append(under.db, session, new, fence=lease.fence, worker="living", at=now, rest=None)

    return append


async def _asking(under: Ground) -> Callable[[], Awaitable[None]]:
    """Appends a question and its answer: the session joins those that wait for a person, and leaves them."""
    session_id = await own_session(under)
    lease = (await leases.claim(under.db, session_id, "living")).lease
    assert lease
    session, numbers = await journals.load(under.db, session_id), itertools.count()
    waiting = extended(session, filling.ASKED[2:], clock.now())
    assert waiting.state == "WAITING_FOR_CLARIFICATION"

    async def append() -> None:
        call = f"{next(numbers)}-action-0"
        asks = events.Called(call=call, tool="clarificationtool", arguments="{}", call_kind="ask", question="Where?")
        told = events.Returned(call=call, outcome=events.Output(content="Oslo"))
        steps: list[tuple[Session, list[events.Event]]] = [(waiting, [events.Replied(), asks]), (session, [told])]
        for after, new in steps:
            now = clock.now()
            await journals.append(under.db, after, new, fence=lease.fence, worker="living", at=now, rest=None)

    return append


async def _get(http: aiohttp.ClientSession, path: str) -> None:
    async with http.get(path) as response:
        assert response.status == 200, await response.text()
        await response.read()


async def main(*sizes: int) -> None:
    console.print(machine())
    rows: list[dict[str, Any]] = []
    async with ground() as under:
        await under.db.run(
            "INSERT INTO workers (id, lock_key, node, pid, slots) VALUES ('living', 0, 'bench', 0, 2000)"
        )
        before = 0
        for size in sizes or SIZES:
            began = time.perf_counter()
            await grow(under, before, size)
            console.print(f"{size:,} sessions after {time.perf_counter() - began:.0f} s")
            rows.append(await measure(under, size))
            before = size
        size_on_disk = await under.db.value("SELECT pg_size_pretty(pg_database_size(current_database()))")
    names = list(rows[0])[1:]
    title = f"p50 in ms by the number of sessions in the tables ({size_on_disk} in the end)"
    show(title, [{"what": name, **{row["sessions"]: row[name] for row in rows}} for name in names])


if __name__ == "__main__":
    uvloop.run(main(*map(int, sys.argv[1:])))
