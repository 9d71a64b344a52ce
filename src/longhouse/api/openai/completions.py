"""Encodes a turn as Chat Completions: chunks on a stream, or one response at the end."""

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from longhouse.agents.template import Streaming
from longhouse.api import streaming as stream
from longhouse.api import wire
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.turn_stream import Ending, Piece, TurnStream, about
from longhouse.journal import events, fingerprint
from longhouse.journal.session import AGENT_FAILED, BLANK_LINE, Turn
from longhouse.store import sessions

STATUSES: Final = {
    "limit_reached": 422,
    "not_set_up": 503,
    "provider_error": 502,
    "template_not_found": 404,
    "unreadable_reply": 502,
}
"""HTTP status of failed turns, by code. Limits are set by the operator: no defect, and a retry would not help."""

_encode: Final = msgspec.json.encode
_REST_OF_CHUNK: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'


@dataclass
class Completion:
    """One response to one request: all its chunks have the same id, time and model."""

    telling: TurnStream
    include_usage: bool
    ignored: list[str]
    streaming: Streaming = field(default_factory=Streaming)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        attached = self.telling.attached
        # A turn with questions has several responses: the head of the journal makes their ids different.
        self.id = f"chatcmpl-{attached.trace}-{attached.session.head}"
        self.model = attached.session.id
        usage = b',"usage":null' if self.include_usage else b""
        self._head = (
            b'data: {"id":%s,"object":"chat.completion.chunk","created":%d,"model":%s'
            % (_encode(self.id), self.created, _encode(self.model))
        ) + usage
        self._delta = self._head + b',"choices":[{"index":0,"delta":'
        self._calls = 0
        self._content = ""
        """All content that was sent to the client: when the client resends it, its session is found by it."""

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The encoded chunks of the stream."""
        telling = self.telling
        session = telling.attached.session
        extra = self._extra
        opening = about(session, telling.attached.trace, "accepted", **extra)
        yield self._chunk({"role": "assistant", "content": ""}, activity=opening)
        async for pieces in telling.pieces():
            yield b"".join(self._piece(piece) for piece in pieces) if pieces else stream.HEARTBEAT
        ending = telling.ending
        assert ending is not None
        if ending.error or ending.turn is None:
            yield stream.data(ending.error)
            return
        await self._mark(ending)
        yield self._chunk({}, finish="stop", activity=closing(ending, ending.turn))
        if self.include_usage:
            yield stream.data(
                {
                    "id": self.id,
                    "object": "chat.completion.chunk",
                    "created": self.created,
                    "model": self.model,
                    "choices": [],
                    "usage": usage_of(ending, telling.attached),
                }
            )
        yield stream.DONE

    @property
    def _extra(self) -> dict[str, Any]:
        """Extra fields that tell the client how its request was handled."""
        routed = self.telling.attached.routed
        return {
            **({"ignored": self.ignored} if self.ignored else {}),
            **({"routed": routed.told} if routed else {}),
        }

    async def _mark(self, ending: Ending) -> None:
        """Records the fingerprint of the sent content, which the client will resend, if the session lacks it."""
        attached = self.telling.attached
        if not attached.chain:
            return
        mark = fingerprint.grown(attached.chain, [("assistant", self._content)])
        if attached.answers_beneath or mark != ending.session.rest_mark:
            await sessions.mark_rest(self.telling.db, mark, ending.session.id, ending.session.head)

    def _words(self, piece: Piece) -> str:
        """The content of a piece: its own text, or a tool's result if the template shows results as content."""
        words, activity = piece.content, piece.activity or {}
        is_result = activity.get("event") == "tool_result" and piece.role != "finishes"
        if is_result and self.streaming.tool_activity == "content":
            gap = BLANK_LINE if self._content and not self._content.endswith("\n") else ""
            words = f"{gap}{activity['content']}\n"
        self._content += words
        return words

    def _piece(self, piece: Piece) -> bytes:
        if words := self._words(piece):
            return self._delta + b'{"content":' + _encode(words) + b"}" + _REST_OF_CHUNK
        if piece.reasoning:
            if not self.streaming.reasoning:
                return b""
            return self._delta + b'{"reasoning_content":' + _encode(piece.reasoning) + b"}" + _REST_OF_CHUNK
        return self._activity(piece.activity or {})

    def _activity(self, activity: dict[str, Any]) -> bytes:
        """The agent's activity, where the template shows it: beside the text, in it, or as tool calls."""
        event, mode = activity.get("event"), self.streaming.tool_activity
        if mode == "tool_calls" and event == "tool_call":
            function = {"name": activity["tool"], "arguments": activity["arguments"]}
            call = {"index": self._calls, "id": activity["call_id"], "type": "function", "function": function}
            self._calls += 1
            return self._delta + _encode({"tool_calls": [call]}) + _REST_OF_CHUNK
        return self._chunk({}, activity=activity)

    def _chunk(self, delta: dict[str, Any], *, finish: str | None = None, activity: dict[str, Any] | None) -> bytes:
        return b"".join(
            (
                self._delta,
                _encode(delta),
                b',"logprobs":null,"finish_reason":',
                _encode(finish),
                b'}],"x_agent":',
                _encode(activity),
                b"}\n\n",
            )
        )

    async def whole(self) -> wire.Json:
        """The whole response, when the turn has ended or waits for a person."""
        reasoning = ""
        self.telling.shows_drafts = False
        async for pieces in self.telling.pieces():
            for piece in pieces:
                self._words(piece)
                reasoning += piece.reasoning
        ending = self.telling.ending
        assert ending is not None
        if ending.error or ending.turn is None:
            # The prompt is in the journal: a retry would only duplicate it.
            return wire.Json(ending.error, status_code=_status(ending), headers={"x-should-retry": "false"})
        await self._mark(ending)
        message: dict[str, Any] = {"role": "assistant", "content": self._content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        closed = closing(ending, ending.turn)
        closed |= self._extra
        return wire.Json(
            {
                "id": self.id,
                "object": "chat.completion",
                "created": self.created,
                "model": self.model,
                "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
                "usage": usage_of(ending, self.telling.attached),
                "x_agent": closed,
            }
        )


def closing(ending: Ending, turn: Turn) -> dict[str, Any]:
    """The last `x_agent` of a turn that ended or waits."""
    session = ending.session
    if turn.ended:
        event = "failed" if turn.code == AGENT_FAILED else "completed"
        return about(session, turn.trace, event, state=turn.ended)
    if ending.asked:
        asked = ending.asked
        kind = "clarification" if asked.call.call_kind == "ask" else "approval"
        detail = {
            "call_id": asked.call.call,
            "name": asked.label(session),
            "asked_by": asked.session.agent,
            "asked_in": asked.session.id,
        }
        return about(session, turn.trace, "waiting", status="waiting", waiting_for=kind, **detail)
    open_call = next(iter(session.questions or session.unapproved or session.uncertain))
    kind = "clarification" if session.questions else "approval"
    detail = {"call_id": open_call.call, "name": open_call.call}
    return about(session, turn.trace, "waiting", status="waiting", waiting_for=kind, **detail)


def usage_of(ending: Ending, attached: TurnHandle) -> dict[str, Any]:
    """The usage of this response; what the turn used before its question was answered is not counted again."""
    ended, began = ending.turn, attached.session.turn
    # If the prompt is still queued behind another turn, that turn's usage does not count here.
    usage = ended.usage if ended and ended.trace == attached.trace else events.Usage()
    before = began.usage if began and began.trace == attached.trace else events.Usage()
    return {
        "prompt_tokens": usage.prompt_tokens - before.prompt_tokens,
        "completion_tokens": usage.completion_tokens - before.completion_tokens,
        "total_tokens": usage.total_tokens - before.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens - before.cached_tokens},
    }


def _status(ending: Ending) -> int:
    if ending.turn is None or ending.turn.ended == "CANCELLED":
        return 409
    return STATUSES.get(ending.turn.code or "", 500)
