"""One call of a tool of the MCP server: a message to an agent, its progress, its questions, its answer.

The call only follows the turn: a client that goes away, or a server that is killed, leaves the turn at work.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from longhouse.agents.strategies.one_call import ONE_CALL
from longhouse.api import wire
from longhouse.api.caller import Caller
from longhouse.api.inflight import INFLIGHT, InflightRequest
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.turn_stream import ResponsePiece, following
from longhouse.api.turns import TurnEnd, Turns, encoded_text, end_of, ended, newest
from longhouse.errors import CallerError
from longhouse.journal.session import Session

AGENT_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "message": {
            "type": "string",
            "description": "What the agent is to do, or the answer to its question. Empty, with a conversation_id:"
            " wait for the answer to the last message.",
        },
        "conversation_id": {
            "type": "string",
            "description": "Goes on with an earlier conversation, which the agent remembers. Without it, a new one.",
            "pattern": f"^{wire.ID.pattern}$",
        },
    },
    "required": ["message"],
    "additionalProperties": False,
}
AGENT_OUTPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "description": "The answer; or what the agent asks"},
        "state": {"type": "string", "description": "COMPLETED, or what the agent waits for"},
        "conversation_id": {"type": "string"},
        "session_id": {"type": "string"},
        "question": {"type": ["string", "null"], "description": "The name of the question that is open"},
    },
    "required": ["answer", "state", "conversation_id", "session_id"],
}
QUESTION: Final = "question"
"""The key of our one input request."""
KEY: Final = "longhouse/idempotency-key"
"""In `_meta`: a call that is repeated with the same key follows the turn of the first one."""
CANCELS: Final = "longhouse/cancel"
"""In `_meta`, where it is true: a call that is repeated so cancels the turn of the first one."""


class QuestionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a client sends back with the answer to a question: nothing here is a secret, or is trusted."""

    session: str
    question: str


