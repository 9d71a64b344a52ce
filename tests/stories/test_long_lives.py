"""A server that lives long stays as it is, and so does a session."""

import asyncio

import psutil

from longhouse.models.scripted import Script, call
from longhouse.models.scripted_server import serve as serve_model
from longhouse.store.database import Database
from server_helpers import AGENT, Process, Serving, indexed, process

BODY = {"model": AGENT, "messages": [{"role": "user", "content": "What time is it?"}]}
ANSWER = Script(by="step", replies=(call("finalanswertool", answer="Late."),))
SCENE = Script(by="step", replies=(call("clocktool"), call("finalanswertool", answer="Late.")))
WARM_UP, MANY = 120, 240


async def live(house: Process, sessions: int) -> None:
    """So many sessions, one after another; every other one is streamed."""
    for number in range(sessions):
        body = {**BODY, "stream": bool(number % 2)}
        async with house.http.post("/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert b"Late." in await response.read()


async def least_memory(watched: psutil.Process) -> int:
    seen = []
    for _ in range(6):
        seen.append(watched.memory_info().rss)
        await asyncio.sleep(0.25)
    return min(seen)


async def test_hundreds_of_sessions_leave_nothing_behind(dsn: str, db: Database) -> None:
    settings = {"database_url": dsn, "log_level": "warning"}
    async with (
        serve_model(ANSWER, remember=False) as model,
        process(llm_base_url=model.url, **settings) as house,
    ):
        watched = psutil.Process(house.process.pid)
        await live(house, WARM_UP)
        await indexed(house.http)
        memory, files, threads = await least_memory(watched), watched.num_fds(), watched.num_threads()
        await live(house, MANY)
        assert await least_memory(watched) - memory < 4 * 2**20
        # Flat but for the pool, which grows by a connection where a sweep and a request meet.
        assert watched.num_fds() <= files + 4
        assert watched.num_threads() <= threads
        assert await db.value("SELECT count(*) FROM sessions WHERE state = 'COMPLETED'") == WARM_UP + MANY


async def test_a_session_of_many_turns_keeps_its_call_ids_apart_and_its_history_whole(serving: Serving) -> None:
    async with serving(SCENE) as house:
        session_id = (await house.say("Turn 0"))["model"]
        for number in range(1, 40):
            answered = await house.say(f"Turn {number}", model=session_id)
            assert answered["choices"][0]["message"]["content"] == "Late."
        session = await house.folded(session_id)
        uses = [use.call for entry in session.transcript if hasattr(entry, "uses") for use in entry.uses]
        assert len(uses) == len(set(uses)) == 80
        assert house.model is not None
        last = house.model.requests[-1]["messages"]
        assert [message["content"] for message in last if message["role"] == "user"] == [f"Turn {n}" for n in range(40)]
        assert sum(message["role"] == "tool" for message in last) == 79
