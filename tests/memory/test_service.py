"""MemoryService: what a MasterAgent's web service keeps, by the names it knows. Its three old defects stay away."""

import asyncio
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from longhouse.integrations.redis.client import RedisHistory
from longhouse.memory import MemoryMessage, MemoryService, memory_service
from redis_server import RedisServer

SUB = "subagent:analytic:12345"
TASK = MemoryMessage(role="user", content="The user is called Алия", timestamp=1.0)
DONE = MemoryMessage(role="assistant", content="Noted", timestamp=2.0)


def plain(*messages: MemoryMessage) -> list[dict[str, Any]]:
    return [message.to_dict() for message in messages]


@pytest.fixture
def service(redis: Redis) -> MemoryService:
    return MemoryService(redis=RedisHistory(redis))


def test_the_defaults_are_those_people_know() -> None:
    service = MemoryService()
    assert (service.max_history, service.context_window, service.redis) == (100, 10, None)


def test_a_message_is_written_as_openai_writes_it() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    called = MemoryMessage(role="assistant", content="", tool_calls=calls)
    result = MemoryMessage(role="tool", content="seen", tool_call_id="a", name="look")
    assert called.to_dict() == {"role": "assistant", "content": "", "tool_calls": calls}
    assert result.to_dict() == {"role": "tool", "content": "seen", "tool_call_id": "a", "name": "look"}
    assert TASK.to_dict() == {"role": "user", "content": "The user is called Алия"}
    assert MemoryMessage("user", "now").timestamp > TASK.timestamp


async def test_a_history_is_kept_in_redis_as_a_json_array(service: MemoryService, redis: Redis) -> None:
    await service.add_subagent_message(12345, "analytic", TASK)
    await service.add_subagent_message(12345, "analytic", DONE)
    value = await redis.get(SUB)
    assert value is not None
    assert msgspec.json.decode(value) == plain(TASK, DONE)
    assert await service.get_subagent_context("12345", "analytic") == plain(TASK, DONE)
    assert await service.get_subagent_context(12345, "other") == []


async def test_the_first_load_fills_the_cache_with_what_redis_has(service: MemoryService, redis: Redis) -> None:
    await service.add_subagent_message(12345, "analytic", TASK)
    later = MemoryService(redis=RedisHistory(redis))
    assert await later.get_subagent_context(12345, "analytic") == plain(TASK)
    appending = MemoryService(redis=RedisHistory(redis))
    await appending.add_subagent_message(12345, "analytic", DONE)
    assert msgspec.json.decode(await redis.get(SUB) or b"") == plain(TASK, DONE)


async def test_a_string_is_a_ready_key_and_a_number_is_that_of_a_chat(service: MemoryService, redis: Redis) -> None:
    await service.save_history(12345, [TASK])
    await service.save_history(SUB, [DONE])
    assert sorted(await redis.keys()) == [b"chat_history:12345", SUB.encode()]
    assert [message.content for message in await service.load_history(SUB)] == ["Noted"]
    assert await service.get_context_for_agent(12345) == plain(TASK)
    assert await service.get_context_for_agent("12345") == plain(TASK)


async def test_what_keeps_histories_reads_numbers_and_keys_in_the_same_way(redis: Redis) -> None:
    kept = RedisHistory(redis)
    await kept.save_history(12345, plain(TASK))
    await kept.save_history(SUB, plain(DONE))
    assert sorted(await redis.keys()) == [b"chat_history:12345", SUB.encode()]
    assert await kept.load_history(12345) == await kept.load_history("chat_history:12345") == plain(TASK)
    assert await kept.load_history(SUB) == plain(DONE)