@dataclass
class McpToolCall:
    turns: Turns
    ctx: ServerRequestContext[Any, Request]
    caller: Caller
    params: types.CallToolRequestParams
    is_agent: bool
    """False: a tool that is called directly, in a session of this one call."""
    _progress: int = 0
    _is_declined: bool = False
    """A person was asked, and did not answer: the question is not asked once more."""
    _handle: TurnHandle | None = None
    _request: Request = field(init=False)

    def __post_init__(self) -> None:
        assert self.ctx.request is not None
        self._request = self.ctx.request

    async def result(self) -> types.CallToolResult | types.InputRequiredResult:
        """Sends the message, and follows the turn until it has ended or waits for a person whom nobody here can ask."""
        self.caller.writes()  # also to follow: a call can be cancelled, and the turn with it
        inflight: InflightRequest = self._request.scope[INFLIGHT]
        try:
            with anyio.CancelScope() as connected:
                # The SDK would go on without the client.
                inflight.opened.callback(connected.cancel)
                handle = await self._sent()
                if self._meta.get(CANCELS) is True:
                    await self._cancel(handle)
                return await self._followed(handle)
        except anyio.get_cancelled_exc_class():
            # A client that is only gone finds its answer later. The SDK tells handlers in no public way why they are
            # cancelled: `ServerRequestContext` lacks the event, and a handler of `notifications/cancelled` runs beside
            # this one, in no order, and knows only a number that other connections use as well.
            if self.ctx.session._request_outbound.cancel_requested.is_set() and self._handle:
                with anyio.CancelScope(shield=True):
                    await self._cancel(self._handle)
            raise
        raise MCPError(types.CONNECTION_CLOSED, "The client has disconnected; the agent goes on.")

    async def _cancel(self, handle: TurnHandle) -> None:
        await self.turns.inbox.cancel(handle.session, by=self.caller.decider, trace=handle.trace)

    @property
    def _meta(self) -> Mapping[str, Any]:
        meta = (self.ctx.params or {}).get("_meta")
        return meta if isinstance(meta, Mapping) else {}

    # What is sent

    async def _sent(self) -> TurnHandle:
        if self.params.request_state is not None:
            return await self._answered(self.params.request_state)
        if not self.is_agent:
            call = {"tool": self.params.name, "arguments": self.params.arguments or {}}
            return await self._send(ONE_CALL.name, encoded_text(call).decode())
        message, conversation = self._arguments()
        if message.strip():
            return await self._send(self.params.name, message, conversation=conversation)
        if not conversation:
            raise CallerError("message should not be empty in a new conversation.", param="message")
        session = await self.turns.find(self.caller, self.params.name, conversation)
        if session is None:
            raise CallerError("There is no such conversation with this agent.", status=404, param="conversation_id")
        return newest(session)

    def _arguments(self) -> tuple[str, str]:
        arguments = self.params.arguments or {}
        for name in arguments:
            if name not in AGENT_INPUT["properties"]:
                raise CallerError(
                    f"There is no argument {name[:64]!r}; known: message, conversation_id.", param=name[:64]
                )
        message, conversation = arguments.get("message"), arguments.get("conversation_id", "")
        if not isinstance(message, str):
            raise CallerError("message should be text.", param="message")
        if not isinstance(conversation, str):
            raise CallerError("conversation_id should be text.", param="conversation_id")
        return message, wire.checked_id(conversation, "conversation_id") if conversation else ""

    async def _send(self, model: str, text: str, *, conversation: str = "", reply_to: str = "") -> TurnHandle:
        headers = {name: value for name, value in self._request.headers.items() if name == "traceparent"}
        key = self._meta.get(KEY)
        if key is not None and not reply_to:
            headers["idempotency-key"] = str(key)
        to = {"conversation": conversation, "reply_to": reply_to}
        return await self.turns.send(self.caller, model, text, **to, headers=headers)

    async def _answered(self, state: str) -> TurnHandle:
        """The client repeats its call with what a person has answered."""
        try:
            resumed = msgspec.json.decode(state.encode(), type=QuestionState)
        except (msgspec.MsgspecError, UnicodeError):
            raise CallerError("requestState should be as it was received.", param="requestState") from None
        responses = self.params.input_responses or {}
        given = responses.get(QUESTION)
        session = await self._owned(resumed.session)
        answer = _answer(given) if isinstance(given, types.ElicitResult) else None
        if answer is None:
            self._is_declined = True
            return newest(session)
        return await self._reply(session.id, answer, resumed.question)

    async def _reply(self, session_id: str, answer: str, question: str) -> TurnHandle:
        """Answers a question; if somebody else was first, the turn is followed all the same."""
        try:
            return await self._send(session_id, answer, reply_to=question)
        except CallerError as error:
            if error.status != 409:
                raise
        return newest(await self._owned(session_id))

    async def _owned(self, session_id: str) -> Session:
        """The caller's session of this tool."""
        agent = self.params.name if self.is_agent else ONE_CALL.name
        session = await self.turns.owned(self.caller, session_id, agent)
        if session is None:
            raise CallerError("requestState names no session of this tool.", status=404, param="requestState")
        return session

    # What comes back

    async def _followed(self, handle: TurnHandle) -> types.CallToolResult | types.InputRequiredResult:
        while True:
            end = await self._end(handle)
            # An aside is an answer that decided nothing: to ask again would not help.
            if not end.asks or self._is_declined or handle.is_aside or not self._can_ask:
                return self._shown(end)
            if not self.ctx.session.can_send_request:
                return _input_required(end)
            answer = await self._asked(end)
            if answer is None:
                return self._shown(end)
            handle = await self._reply(end.session.id, answer, end.asks)

    async def _asked(self, end: TurnEnd) -> str | None:
        """Asks the person at the client; None if there is no answer."""
        with suppress(MCPError):  # the client cannot, after all
            asked = await self.ctx.session.elicit_form(end.text, _form(end), related_request_id=self.ctx.request_id)
            return _answer(asked)
        return None

    @property
    def _can_ask(self) -> bool:
        """Whether the client can show a form to a person."""
        capabilities = self.ctx.session.client_capabilities
        elicits = capabilities.elicitation if capabilities else None
        # A client of earlier versions names no mode, and has forms.
        has_forms = elicits is not None and (elicits.form is not None or elicits.url is None)
        is_modern = self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        return has_forms and (is_modern or self.ctx.session.can_send_request)

    async def _end(self, handle: TurnHandle) -> TurnEnd:
        """Follows the turn to where it stops, and tells the client how it gets on."""
        self._handle, turn = handle, handle.session.turn
        if turn and turn.ended and turn.trace == handle.trace:
            return ended(handle.session)
        session, text = handle.session, ""
        # The call may outlive its request.
        with following(self._request.scope, self.turns.db, self.turns.bus, handle) as stream:
            stream.shows_drafts = False
            await self._report(f"session {session.id} of the conversation {session.conversation}")
            async for batch in stream.pieces():
                if not batch:
                    await self._report("at work")
                for piece in batch:
                    text += piece.content
                    if told := _told(piece):
                        await self._report(told)
        return end_of(stream, text)

    async def _report(self, message: str) -> None:
        self._progress += 1
        await self.ctx.session.report_progress(float(self._progress), None, message)

    def _shown(self, end: TurnEnd) -> types.CallToolResult:
        text = str(end.error) if end.error else end.text
        told = {
            "answer": text,
            "state": end.state,
            "conversation_id": end.session.conversation,
            "session_id": end.session.id,
            "question": end.asks or None,
        }
        if end.asks:
            text = f"{text}\n\n{self._how_to_answer(end)}"
        content: list[types.ContentBlock] = [types.TextContent(text=text)]
        return types.CallToolResult(content=content, structured_content=told, is_error=end.has_failed)

    def _how_to_answer(self, end: TurnEnd) -> str:
        if self.is_agent:
            return f'To answer, call {self.params.name} again with conversation_id "{end.session.conversation}".'
        place = end.address or f"/v1/sessions/{end.session.id}/questions"
        return f"A person decides at {place}; the call goes on by itself then."


