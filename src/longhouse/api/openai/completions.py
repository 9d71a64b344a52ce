"""Encodes a turn as Chat Completions: chunks on a stream, or one response at the end."""

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NotRequired, TypedDict

import msgspec

from longhouse.agents.template import Streaming
from longhouse.api import wire
from longhouse.api.http import streaming as stream
from longhouse.api.openai.turn_stream import ResponsePiece, TurnStream, WaitingCall, about, record_rest, usage_between
from longhouse.api.sessions.tree_reader import Activity, ShownCall
from longhouse.api.sessions.waiting import Question
from longhouse.journal import events
from longhouse.journal.session import AGENT_FAILED, BLANK_LINE
from longhouse.runtime.bus.growing_text import GrowingText
from longhouse.store.catalog.catalog import Catalog

CUT_OFF: Final = ("length", "content_filter")
"""Why a model stops in the middle of an answer."""
_encode: Final = msgspec.json.encode
_REST_OF_CHUNK: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'


class CachedTokens(TypedDict):
    cached_tokens: int


class ReasoningTokens(TypedDict):
    reasoning_tokens: int


class ChatUsage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class ChatAnswer(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    """What the model refuses with; the content is null then."""
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ShownCall]]
    """Calls of functions that came with the request: the client runs them and sends their results."""


class ChatChoice(TypedDict):
    index: int
    message: ChatAnswer
    logprobs: None
    finish_reason: str


class ChatCompletion(TypedDict):
    """The answer to one message; `model` is the session. A background job has no session: `model` is as it was asked
    for, and there is no `x_agent`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    x_agent: NotRequired[Activity]


class Handling(TypedDict, total=False):
    ignored: Sequence[str]
    routed: dict[str, Any]


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """The beginning of a call, with its id and its name, or a part of its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChunkDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    refusal: str
    reasoning_content: str
    tool_calls: list[CallDelta]


class ChunkChoice(TypedDict):
    index: int
    delta: ChunkDelta
    logprobs: None
    finish_reason: str | None