async def test_the_one_service_of_a_process_goes_by_the_name_that_people_import(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (memory_service.max_history, memory_service.context_window) == (100, 10)
    assert memory_service._get_subagent_key(12345, "analytic") == SUB
    monkeypatch.setattr(memory_service, "redis", RedisHistory(redis))
    await memory_service.add_subagent_message(12345, "analytic", TASK)
    assert await redis.keys() == [SUB.encode()]
    memory_service.memory_cache.clear()

    class OfAnother(MemoryService):
        def _get_subagent_key(self, chat_id: int | str, subagent_name: str) -> str:
            return f"alerts/{super()._get_subagent_key(chat_id, subagent_name)}"

    await OfAnother(redis=RedisHistory(redis)).add_subagent_message(12345, "analytic", DONE)
    assert sorted(await redis.keys()) == [f"alerts/{SUB}".encode(), SUB.encode()]


async def test_the_second_call_of_a_request_sees_the_first(service: MemoryService) -> None:
    seen = []
    for _ in range(2):
        seen.append(len(await service.get_subagent_context(12345, "analytic")))
        await service.add_subagent_message(12345, "analytic", TASK)
        await service.add_subagent_message(12345, "analytic", DONE)
    assert seen == [0, 2]
    assert len(await service.get_subagent_context(12345, "analytic")) == 4


async def test_without_redis_the_process_remembers() -> None:
    service = MemoryService()
    await service.add_message(1, TASK)
    await service.save_history(2, [DONE])
    assert await service.get_context_for_agent(1) == plain(TASK)
    assert await service.get_context_for_agent(2) == plain(DONE)


async def test_what_is_returned_is_a_copy(service: MemoryService) -> None:
    await service.add_message(1, TASK)
    (await service.load_history("chat_history:1")).clear()
    assert await service.get_context_for_agent(1) == plain(TASK)


async def test_a_context_is_the_newest_messages_and_no_half_of_a_call(service: MemoryService) -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    called = MemoryMessage(role="assistant", content="", tool_calls=calls)
    result = MemoryMessage(role="tool", content="seen", tool_call_id="a", name="look")
    for message in (TASK, called, result, DONE):
        await service.add_subagent_message(1, "analytic", message)
    assert await service.get_subagent_context(1, "analytic", context_window=3) == plain(called, result, DONE)
    assert await service.get_subagent_context(1, "analytic", context_window=2) == plain(DONE)
    await service.add_subagent_message(1, "analytic", called)
    assert await service.get_subagent_context(1, "analytic", context_window=2) == plain(DONE)
    for number in range(12):
        await service.add_message(1, MemoryMessage(role="user", content=str(number)))
    assert [message["content"] for message in await service.get_context_for_agent(1)] == [str(n) for n in range(2, 12)]


async def test_no_more_than_max_history_is_kept_and_no_pair_is_split(redis: Redis) -> None:
    service = MemoryService(max_history=3, redis=RedisHistory(redis))
    calls = [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    called = MemoryMessage(role="assistant", content="", tool_calls=calls)
    result = MemoryMessage(role="tool", content="seen", tool_call_id="a")
    for message in (TASK, called, result, DONE):
        await service.add_message(1, message)
    assert await service.load_history("chat_history:1") == [called, result, DONE]
    await service.add_message(1, TASK)
    assert await service.load_history("chat_history:1") == [DONE, TASK]
    assert msgspec.json.decode(await redis.get("chat_history:1") or b"") == plain(DONE, TASK)


async def test_messages_added_at_once_are_all_kept(service: MemoryService, redis: Redis) -> None:
    numbers = [str(number) for number in range(20)]
    await asyncio.gather(*(service.add_message(1, MemoryMessage("user", number)) for number in numbers))
    kept = [message["content"] for message in msgspec.json.decode(await redis.get("chat_history:1") or b"")]
    assert kept == numbers


async def test_a_redis_that_fails_is_told_and_its_history_is_not_overwritten(
    service: MemoryService, redis: Redis, server: RedisServer
) -> None:
    await service.add_subagent_message(12345, "analytic", TASK)
    await redis.save()
    await server.kill()
    fresh = MemoryService(redis=RedisHistory(redis))
    with pytest.raises((RedisError, OSError)):
        await fresh.add_subagent_message(12345, "analytic", DONE)
    await server.start()
    await fresh.add_subagent_message(12345, "analytic", DONE)
    assert msgspec.json.decode(await redis.get(SUB) or b"") == plain(TASK, DONE)
