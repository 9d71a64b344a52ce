"""The least that a durable loop can do: call the model, append with fsync, nothing else."""

import asyncio
import time
from typing import Any

from bench.house import Ground
from bench.model import STEPS
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.tool import Tool
from longhouse.journal.messages import Assistant, Function, Message, System, ToolCall, ToolResult, User
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel

TABLE = "CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, body json NOT NULL)"
APPEND = "INSERT INTO bare (body) VALUES (:body)"
CLOCK = Tool(name="clocktool", description="Tell the time.", schema={"type": "object", "properties": {}})


async def play(ground: Ground, *, sessions: int, at_once: int) -> dict[str, Any]:
    await ground.db.run(TABLE)
    left = iter(range(sessions))
    async with open_endpoint(ground.model_url) as endpoint:
        model = OpenAIModel(endpoint)

        async def one_after_another() -> None:
            for _ in left:
                await _session(ground, model)

        await _session(ground, model)
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.gather(*(one_after_another() for _ in range(at_once)))
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    steps = sessions * STEPS
    return {
        "at once": at_once,
        "sessions/s": round(sessions / seconds, 1),
        "CPU ms/step": round(cpu / steps * 1000, 2),
    }


async def _session(ground: Ground, model: OpenAIModel) -> None:
    messages: list[Message] = [System(content="Use tools."), User(content="work")]
    for step in range(STEPS):
        body = Body(model="m", messages=messages, tools=(CLOCK.spec("clocktool"),), tool_choice="required")
        arguments = "".join([part.arguments async for delta in model.stream(body) for part in delta.calls])
        await ground.db.run(APPEND, body='{"replied": true}')
        call = ToolCall(id=f"{step}-action-0", function=Function(name="clocktool", arguments=arguments))
        messages += [Assistant(tool_calls=(call,)), ToolResult(tool_call_id=call.id, content="noon")]
        await ground.db.run(APPEND, body='{"returned": true}')
