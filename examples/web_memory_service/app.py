"""One request of a user: load what is remembered, send it along, read the stream, save what is new."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import aiohttp
from aiohttp import web
from examples.web_memory_service.stream import event_in, events_of, kept_of, problem_of, words_of

from longhouse.integrations.session_log_lines import RULE, Language, Line, line
from longhouse.memory import MemoryMessage, MemoryService, get_session_logger

LANGUAGES: tuple[Language, ...] = get_args(Language)


def language_of(environment: Mapping[str, str]) -> Language:
    """The language of the log's lines: LONGHOUSE_LOG_LANGUAGE, or LOG_LANGUAGE, as the agents' server reads it."""
    named = environment.get("LONGHOUSE_LOG_LANGUAGE") or environment.get("LOG_LANGUAGE") or "en"
    for language in LANGUAGES:
        if named == language:
            return language
    raise SystemExit(f"LONGHOUSE_LOG_LANGUAGE is {named!r}: use one of {', '.join(LANGUAGES)}.")


class AgentsError(Exception):
    """No answer came from the agents."""


@dataclass
class WebMemoryService:
    memory: MemoryService
    http: aiohttp.ClientSession
    """Towards the agents; its base address is that of a Longhouse."""
    agent_version: str = "master"
    subagents: Sequence[str] = ("analytic",)
    language: Language = "en"

    async def ask(self, chat_id: int | str, message: str) -> str:
        """The agent's answer; both sides of it, and what the sub-agents did, are remembered."""
        slog = get_session_logger(chat_id)
        slog.info(RULE)
        slog.info(self._line("request", text=message))
        context = await self.memory.get_context_for_agent(chat_id)
        await self.memory.add_message(chat_id, MemoryMessage("user", message))
        if self.memory.redis:
            slog.info(self._line("saved"))
        body = {
            "message": message,
            "chat_id": chat_id,
            "context": context,
            "subagent_contexts": {name: await self._remembered(chat_id, name) for name in self.subagents},
            "agent_version": self.agent_version,
        }
        answer = await self._send(chat_id, body)
        await self.memory.add_message(chat_id, MemoryMessage("assistant", answer))
        return answer

    async def _remembered(self, chat_id: int | str, name: str) -> list[dict[str, Any]]:
        history = await self.memory.get_subagent_context(chat_id, name, context_window=50)
        slog = get_session_logger(chat_id)
        slog.info(self._line("loaded", name=name, count=len(history)))
        if not history:
            slog.info(self._line("empty"))
        return history

    async def _send(self, chat_id: int | str, body: dict[str, Any]) -> str:
        words: list[str] = []
        async with self.http.post("/v1/chat/completions", json=body) as response:
            if response.status != 200:
                raise AgentsError(f"they answered {response.status}: {await response.text()}")
            async for chunk in events_of(response.content):
                if problem := problem_of(chunk):
                    raise AgentsError(problem)
                words.append(words_of(chunk))
                if kept := kept_of(event_in(chunk)):
                    await self._keep(chat_id, *kept)
        return "".join(words)

    async def _keep(self, chat_id: int | str, name: str, message: MemoryMessage) -> None:
        await self.memory.add_subagent_message(chat_id, name, message)
        if message.role == "user":
            get_session_logger(chat_id).info(self._line("task", text=message.content))
        elif message.role == "assistant" and not message.tool_calls:
            get_session_logger(chat_id).info(self._line("answer", text=message.content))

    def _line(self, kind: Line, *, text: str = "", name: str = "", count: int = 0) -> str:
        return line(self.language, kind, text=text, name=name, count=count)


def routes(service: WebMemoryService) -> web.Application:
    """`POST /chat {chat_id, message}` answers `{answer}`."""

    async def chat(request: web.Request) -> web.Response:
        try:
            body = await request.json()
            chat_id, message = body["chat_id"], body["message"]
        except (ValueError, KeyError, TypeError):
            return web.json_response({"error": "the body must be {chat_id, message}"}, status=400)
        try:
            return web.json_response({"answer": await service.ask(chat_id, message)})
        except (AgentsError, aiohttp.ClientError) as error:
            return web.json_response({"error": f"the agents gave no answer: {error}"}, status=502)

    app = web.Application()
    app.router.add_post("/chat", chat)
    return app
