"""A sub-agent is told a name and asked for it, in one request and in the next; Redis and the log tell the same."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from examples.web_memory_service.app import WebMemoryService
from redis.asyncio import Redis

from longhouse.agents.builtin import BUILT_IN
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MemoryPolicy
from longhouse.integrations.redis.client import RedisHistory
from longhouse.journal.messages import Assistant, ToolResult, User, text_of
from longhouse.memory import MemoryService
from longhouse.models.scripted import Say, call
from redis_server import RedisServer
from server_helpers import House, Serving, content

CHAT = 12345
TOLD = "пользователя зовут Алия"
ASKED = "как зовут пользователя?"


def scene(body: Body) -> Say:
    """A master that does what it is told, and a sub-agent that knows only what its history says."""
    said = [text_of(message.content) for message in body.messages if isinstance(message, User)]
    if "You work for another agent" in text_of(body.messages[0].content or ""):
        knows = any("Алия" in text for text in said)
        if said[-1] == ASKED:
            return call("finalanswertool", answer="Вас зовут Алия" if knows else "Я не знаю вашего имени")
        return call("finalanswertool", answer="Я запомнил, вас зовут Алия")
    results = _results(body)
    tasks = [TOLD, ASKED] if "Скажи подагенту" in said[-1] else [ASKED]
    if len(results) < len(tasks):
        return call("agent_analytic", task=tasks[len(results)])
    return call("finalanswertool", answer=results[-1])


def _results(body: Body) -> list[str]:
    """What sub-agents answered in this turn."""
    since = max(place for place, message in enumerate(body.messages) if isinstance(message, User))
    called = {
        one.id
        for message in body.messages[since:]
        if isinstance(message, Assistant)
        for one in message.tool_calls
        if one.function.name == "agent_analytic"
    }
    return [one.content for one in body.messages[since:] if isinstance(one, ToolResult) and one.tool_call_id in called]


async def say(house: House, text: str, **extra: Any) -> str:
    return content(await house.say(text, model="master", chat_id=CHAT, **extra))


async def kept(redis: Redis, key: str, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(20):
        while True:
            value = await redis.get(key)
            found: list[dict[str, Any]] = msgspec.json.decode(value) if value else []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.02)


async def test_what_a_sub_agent_was_told_it_knows_in_the_same_request_and_in_the_next(
    serving: Serving, server: RedisServer, redis: Redis
) -> None:
    async with serving(scene, redis_url=server.url) as house:
        assert (
            await say(house, "Скажи подагенту что меня зовут Алия, а потом спроси как меня зовут") == "Вас зовут Алия"
        )
        told = await kept(redis, f"subagent:analytic:{CHAT}", 4)
        assert told == [
            {"role": "user", "content": TOLD},
            {"role": "assistant", "content": "Я запомнил, вас зовут Алия"},
            {"role": "user", "content": ASKED},
            {"role": "assistant", "content": "Вас зовут Алия"},
        ]
        chat = await kept(redis, f"chat_history:{CHAT}", 2)
        assert [message["role"] for message in chat] == ["user", "assistant"]
    async with serving(scene, redis_url=server.url) as house:
        assert await say(house, "Как меня зовут?") == "Вас зовут Алия"
        assert len(await kept(redis, f"subagent:analytic:{CHAT}", 6)) == 6


async def test_what_redis_held_before_is_taken_over(serving: Serving, server: RedisServer, redis: Redis) -> None:
    before = [{"role": "user", "content": TOLD}, {"role": "assistant", "content": "Запомнил"}]
    said = [{"role": "user", "content": "Привет"}, {"role": "assistant", "content": "Здравствуйте"}]
    await redis.set(f"subagent:analytic:{CHAT}", msgspec.json.encode(before))
    await redis.set(f"chat_history:{CHAT}", msgspec.json.encode(said))
    async with serving(scene, redis_url=server.url) as house:
        assert await say(house, "Как меня зовут?") == "Вас зовут Алия"
        assert house.model is not None
        first = house.model.requests[0]["messages"]
        assert [message["content"] for message in first[1:]] == ["Привет", "Здравствуйте", "Как меня зовут?"]
        told = await kept(redis, f"subagent:analytic:{CHAT}", 4)
        assert told[:2] == before
        assert (await kept(redis, f"chat_history:{CHAT}", 4))[:2] == said


async def test_redis_keeps_as_many_messages_as_the_template_says(
    serving: Serving, server: RedisServer, redis: Redis
) -> None:
    policy = MemoryPolicy(max_history=2)
    short = [replace(one, memory_policy=policy) if one.name == "analytic" else one for one in BUILT_IN]
    async with serving(scene, templates=short, redis_url=server.url) as house:
        await say(house, "Скажи подагенту что меня зовут Алия, а потом спроси моё имя")
        last = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": "Вас зовут Алия"}]
        async with asyncio.timeout(20):
            while await kept(redis, f"subagent:analytic:{CHAT}", 1) != last:
                await asyncio.sleep(0.02)


LINES = """\
{rule}
📥 НОВЫЙ ЗАПРОС от пользователя: Скажи подагенту что меня зовут Алия, а потом спроси
✅ Сообщение пользователя сохранено в Redis
📚 История подагента 'analytic' загружена: 0 сообщений
   📭 История подагента пуста
💾 Задача для подагента сохранена: пользователя зовут Алия
💾 Финальный ответ подагента сохранён: Я запомнил, вас зовут Алия
💾 Задача для подагента сохранена: как зовут пользователя?
💾 Финальный ответ подагента сохранён: Вас зовут Алия
"""


async def test_the_log_tells_the_story_line_by_line(serving: Serving, server: RedisServer, tmp_path: Path) -> None:
    async with serving(scene, redis_url=server.url, session_log_dir=tmp_path, log_language="ru") as house:
        await say(house, "Скажи подагенту что меня зовут Алия, а потом спроси")
        expected = LINES.format(rule="=" * 80).splitlines()
        async with asyncio.timeout(20):
            while len(lines := _lines(tmp_path)) < len(expected):
                await asyncio.sleep(0.05)
        assert all(re.match(r"\d\d:\d\d:\d\d - ", line) for line in lines)
        told = [line[11:] for line in lines]
        assert [line.removesuffix("...") for line in told] == expected


def _lines(folder: Path) -> list[str]:
    files = list(folder.rglob(f"memory_{CHAT}.log"))
    return files[0].read_text("utf-8").splitlines() if files else []


@asynccontextmanager
async def keeping(house: House, redis: Redis) -> AsyncIterator[WebMemoryService]:
    """The example: a service that keeps all memory itself."""
    async with aiohttp.ClientSession(house.url) as http:
        yield WebMemoryService(MemoryService(redis=RedisHistory(redis)), http, language="ru")


async def test_the_example_keeps_the_memory_of_a_server_that_keeps_none(
    serving: Serving, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_SESSION_LOG_DIR", str(tmp_path))
    async with serving(scene) as house:
        async with keeping(house, redis) as service:
            assert await service.ask(CHAT, "Скажи подагенту моё имя, а потом спроси") == "Вас зовут Алия"
        assert len(await kept(redis, f"subagent:analytic:{CHAT}", 4)) == 4
        async with keeping(house, redis) as service:
            assert await service.ask(CHAT, "Как меня зовут?") == "Вас зовут Алия"
        async with aiohttp.ClientSession(house.url) as http:
            forgetful = WebMemoryService(MemoryService(), http)
            assert await forgetful.ask(CHAT, "Как меня зовут?") == "Я не знаю вашего имени"