class ChatChunk(TypedDict):
    """A part of the answer: text, reasoning, or in `x_agent` what the agent does."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: NotRequired[ChatUsage | None]
    x_agent: NotRequired[Activity]


ChatEvents = stream.Event[None, ChatChunk] | stream.Event[None, wire.Envelope] | stream.Event[None, Literal["[DONE]"]]


@dataclass
class Completion:
    """One response to one request: all its chunks have the same id, time and model."""

    turn_stream: TurnStream
    include_usage: bool = False
    ignored: Sequence[str] = ()
    streaming: Streaming = field(default_factory=Streaming)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        handle = self.turn_stream.handle
        # A turn with questions has several responses: the head of the journal makes their ids different.
        self.id = f"chatcmpl-{handle.trace}-{handle.session.head}"
        # The fields that all chunks share are encoded once.
        head = stream.data(self._object("chat.completion.chunk")).removesuffix(b"}\n\n")
        usage = b',"usage":null' if self.include_usage else b""
        self._delta = head + usage + b',"choices":[{"index":0,"delta":'
        self._calls = 0
        self._content = GrowingText()
        """All content that was sent to the client: when the client resends it, its session is found by it."""

    def _object(self, kind: str, **rest: Any) -> Any:
        model = self.turn_stream.handle.session.id
        return {"id": self.id, "object": kind, "created": self.created, "model": model, **rest}

    @property
    def headers(self) -> dict[str, str]:
        """Who answers, as clients of SGR-Agent Core read it before the first chunk."""
        session = self.turn_stream.handle.session
        return {"x-agent-id": session.id, "x-agent-model": session.agent}

    def streamed(self) -> stream.EventStream[ChatEvents]:
        return stream.EventStream(self.chunks(), self.headers, error=stream.bare_error)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The encoded chunks of the stream."""
        turn, handle = self.turn_stream, self.turn_stream.handle
        accepted = about(handle.session, handle.trace, "accepted", **self._extra)
        yield self._chunk({"role": "assistant", "content": ""}, activity=accepted)
        async for pieces in turn.pieces():
            yield b"".join([self._encoded(piece) for piece in pieces]) if pieces else stream.HEARTBEAT
        if turn.error:
            yield stream.bare_error(turn.error)
            return
        await self._record_fingerprint()
        last = self._chunk({}, finish=self._finish, activity=last_activity(turn))
        if self.include_usage:
            last += stream.data(self._object("chat.completion.chunk", choices=[], usage=usage_of(turn)))
        yield stream.Last(last + stream.DONE)

    async def whole(self) -> wire.Json[ChatCompletion] | wire.Json[wire.Envelope]:
        """The whole response, when the turn has ended or waits for a person."""
        turn, reasoning, refusal = self.turn_stream, "", ""
        turn.shows_drafts = False
        async for pieces in turn.pieces():
            for piece in pieces:
                self._add_content(piece)
                reasoning += piece.reasoning
                refusal += piece.content if piece.is_refusal else ""
        if turn.error:
            refused = wire.error_response(turn.error)
            refused.headers["x-should-retry"] = "false"  # the prompt is in the journal: a retry would only duplicate it
            return refused
        await self._record_fingerprint()
        calls = [_tool_call(call) for call in turn.client_calls]
        message: ChatAnswer = {"role": "assistant", "content": str(self._content), "refusal": None}
        if refusal:
            content = str(self._content).removesuffix(refusal)
            message |= {"content": content or None, "refusal": refusal.removeprefix(BLANK_LINE)}
        if calls:
            message |= {"content": str(self._content) or None, "tool_calls": calls}
        if reasoning:
            message["reasoning_content"] = reasoning
        whole: ChatCompletion = self._object(
            "chat.completion",
            choices=[{"index": 0, "message": message, "logprobs": None, "finish_reason": self._finish}],
            usage=usage_of(turn),
            x_agent={**last_activity(turn), **self._extra},
        )
        answer = wire.Json(whole)
        answer.headers.update(self.headers)
        return answer

    @property
    def _finish(self) -> str:
        """Why the response ended; only calls that the client is to run count as `tool_calls`."""
        turn = self.turn_stream
        if turn.client_calls:
            return "tool_calls"
        is_answer = turn.session.turn is not None and bool(turn.session.turn.ended)
        return turn.last_finish if is_answer and turn.last_finish in CUT_OFF else "stop"

    @property
    def _extra(self) -> "Handling":
        """Extra fields that tell the client how its request was handled."""
        extra, routed = Handling(), self.turn_stream.handle.routed
        if self.ignored:
            extra["ignored"] = self.ignored
        if routed:
            extra["routed"] = routed.as_dict
        return extra

    async def _record_fingerprint(self) -> None:
        """Records the fingerprint of the sent content, which the client will resend, if the session lacks it.

        Only the response knows this content: it may hold questions of sub-agents, tool results and notes.
        """
        turn = self.turn_stream
        if turn.handle.chain and not turn.client_calls:  # the ids of calls say which session it is
            await record_rest(turn.db, turn.session, turn.handle.chain, str(self._content))

    def _add_content(self, piece: ResponsePiece) -> str:
        """The content of a piece: its own text, or a tool's result if the template shows results as content."""
        text, activity = piece.content, piece.activity
        is_result = activity is not None and activity["event"] == "tool_result"
        is_result = is_result and piece.role not in ("finishes", "client")
        if activity and is_result and self.streaming.tool_activity == "content":
            gap = BLANK_LINE if self._content and not str(self._content).endswith("\n") else ""
            text = f"{gap}{activity['content']}\n"
        self._content.add(text)
        return text

    def _encoded(self, piece: ResponsePiece) -> bytes:
        """A chunk: text, reasoning, or activity, where the template shows it: beside the text or as tool calls."""
        if (text := self._add_content(piece)) and piece.is_refusal:
            return self._delta + _encode({"refusal": text.removeprefix(BLANK_LINE)}) + _REST_OF_CHUNK
        if text:
            return self._delta + b'{"content":' + _encode(text) + b"}" + _REST_OF_CHUNK
        if piece.reasoning:
            reasoning = self._delta + b'{"reasoning_content":' + _encode(piece.reasoning) + b"}" + _REST_OF_CHUNK
            return reasoning if self.streaming.reasoning else b""
        if piece.call:
            return self._encoded_call(piece.call)
        return self._encoded_activity(piece.activity, piece.role) if piece.activity else b""

    def _encoded_activity(self, activity: Activity, role: str) -> bytes:
        if role == "client" and activity["event"] == "tool_call":
            return b""  # what the client is to run comes at the end
        if self.streaming.tool_activity == "tool_calls" and activity["event"] == "tool_call":
            function = {"name": activity["tool"], "arguments": activity["arguments"]}
            call = {"index": self._calls, "id": activity["call_id"], "type": "function", "function": function}
            self._calls += 1
            return self._delta + _encode({"tool_calls": [call]}) + _REST_OF_CHUNK
        if role == "asks" and activity["event"] == "tool_call":
            return b""  # the question itself is the content
        return self._chunk({}, activity=activity)

    def _encoded_call(self, call: WaitingCall) -> bytes:
        """A call as OpenAI streams it: its name first, then its arguments."""
        index = self.turn_stream.client_calls.index(call)
        begun = {"index": index, **_tool_call(call), "function": {"name": call.name, "arguments": ""}}
        rest = {"index": index, "function": {"arguments": call.arguments}}
        deltas = (_encode({"tool_calls": [one]}) for one in (begun, rest))
        return b"".join(self._delta + delta + _REST_OF_CHUNK for delta in deltas)

    def _chunk(self, delta: dict[str, Any], *, finish: str | None = None, activity: Activity) -> bytes:
        return b'%b%b,"logprobs":null,"finish_reason":%b}],"x_agent":%b}\n\n' % (
            self._delta,
            _encode(delta),
            _encode(finish),
            _encode(activity),
        )


