"""Conversation memory of a caller, as a MasterAgent web service loads it before a request and saves it after."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

from longhouse.integrations.redis import keys
from longhouse.journal import imported


class Histories(Protocol):
    """Persistent storage of histories; `RedisHistory` implements it."""

    async def load_history(self, key: str) -> list[dict[str, Any]]: ...

    async def save_history(self, key: str, messages: Sequence[dict[str, Any]]) -> None: ...


@dataclass
class MemoryMessage:
    role: str
    content: str
    timestamp: float = field(default_factory=time.time)
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The message in OpenAI's format, which is also the stored format."""
        optional = {"tool_calls": self.tool_calls, "tool_call_id": self.tool_call_id, "name": self.name}
        given = {name: value for name, value in optional.items() if value}
        return {"role": self.role, "content": self.content, **given}


class MemoryService:
    """Histories by key: cached in the process, and stored in Redis where it is configured."""

    def __init__(self, max_history: int = 100, context_window: int = 10, redis: Histories | None = None) -> None:
        self.max_history = max_history
        self.context_window = context_window
        self.redis = redis
        self.memory_cache: dict[str, list[MemoryMessage]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add_message(self, chat_id: int | str, message: MemoryMessage) -> None:
        """Adds a message from or to the user."""
        await self._add(keys.chat_key(chat_id), message)

    async def add_subagent_message(self, chat_id: int | str, subagent_name: str, message: MemoryMessage) -> None:
        await self._add(self._get_subagent_key(chat_id, subagent_name), message)

    async def get_context_for_agent(self, chat_id: int | str) -> list[dict[str, Any]]:
        """The newest messages of the conversation, in the format for a model."""
        return self._context(await self.load_history(keys.chat_key(chat_id)), self.context_window)

    async def get_subagent_context(
        self, chat_id: int | str, subagent_name: str, context_window: int = 50
    ) -> list[dict[str, Any]]:
        """The newest messages of a sub-agent's history, in the format for a model."""
        return self._context(await self.load_history(self._get_subagent_key(chat_id, subagent_name)), context_window)

    async def load_history(self, key: str) -> list[MemoryMessage]:
        """The messages under a key: from the cache, or at the first read from Redis."""
        if key not in self.memory_cache:
            async with self._lock(key):
                await self._fetch(key)
        return list(self.memory_cache[key])

    async def save_history(self, chat_id: int | str, messages: Sequence[MemoryMessage]) -> None:
        """Replaces the history. A string is the full key, a number is a chat id."""
        key = keys.history_key(chat_id)
        async with self._lock(key):
            self.memory_cache[key] = list(messages)
            await self._store(key)

    def _get_subagent_key(self, chat_id: int | str, subagent_name: str) -> str:
        """The key of a sub-agent's history; the name under which services of others override it."""
        return keys.subagent_key(subagent_name, chat_id)

    async def _add(self, key: str, message: MemoryMessage) -> None:
        async with self._lock(key):
            await self._fetch(key)
            self.memory_cache[key].append(message)
            await self._store(key)

    async def _fetch(self, key: str) -> None:
        """Fills the cache. A Redis failure raises: an empty history would overwrite the stored one."""
        if key in self.memory_cache:
            return
        found = await self.redis.load_history(key) if self.redis else []
        self.memory_cache[key] = [MemoryMessage(**message) for message in found]

    async def _store(self, key: str) -> None:
        cached = self.memory_cache[key]
        if len(cached) > self.max_history:
            kept = imported.last([message.to_dict() for message in cached], self.max_history)
            cached[:] = cached[len(cached) - len(kept) :]
        if self.redis:
            await self.redis.save_history(key, [message.to_dict() for message in cached])

    def _context(self, messages: Sequence[MemoryMessage], window: int) -> list[dict[str, Any]]:
        return imported.paired(imported.last([message.to_dict() for message in messages], window))

    def _lock(self, key: str) -> asyncio.Lock:
        """One lock for each key in use: concurrent appends to a history keep their order."""
        return self._locks.setdefault(key, asyncio.Lock())


memory_service = MemoryService(max_history=100, context_window=10)
"""The one of a whole process, as services of a MasterAgent import it; it has no Redis until its `redis` is set."""