def _told(piece: ResponsePiece) -> str:
    """What an agent does, in a few words; empty if there is nothing to tell."""
    activity: Any = piece.activity
    if activity is None:
        return ""
    agent = f"{activity.get('subagent_name') or activity.get('agent', '')}: "
    match activity.get("event") or activity.get("role"):
        case "tool_call":
            return f"{agent}{activity['tool']}"
        case "subagent_delegation":
            return f"{agent}{str(activity.get('task', ''))[:200]}"
        case "retrying" | "resumed" | "started" as event:
            return f"{agent}{event}"
    return ""


def _form(end: TurnEnd) -> dict[str, Any]:
    """The form for an answer: a choice where only a yes or a no decides."""
    if end.is_yes_or_no:
        answer: dict[str, Any] = {"type": "string", "title": "Decision", "enum": ["approve", "deny"]}
    else:
        answer = {"type": "string", "title": "Answer"}
    return {"type": "object", "properties": {"answer": answer}, "required": ["answer"]}


def _input_required(end: TurnEnd) -> types.InputRequiredResult:
    """The question as the result: the client repeats its call with the answer, also to another process."""
    asked = types.ElicitRequest(params=types.ElicitRequestFormParams(message=end.text, requested_schema=_form(end)))
    state = msgspec.json.encode(QuestionState(end.session.id, end.asks)).decode()
    return types.InputRequiredResult(input_requests={QUESTION: asked}, request_state=state)


def _answer(asked: types.ElicitResult) -> str | None:
    """What a person has answered; None if nothing."""
    answer = (asked.content or {}).get("answer") if asked.action == "accept" else None
    return answer if isinstance(answer, str) and answer.strip() else None
