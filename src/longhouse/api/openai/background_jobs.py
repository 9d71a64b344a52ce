"""Background jobs of chat clients: titles, tags, follow-up questions. One plain model call; no session, no tools."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from longhouse.agents.naming import SESSION_ID
from longhouse.agents.strategies.protocol import ANY_FORMAT, Body
from longhouse.agents.template import Template
from longhouse.api import wire
from longhouse.api.caller import Caller
from longhouse.api.http import streaming
from longhouse.api.openai.completions import CUT_OFF, ChatCompletion, ChatEvents, ChunkDelta, chat_usage
from longhouse.api.openai.session_resolver import SessionResolver, unknown_model
from longhouse.api.wire import ChatRequest, SentMessage
from longhouse.errors import CallerError, ProviderError
from longhouse.journal.events import Sampling, Usage
from longhouse.journal.messages import Assistant, Message, System, User, clean
from longhouse.models.protocol import Model
from longhouse.runtime.workers.instances import ModelFor
from longhouse.search.router import AUTO
from longhouse.store import sessions
from longhouse.store.database import Database
from longhouse.store.limits import usage

WITHIN: Final = 120.0
"""Timeout of a job in seconds."""
TASK_HEADER: Final = "x-openwebui-task"
"""Names the job, where Open WebUI is set up to send it (0.10 and later)."""
NO_TASK: Final = frozenset({"", "none", "null", "{{task}}"})
"""What the header holds in a message that is no job."""

# How the jobs' prompts begin, and what else they hold: the defaults of Open WebUI, LibreChat and NextChat.
PROMPTS: Final = (
    ("### task:", "<chat_history>"),
    ("### task:", "autocompletion system"),
    ("provide a concise, 5-word-or-less title for the conversation", ""),
    ("analyze this conversation and provide", "detected language"),
    ("please generate a concise title (max 40 characters)", ""),
    ("please generate a four to five word title summarizing our conversation", ""),
    ("使用四到五个字直接返回这句话的简要主题", ""),
)


def is_job(chat: ChatRequest, headers: Mapping[str, str]) -> bool:
    """Is this a job of a chat client? Not if it names its conversation: then somebody talks to an agent."""
    task = headers.get(TASK_HEADER)
    if task is not None:
        return task.strip().lower() not in NO_TASK
    is_named = headers.get("x-conversation-id") or (chat.metadata or {}).get("conversation_id") or chat.chat_id
    if is_named or chat.brings_memory or chat.messages[-1].role != "user":
        return False
    text = chat.messages[-1].text.strip().lower()
    return any(text.startswith(begin) and also in text for begin, also in PROMPTS)


class BackgroundJobs(msgspec.Struct, frozen=True):
    db: Database
    resolver: SessionResolver
    model_for: ModelFor

    async def answer(
        self, caller: Caller, chat: ChatRequest
    ) -> wire.Json[ChatCompletion] | streaming.EventStream[ChatEvents]:
        """Answers with the model of the agent that the job is sent to; what it used counts for the key."""
        caller.spends()
        template = await self._template(caller, chat.model)
        reply = _JobReply(self.db, caller, chat, _body(chat, template), await self.model_for(template))
        if chat.stream:
            return streaming.EventStream(reply.chunks(), error=streaming.bare_error)
        return wire.Json(await reply.whole())

    async def _template(self, caller: Caller, model: str) -> Template:
        if SESSION_ID.fullmatch(model):
            row = await sessions.session(self.db, model, caller.owner)
            if row is None:
                raise unknown_model(model)
            model = row.agent
        elif model == AUTO and self.resolver.router:
            model = self.resolver.router.default
            if caller.templates and model not in caller.templates:
                model = min(caller.templates)
        template, _ = await self.resolver.template(model, caller.owner)
        caller.uses(template.name)
        return template


@dataclass
class _JobReply:
    """The model's reply to a job, as it comes."""

    db: Database
    caller: Caller
    chat: ChatRequest
    body: Body
    model: Model

    def __post_init__(self) -> None:
        self.id, self.created = f"chatcmpl-{uuid.uuid4().hex}", int(time.time())
        self.usage, self.model_name, self.finish = Usage(), self.body.model, "stop"

    async def whole(self) -> ChatCompletion:
        text = "".join([piece async for piece in self._texts()])
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish}
        whole: ChatCompletion = self._object("chat.completion", choices=[choice], usage=chat_usage(self.usage))
        return whole

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._chunk({"role": "assistant", "content": ""})
        try:
            async for text in self._texts():
                yield self._chunk({"content": text})
        except CallerError as error:
            yield streaming.bare_error(error)
            return
        yield self._chunk({}, finish=self.finish)
        if self.chat.include_usage:
            yield streaming.data(self._object("chat.completion.chunk", choices=[], usage=chat_usage(self.usage)))
        yield streaming.DONE

    async def _texts(self) -> AsyncGenerator[str, None]:
        """The text of the reply. What it used is counted, also if it fails or its client leaves."""
        try:
            async with asyncio.timeout(WITHIN), aclosing(self.model.stream(self.body)) as deltas:
                async for delta in deltas:
                    self.usage = delta.usage or self.usage
                    self.model_name = delta.model or self.model_name
                    self.finish = delta.finish if delta.finish in CUT_OFF else self.finish
                    if text := delta.text or delta.refusal:
                        yield clean(text)
        except TimeoutError:
            raise _failed(f"the model did not answer within {WITHIN:g} seconds") from None
        except ProviderError as error:
            self.usage = error.usage or self.usage
            raise _failed(error.public_message) from error
        finally:
            await asyncio.shield(self._charge())

    async def _charge(self) -> None:
        if self.usage.total_tokens:
            key, owner = self.caller.key, self.caller.owner
            await usage.charge(self.db, key=key, owner=owner, model=self.model_name, usage=self.usage)

    def _object(self, kind: str, **rest: Any) -> Any:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.chat.model, **rest}

    def _chunk(self, delta: ChunkDelta, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        chunk = self._object("chat.completion.chunk", choices=[choice])
        return streaming.data({**chunk, "usage": None} if self.chat.include_usage else chunk)


def _body(chat: ChatRequest, template: Template) -> Body:
    """The client's own messages, and nothing of the agent but its model."""
    policy, asked = template.llm_policy, chat.sampling or Sampling()
    response_format = msgspec.Raw(asked.response_format.encode()) if asked.response_format else ANY_FORMAT
    return Body(
        model=policy.model or "",
        messages=[message for one in chat.messages if (message := _message(one))],
        response_format=response_format,
        temperature=policy.temperature if asked.temperature is None else asked.temperature,
        top_p=asked.top_p,
        max_tokens=asked.max_tokens or policy.max_tokens,
        seed=asked.seed,
        stop=asked.stop,
        reasoning_effort=policy.effort,
        extra=policy.extra,
    )


def _message(one: SentMessage) -> Message | None:
    """A message as the model gets it; images and tool calls say nothing about a title."""
    text = clean(one.text)
    if one.role in ("system", "developer"):
        return System(content=text)
    if one.role == "user":
        return User(content=text)
    return Assistant(content=text) if one.role == "assistant" and text else None


def _failed(why: str) -> CallerError:
    return CallerError(f"The model failed: {why}.", status=502, kind="server_error", code="provider_error")
