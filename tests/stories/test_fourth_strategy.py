"""The strategy that the docs add in a few lines survives a kill -9 in the middle of a turn, as written."""

import asyncio
import re
from pathlib import Path
from typing import Any

from longhouse.agents.strategies.protocol import Body
from longhouse.journal.messages import User
from longhouse.models.scripted import Hang, Say, say
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import Process, launched

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"

SERVED = """

import asyncio

import uvicorn

from longhouse.app import open_app
from longhouse.settings import Settings


async def main() -> None:
    async with open_app(Settings(), templates=[careful]) as app:
        server = uvicorn.Server(uvicorn.Config(app.asgi, port=0, ws="none", lifespan="off", log_config=None))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print(f"serves on http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", flush=True)
        await serving


asyncio.run(main())
"""


def strategy() -> str:
    """The page's code block that defines it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    [found] = [block for block in blocks if "(BaseAgent)" in block]
    return str(found)


def last_words(messages: Any) -> str:
    return next(str(message.content) for message in reversed(messages) if isinstance(message, User))


async def session_of(house: Process) -> str:
    async with asyncio.timeout(20):
        while True:
            async with house.http.get("/v1/sessions") as response:
                if rows := (await response.json())["data"]:
                    return str(rows[0]["session_id"])
            await asyncio.sleep(0.01)


def test_the_fourth_strategy_takes_fewer_than_forty_lines() -> None:
    lines = [line for line in strategy().splitlines() if line.strip()]
    assert len(lines) < 40


async def test_a_kill_in_mid_turn_costs_the_fourth_strategy_no_phase(dsn: str, tmp_path: Path) -> None:
    program = tmp_path / "careful.py"
    program.write_text(strategy() + SERVED, "utf-8")
    is_up, criticised = False, asyncio.Event()

    def script(body: Body) -> Say:
        asked = last_words(body.messages)
        if asked.startswith("Criticise"):
            criticised.set()
            return say("It says nothing of snow.") if is_up else say("", fault=Hang())
        return say("Rain, and snow.") if asked.startswith("Now write") else say("Rain.")

    async with serve_model(script) as model:
        settings: dict[str, Any] = {"database_url": dsn, "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with launched(str(program), **settings) as first:
            saying = asyncio.create_task(first.say("Weather?", model="careful"))
            async with asyncio.timeout(20):
                await criticised.wait()
            session_id = await session_of(first)
            first.kill()
            await first.ended()
            await asyncio.wait([saying], timeout=20)
            assert saying.exception() is not None
        is_up = True
        async with launched(str(program), **settings) as second:
            shown = await second.until(session_id, "COMPLETED", "FAILED", within=30)
            assert shown["result"] == "Rain, and snow."
            facts = [fact["event"] for fact in await second.facts(session_id)]
        assert [fact["kind"] for fact in facts] == [
            "Opened", "Prompted", "Started", "Replied", "Resumed", "Replied", "Replied", "Finished",
        ]  # fmt: skip
        phases = [fact["phase"] for fact in facts if fact["kind"] == "Replied"]
        assert phases == ["draft", "critique", "answer"]
        draft, hung, critique, answer = model.requests
        assert hung == critique, "the phase that was lost is asked for again, in the same words"
        roles = [message["role"] for message in answer["messages"]]
        assert roles == ["system", "user", "assistant", "assistant", "user"]
        assert [message["content"] for message in answer["messages"][2:4]] == ["Rain.", "It says nothing of snow."]
        assert len(draft["messages"]) == 2
