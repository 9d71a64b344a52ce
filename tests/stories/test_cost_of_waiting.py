"""A session that waits is a row: no task, no connection, no memory."""

import asyncio
import time
from typing import Any

import psutil

from longhouse import clock
from longhouse.journal import events
from longhouse.models.scripted import call
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store.database import Database
from server_helpers import AGENT, Process, Serving, indexed, process

MANY = 10_000
LIMITS = events.Limits(max_iterations=20, max_clarifications=3, time_budget=1800)


async def insert_waiting(db: Database, number: int) -> None:
    """So many sessions that asked a question, exactly as a worker would have left them."""
    at, sessions, journal = clock.now(), [], []
    for index in range(number):
        session_id, trace = f"{AGENT}_00000000-0000-4000-8000-{index:012d}", f"t{index}"
        told: list[events.Event] = [
            events.Opened(agent=AGENT, version=1, owner="local", conversation=f"c{index}"),
            events.Prompted(trace=trace, content=("Will it rain?",)),
            events.Started(trace=trace, prompt=2, version=1, instance="i", limits=LIMITS, date="2026-01-31"),
            events.Replied(calls=(events.ProviderCall(id="p", name="clarificationtool", arguments="{}"),)),
            events.Called(call="1-action-0", tool="clarificationtool", arguments='{"questions":["Which city?"]}',
                          call_kind="ask", question="Which city?"),
        ]  # fmt: skip
        sessions.append((session_id, "local", f"c{index}", "root", AGENT, "", len(told), 1, False,
                         "WAITING_FOR_CLARIFICATION", 1, trace, "Will it rain?", at, at))  # fmt: skip
        journal += [
            (session_id, seq, f"c{index}", trace, events.kind_of(event), events.call_of(event),
             f"00000000-0000-0000-0000-{index:012d}", seq, events.encode(event), at)
            for seq, event in enumerate(told, 1)
        ]  # fmt: skip
    async with db.pool.acquire() as connection:
        await connection.copy_records_to_table(
            "sessions", records=sessions,
            columns=["id", "owner", "conversation_id", "side", "agent", "label", "head", "fence", "due",
                     "state", "version", "trace_id", "task", "created_at", "updated_at"],
        )  # fmt: skip
        await connection.copy_records_to_table(
            "journal", records=journal,
            columns=["session_id", "seq", "conversation_id", "trace_id", "kind", "call_id", "append_id", "nth",
                     "body", "at"],
        )  # fmt: skip


async def settled_memory(house: Process) -> int:
    """Bytes that the process holds once it has come to rest: the least of several looks over some sweeps."""
    watched = psutil.Process(house.process.pid)
    seen, until = [], time.monotonic() + 2.5
    while time.monotonic() < until:
        seen.append(watched.memory_info().rss)
        await asyncio.sleep(0.25)
    return min(seen)


async def ask_and_answer(house: Process) -> None:
    asked = await house.say("Will it rain?")
    answered = await house.say("Oslo", model=asked["model"])
    assert answered["choices"][0]["message"]["content"] == "Rain."


def weather(body: Any) -> Any:
    is_asked = any(message.__class__.__name__ == "ToolResult" for message in body.messages)
    return call("finalanswertool", answer="Rain.") if is_asked else call("clarificationtool", questions=["Which city?"])


async def test_ten_thousand_waiting_sessions_cost_a_server_no_memory(dsn: str, db: Database) -> None:
    """The same warm process before and after, so that nothing but the sessions differs."""
    async with serve_model(weather) as model, process(database_url=dsn, llm_base_url=model.url) as house:
        for _ in range(20):
            await ask_and_answer(house)
        await indexed(house.http)
        watched = psutil.Process(house.process.pid)
        before, threads = await settled_memory(house), watched.num_threads()
        await insert_waiting(db, MANY)
        after = await settled_memory(house)
        assert await db.value("SELECT count(*) FROM sessions WHERE state = 'WAITING_FOR_CLARIFICATION'") == MANY
        assert after - before <= 2 * 2**20
        assert watched.num_threads() == threads
        # They are there all the same: any of them is answered when its person comes.
        answered = await house.say("Bergen", model=f"{AGENT}_00000000-0000-4000-8000-{MANY // 2:012d}")
        assert answered["choices"][0]["message"]["content"] == "Rain."


async def test_waiting_sessions_hold_no_task_no_connection_and_no_slot(serving: Serving, db: Database) -> None:
    async with serving(weather, worker_slots=2) as house:
        asked = await house.say("Will it rain?")
        await house.say("Oslo", model=asked["model"])

        async def tasks_at_rest() -> int:
            """The tasks that are there when nothing goes on; the least of several looks, since beats come and go."""
            counts = []
            for _ in range(20):
                await asyncio.sleep(0.02)
                counts.append(len(asyncio.all_tasks()))
            return min(counts)

        def connections_in_use() -> int:
            return int(house.db.pool.size - house.db.pool.idle)

        tasks = await tasks_at_rest()
        questions = [await house.say("Will it rain?") for _ in range(20)]
        await insert_waiting(db, 2_000)
        async with asyncio.timeout(20):
            while house.app.worker.busy or connections_in_use() or len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0.01)
        assert house.db.pool.size < 10
        assert house.app.bus.followed == []
        # Two slots, twenty waiting: none of them is in another's way.
        answered = await house.say("Oslo", model=questions[-1]["model"])
        assert answered["choices"][0]["message"]["content"] == "Rain."