async def completion_of(
    catalog: Catalog, turn_stream: TurnStream, request: wire.ChatRequest | None = None
) -> Completion:
    """The response to a request whose turn is followed, in the form that its template streams in."""
    handle = turn_stream.handle
    template, agent = handle.template, handle.session.agent
    if template is None or template.name != agent or handle.version is not None:
        template = await catalog.templates.find(agent, handle.version)
    streaming = template.llm_policy.streaming if template else Streaming()
    if handle.offers_tools and streaming.tool_activity == "tool_calls":
        # The client runs the calls that it gets: those of the agent's own tools are not among them.
        streaming = replace(streaming, tool_activity="x_agent")
    if request is None:
        return Completion(turn_stream, streaming=streaming)
    ignored = request.ignored(takes_tools=template is not None and template.allow_client_tools)
    return Completion(turn_stream, request.include_usage, ignored, streaming)


def _tool_call(call: WaitingCall) -> ShownCall:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def last_activity(turn_stream: TurnStream) -> Activity:
    """The last `x_agent` of a turn that ended or waits."""
    session, turn = turn_stream.session, turn_stream.session.turn
    if turn and turn.ended:
        event = "failed" if turn.code == AGENT_FAILED else "completed"
        return about(session, turn.trace, event, state=turn.ended)
    open_calls = (*session.client_calls, *session.questions, *session.undecided_calls)
    asked = turn_stream.question or Question(session, open_calls[0])
    detail = {"call_id": asked.call.call, "name": asked.label(session)}
    if turn_stream.question:
        detail |= {"asked_by": asked.session.agent, "asked_in": asked.session.id}
    kind = {"ask": "clarification", "client": "client"}.get(asked.call.call_kind, "approval")
    return about(session, session.trace, "waiting", status="waiting", waiting_for=kind, **detail)


def usage_of(turn_stream: TurnStream) -> ChatUsage:
    """The usage of this response; what the turn used before its question was answered is not counted again."""
    handle = turn_stream.handle
    return chat_usage(usage_between(handle.session, turn_stream.session, handle.trace))


def chat_usage(used: events.Usage) -> ChatUsage:
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.total_tokens,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens},
    }
