"""Parses a chat request: its caller, its new messages, and the conversation that it names."""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Literal

import msgspec

from longhouse import tracing
from longhouse.agents.naming import SESSION_ID
from longhouse.api import wire
from longhouse.api.caller import Caller
from longhouse.api.openai.client_tools import ClientResult
from longhouse.api.repeating import MAX_KEY
from longhouse.api.wire import ChatRequest, SentMessage
from longhouse.errors import CallerError
from longhouse.journal import fingerprint, messages
from longhouse.journal.events import ClientTools, Prompted
from longhouse.journal.messages import Content, Message
from longhouse.store import files
from longhouse.store.database import Database
from longhouse.store.requests import RequestIdentity


class ClientHistory(msgspec.Struct, frozen=True):
    """The messages of a request: the history, the results of calls that the client runs, and new messages."""

    before: tuple[SentMessage, ...]
    new: tuple[SentMessage, ...]
    """Of the user; empty if the request only brings results."""
    answers: tuple[SentMessage, ...] = ()
    """The tool messages between the history and the new messages."""
    results: tuple[ClientResult, ...] = ()
    """What they hold."""

    @property
    def all(self) -> tuple[SentMessage, ...]:
        return (*self.known, *self.new)

    @property
    def known(self) -> tuple[SentMessage, ...]:
        """All that the user has not just written."""
        return (*self.before, *self.answers)

    @property
    def resends(self) -> bool:
        return any(message.role == "assistant" for message in self.before)


class BranchStart(msgspec.Struct, frozen=True):
    """What a new session goes on from: an earlier response, which other messages have followed since."""

    conversation: str | None
    """None: a new one."""
    prior: tuple[Message, ...]


class ApprovalAnswer(msgspec.Struct, frozen=True):
    """A person's decision on a call, by the name that the session's questions have."""

    call: str
    decision: Literal["approve", "deny"]
    comment: str = ""


@dataclass(frozen=True)
class ChatInput:
    """One parsed request: its caller, its messages, and the idempotency record under which it is stored."""

    caller: Caller
    request: ChatRequest
    history: ClientHistory
    accepted: RequestIdentity
    conversation: str | None
    is_named: bool
    """Did the caller name the conversation itself? Where only Open WebUI does, the session is found by its history."""
    model: str
    """The model as the client wrote it: part of the fingerprint, whichever template is chosen."""
    traceparent: str = ""
    client_tools: ClientTools | None = None
    """The functions that the client runs itself, if the agent takes them."""
    branch: BranchStart | None = None
    added: tuple[Message, ...] = ()
    """Messages that were added to the conversation, and that no agent has read yet."""
    approvals: tuple[ApprovalAnswer, ...] = ()
    """What the request decides, in the session that `model` names; there are no messages then."""
    version: int | None = None
    """The version of the agent that answers, where `model` names a session."""

    @property
    def reply_to(self) -> str | None:
        """The question that the message answers, if the client names one."""
        return (self.request.metadata or {}).get("reply_to")

    @property
    def user(self) -> str | None:
        return self.caller.user(self.request.user)

    @property
    def known_chain(self) -> str:
        """The fingerprint of what was said before the new messages: by it, a session is found."""
        return self._chains[0]

    @property
    def chain(self) -> str:
        """The fingerprint of all messages from this client."""
        return self._chains[1]

    @cached_property
    def _chains(self) -> tuple[str, str]:
        begun = fingerprint.begin(self.caller.owner, self.caller.key, self.request.user, self.model)
        known, new = ([(one.role, one.text) for one in said] for said in (self.history.known, self.history.new))
        return fingerprint.resent(begun, known, new)

    async def prompt(self, db: Database, version: int | None = None) -> Prompted:
        """The new messages as a `Prompted` event; their images are stored first."""
        return Prompted(
            trace=uuid.uuid4().hex,
            content=tuple([await _content(db, message) for message in self.history.new]),
            user=self.user or "",
            system=self.request.system,
            sampling=self.request.sampling,
            version=version,
            chain=self.chain,
            traceparent=self.traceparent,
            client_tools=self.client_tools,
            prior=self.added,
        )


def parse(caller: Caller, request: ChatRequest, body: bytes, headers: Mapping[str, str]) -> ChatInput:
    # A repeated request is recognised by its body, and by the headers that name its conversation.
    digest = hashlib.sha256(body)
    for name in ("x-conversation-id", "x-openwebui-chat-id"):
        digest.update(b"\x00" + headers.get(name, "").encode())
    retries = headers.get("x-stainless-retry-count")  # OpenAI's SDKs send a retry count and nothing else
    is_retry = None if retries is None else retries not in ("", "0")
    accepted = RequestIdentity(
        owner=caller.owner,
        digest=digest.hexdigest(),
        key=idempotency_key(headers),
        is_retry=is_retry,
        api_key=caller.key or None,
        has_turn_budget=caller.has_turn_budget,
    )
    conversation, is_named = _conversation(request, headers)
    traceparent = tracing.accepted(headers.get(tracing.HEADER))
    # A client that names its session, or its conversation, may send results without the calls before them.
    history = _split(request, names_session=is_named or SESSION_ID.fullmatch(request.model) is not None)
    return ChatInput(caller, request, history, accepted, conversation, is_named, request.model, traceparent)


