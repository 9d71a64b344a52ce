"""The example service: what it sends with a request, and what it keeps of the stream that comes back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from examples.web_memory_service.app import AgentsError, WebMemoryService, language_of, routes
from examples.web_memory_service.stream import event_in, events_of, kept_of, problem_of, words_of
from redis.asyncio import Redis

from longhouse.integrations.redis.client import RedisHistory
from longhouse.memory import MemoryService

CALLS = [{"id": "1-action-0", "type": "function", "function": {"name": "clocktool", "arguments": "{}"}}]


def event(role: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "subagent_name": "analytic", "chat_id": "12345", "timestamp": 1.0, **more}


def chunk(content: str = "", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content} if content else {}}], **more}


async def streamed(*lines: str) -> AsyncIterator[bytes]:
    for line in lines:
        yield f"{line}\n".encode()


async def test_a_stream_is_read_event_by_event() -> None:
    lines = [": keep-alive", "", "event: x", 'data: {"a":', 'data: "é"}', "", "data: [DONE]", "", 'data:{"b": 2}', ""]
    assert [one async for one in events_of(streamed(*lines, "data: {"))] == [{"a": "é"}, {"b": 2}]


def test_events_become_the_messages_of_a_history() -> None:
    told = [
        event("subagent_delegation", task="Look"),
        event("subagent_tool", tool="clocktool"),
        event("subagent_assistant_with_tools", content=None, tool_calls=CALLS),
        event("subagent_tool_result", tool_call_id="1-action-0", name="clocktool", content="17:00"),
        event("subagent_completion", response="Five"),
    ]
    kept = [kept for one in told if (kept := kept_of(one))]
    assert {name for name, _ in kept} == {"analytic"}
    assert [message.to_dict() for _, message in kept] == [
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "", "tool_calls": CALLS},
        {"role": "tool", "content": "17:00", "tool_call_id": "1-action-0", "name": "clocktool"},
        {"role": "assistant", "content": "Five"},
    ]


def test_only_what_belongs_to_a_sub_agent_is_kept() -> None:
    assert kept_of({"role": "subagent_completion", "response": "whose?"}) is None
    assert kept_of({"event": "tool_call", "agent": "master"}) is None
    assert kept_of(event_in(chunk("words"))) is None
    named = kept_of(event_in(chunk(x_agent={"event": "subagent_delegation", "subagent_name": "a", "task": "t"})))
    assert named is not None
    assert (named[0], named[1].content) == ("a", "t")


def test_the_answer_is_what_the_chunks_say() -> None:
    assert words_of(chunk("Hel")) + words_of(chunk()) + words_of({"choices": []}) + words_of(chunk("lo")) == "Hello"
    assert problem_of({"error": {"message": "it broke", "code": "x"}}) == "it broke"
    assert problem_of(chunk("fine")) is None


class Agents:
    """Agents at the other end of the wire, who keep nothing: they play what they are given and note what they got."""

    def __init__(self, *turns: list[dict[str, Any]]) -> None:
        self.turns = list(turns)
        self.got: list[Any] = []

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.got.append(json.loads(await request.read()))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for one in self.turns.pop(0):
            await response.write(f"data: {json.dumps(one)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def talking_to(agents: Agents, memory: MemoryService) -> AsyncIterator[WebMemoryService]:
    runner = web.ServerRunner(web.Server(agents.handle))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
            yield WebMemoryService(memory, http, language="ru")
    finally:
        await runner.cleanup()


def delegated(task: str, response: str) -> list[dict[str, Any]]:
    return [
        chunk(x_agent=event("subagent_delegation", task=task)),
        chunk(x_agent=event("subagent_completion", response=response)),
    ]


async def test_what_came_back_is_sent_along_the_next_time(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_SESSION_LOG_DIR", str(tmp_path))
    first = [*delegated("пользователя зовут Алия", "Я запомнил"), *delegated("как зовут?", "Алия")]
    first += [chunk("Вас зовут "), chunk("Алия")]
    agents = Agents(first, [chunk("Алия")])
    async with talking_to(agents, MemoryService(redis=RedisHistory(redis))) as service:
        assert await service.ask(12345, "Скажи и спроси") == "Вас зовут Алия"
    # Another process of the service, which has only Redis to remember by.
    async with talking_to(agents, MemoryService(redis=RedisHistory(redis))) as service:
        assert await service.ask(12345, "Как меня зовут?") == "Алия"
    before, after = agents.got
    assert before == {
        "message": "Скажи и спроси", "chat_id": 12345, "context": [], "subagent_contexts": {"analytic": []},
        "agent_version": "master",
    }  # fmt: skip
    assert after["context"] == [
        {"role": "user", "content": "Скажи и спроси"}, {"role": "assistant", "content": "Вас зовут Алия"},
    ]  # fmt: skip
    assert [message["content"] for message in after["subagent_contexts"]["analytic"]] == [
        "пользователя зовут Алия", "Я запомнил", "как зовут?", "Алия",
    ]  # fmt: skip
    assert json.loads(await redis.get("subagent:analytic:12345") or b"") == after["subagent_contexts"]["analytic"]
    log = (tmp_path / "memory_sessions" / "memory_12345.log").read_text("utf-8")
    assert log.count("📥 НОВЫЙ ЗАПРОС") == 2
    assert "История подагента 'analytic' загружена: 4 сообщений" in log


async def test_a_stream_that_ends_in_an_error_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHOUSE_SESSION_LOG_DIR", str(tmp_path))
    memory = MemoryService()
    async with talking_to(Agents([chunk("Ha"), {"error": {"message": "the model failed"}}]), memory) as service:
        with pytest.raises(AgentsError, match="the model failed"):
            await service.ask(1, "Hello")
    assert await memory.get_context_for_agent(1) == [{"role": "user", "content": "Hello"}]


async def test_what_cannot_be_answered_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGHOUSE_SESSION_LOG_DIR", str(tmp_path))
    async with talking_to(Agents([{"error": {"message": "the model failed"}}]), MemoryService()) as service:
        runner = web.AppRunner(routes(service))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            async with aiohttp.ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as http:
                wrong: tuple[Any, ...] = ({"message": "whose?"}, [], "{")
                for body in wrong:
                    async with http.post("/chat", json=body) as response:
                        assert (response.status, "chat_id" in await response.text()) == (400, True)
                async with http.post("/chat", json={"chat_id": 1, "message": "Hello"}) as response:
                    assert (response.status, "the model failed" in await response.text()) == (502, True)
        finally:
            await runner.cleanup()


def test_the_language_of_the_log_is_that_of_the_environment() -> None:
    assert language_of({}) == "en"
    assert language_of({"LONGHOUSE_LOG_LANGUAGE": "ru"}) == "ru"
    assert language_of({"LOG_LANGUAGE": "zh"}) == "zh"
    with pytest.raises(SystemExit, match="LONGHOUSE_LOG_LANGUAGE is 'de': use one of en, ru, zh"):
        language_of({"LONGHOUSE_LOG_LANGUAGE": "de"})