def _split(request: ChatRequest, *, names_session: bool) -> ClientHistory:
    """Splits the messages: only those after our last reply are new."""
    dialogue, roles = request.messages, request.roles
    places: Sequence[int] = range(len(dialogue))
    if not roles.isdisjoint(wire.SYSTEM):
        places = [place for place, message in enumerate(dialogue) if message.role not in wire.SYSTEM]
        dialogue = [dialogue[place] for place in places]
    if not dialogue:
        raise CallerError("The last message must come from the user.", param="messages")
    if dialogue[-1].role not in ("user", "tool"):
        raise CallerError("The last message must come from the user, or hold the result of a call.", param="messages")
    cut = len(dialogue) - _trailing(dialogue, "user")
    first = cut - _trailing(dialogue[:cut], "tool")
    if "tool" in roles:
        _refuse_orphans(dialogue[:first] if names_session else dialogue, places)
    answers = dialogue[first:cut]
    return ClientHistory(
        before=tuple(dialogue[:first]),
        new=tuple(dialogue[cut:]),
        answers=tuple(answers),
        results=tuple(
            ClientResult(message.tool_call_id or "", message.text, f"messages[{place}].tool_call_id")
            for message, place in zip(answers, places[first:cut], strict=True)
        ),
    )


def _trailing(dialogue: Sequence[SentMessage], role: str) -> int:
    """How many of the last messages have this role."""
    return sum(1 for _ in takewhile(lambda one: one.role == role, reversed(dialogue)))


def _refuse_orphans(dialogue: Sequence[SentMessage], places: Sequence[int]) -> None:
    known: set[str] = set()
    for place, message in zip(places, dialogue, strict=False):
        if message.tool_calls:
            known.update(call.id for call in message.tool_calls)
        if message.role == "tool" and message.tool_call_id not in known:
            raise CallerError("A tool message must answer a tool call before it.", param=f"messages[{place}]")


async def prior_of(db: Database, before: Sequence[SentMessage]) -> tuple[Message, ...]:
    """The client's history as messages; calls of the client's own tools become text, since they are not our tools."""
    prior: list[Message] = []
    for message in before:
        if message.role == "user":
            prior.append(messages.User(content=await _content(db, message)))
        elif message.role == "assistant" and message.text:
            prior.append(messages.Assistant(content=message.text))
        elif message.role in ("tool", "function"):
            prior.append(messages.Assistant(content=f"(result of a tool: {message.text})"))
    return tuple(prior)


def text_of(content: Sequence[Content]) -> str:
    return "\n\n".join(messages.text_of(one) for one in content)


async def stored_image(db: Database, url: str, detail: str | None = None) -> messages.ImageUrl:
    """An image of a request as journals name it; its bytes are stored."""
    media_type, content = wire.image_bytes(url)
    digest = await files.put(db, content, media_type)
    return messages.ImageUrl(url=f"{messages.FILE_SCHEME}{digest}", media_type=media_type, detail=detail)


async def _content(db: Database, message: SentMessage) -> Content:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    parts: list[messages.Part] = []
    for part in message.content:
        if isinstance(part, wire.WireImagePart):
            image = await stored_image(db, part.image_url.url, part.image_url.detail)
            parts.append(messages.ImagePart(image_url=image))
        elif isinstance(part, wire.WireTextPart):
            parts.append(messages.TextPart(text=part.text))
    if all(isinstance(part, messages.TextPart) for part in parts):
        return messages.text_of(tuple(parts))
    return tuple(parts)


def _conversation(request: ChatRequest, headers: Mapping[str, str]) -> tuple[str | None, bool]:
    """The conversation that the request names, and whether the caller named it, not Open WebUI."""
    names = {
        "X-Conversation-Id": headers.get("x-conversation-id") or None,
        "metadata.conversation_id": (request.metadata or {}).get("conversation_id"),
        "chat_id": request.chat_id,
        "X-OpenWebUI-Chat-Id": headers.get("x-openwebui-chat-id") or None,
    }
    for param, name in names.items():
        if name is not None:
            return wire.checked_id(str(name), param), param != "X-OpenWebUI-Chat-Id"
    return None, False


def idempotency_key(headers: Mapping[str, str]) -> str | None:
    """The name that a client has given its request, so that a retry is known."""
    key = headers.get("idempotency-key")
    if key is not None and not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise CallerError(
            f"Idempotency-Key must be 1 to {MAX_KEY} printable ASCII characters.", param="Idempotency-Key"
        )
    return key
