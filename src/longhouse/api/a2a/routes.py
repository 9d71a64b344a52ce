"""/a2a/{template}: the card of an agent, and its tasks over JSON-RPC."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import pydantic
import structlog
from fastapi import APIRouter, Depends, Request
from msgspec.structs import replace

from longhouse.agents.strategies.one_call import ONE_CALL
from longhouse.agents.template import Template
from longhouse.api import auth, errors, wire
from longhouse.api.a2a import tasks
from longhouse.api.a2a.card import AgentCard, card_of
from longhouse.api.a2a.tasks import Task
from longhouse.api.a2a.wire import (
    V03,
    V1,
    RpcAnswer,
    RpcCode,
    RpcError,
    SendParams,
    TaskParams,
    accepts_text,
    rpc_error,
    text_in,
)
from longhouse.api.caller import Caller
from longhouse.api.http import streaming
from longhouse.api.http.json_route import JsonRoute, of_app
from longhouse.api.openai.session_resolver import unknown_model
from longhouse.api.openai.turn_handle import TurnHandle
from longhouse.api.openai.turn_stream import TurnStream
from longhouse.api.sessions.tail import follow
from longhouse.api.turns import Turns
from longhouse.errors import CallerError
from longhouse.store import journals
from longhouse.validation_messages import explain, invalid_value

log = structlog.get_logger()

DELETED: Final = "The session of this task was deleted."
EXAMPLE: Final[dict[str, Any]] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "SendMessage",
    "params": {"message": {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": "Hello"}]}},
}
BODY: Final = {
    "requestBody": {
        "required": True,
        "description": "A request of JSON-RPC 2.0, as A2A 1.0 or 0.3 has it.",
        # Whatever it is, the answer is one of JSON-RPC, which says what is wrong.
        "content": {"application/json": {"schema": {}, "example": EXAMPLE}},
    }
}


NO_REQUEST: Final = wire.answer("The body is no JSON, or too long.", kind=RpcAnswer)


class RpcRoute(JsonRoute):
    """A route whose body is read by itself: what is no JSON is an error of JSON-RPC too."""

    reads_body = True


RpcEvents = streaming.Event[None, RpcAnswer]
Answered = wire.Json[RpcAnswer] | streaming.EventStream[RpcEvents]
Params = TypeVar("Params", bound=pydantic.BaseModel)
Sender = Annotated[Turns, of_app("turns")]

router = APIRouter(prefix="/a2a/{template}", tags=["A2A"], dependencies=[Depends(auth.user)], route_class=RpcRoute)


async def _agent(caller: auth.User, turns: Sender, template: str) -> Template:
    """The template of the path, if the caller may use it."""
    found, _ = await turns.resolver.template(template, caller.owner)
    if found.name == ONE_CALL.name:
        raise unknown_model(template)
    caller.uses(found.name)
    return found


Agent = Annotated[Template, Depends(_agent)]


@router.get("/.well-known/agent-card.json")
async def get_agent_card(agent: Agent, request: Request) -> wire.Json[AgentCard]:
    """The card of the agent, by which clients of A2A find out what it can and where it is reached."""
    return wire.Json(card_of(agent, request.scope))


@router.post("/", include_in_schema=False)
@router.post("", openapi_extra=BODY, responses={413: NO_REQUEST, 415: NO_REQUEST})
async def call_agent(caller: auth.User, turns: Sender, agent: Agent, template: str, request: Request) -> Answered:
    """A call of A2A: `SendMessage`, `SendStreamingMessage`, `GetTask`, `CancelTask`, `SubscribeToTask`; or, as 0.3 has
    it, `message/send`, `message/stream`, `tasks/get`, `tasks/cancel`, `tasks/resubscribe`. A task is a turn of a
    session, its `contextId` the conversation; a message with the `taskId` of a task that asks is the answer."""
    rpc_id: Any = None
    try:
        given = _decoded(await wire.read_body(request))
        rpc_id = _id_of(given)
        name = _method_in(given, request.headers.get("a2a-version", ""))
        if name in NOT_OFFERED:
            raise RpcError(*NOT_OFFERED[name])
        method = METHODS.get(name)
        if method is None:
            raise RpcError(RpcCode.METHOD_NOT_FOUND, f"There is no method {name[:64]!r}.", param="method")
        return await method(RpcCall(turns, caller, agent, template, request, rpc_id, name, given.get("params", {})))
    except RpcError as error:
        return wire.Json(_failed(rpc_id, error))
    except CallerError as error:
        if error.status in (413, 415):
            return wire.Json(_failed(None, RpcError(RpcCode.INVALID_REQUEST, str(error))), error.status)
        return wire.Json(_failed(rpc_id, rpc_error(error)))
    except errors.TROUBLE as error:
        errors.log_trouble(error, "An A2A request was refused.")
        return wire.Json(_failed(rpc_id, rpc_error(errors.error_for(error))))


@dataclass(frozen=True, slots=True)
class RpcCall:
    """A request, and what it is answered with."""

    turns: Turns
    caller: Caller
    agent: Template
    model: str
    """The template as the path names it, perhaps with a version."""
    request: Request
    id: Any
    method: str
    params: Any

    @property
    def dialect(self) -> V1:
        return V03() if "/" in self.method else V1()

    def result(self, result: dict[str, Any]) -> wire.Json[RpcAnswer]:
        return wire.Json(_done(self.id, result))

    # SendMessage, SendStreamingMessage

    async def send(self) -> Answered:
        params = self._sent()
        handle = await self._handle(params)
        stream, words = self.turns.follow(self.request.scope, handle), ""
        if params.configuration.waits:
            async for batch in stream.pieces():
                words += "".join(one.content for one in batch)
        task = await self._task(stream, words)
        return self.result(self.dialect.sent(task, params.configuration.history_length))

    async def stream(self) -> Answered:
        handle = await self._handle(self._sent())
        return self._streamed(self.turns.follow(self.request.scope, handle, shows_drafts=True))

    def _sent(self) -> SendParams:
        params = _params(SendParams, self.params)
        configuration = params.configuration
        if configuration.push_notification_config or configuration.task_push_notification_config:
            raise RpcError(
                RpcCode.PUSH_NOTIFICATION_NOT_SUPPORTED, "Push notifications are not supported.", param="configuration"
            )
        if not accepts_text(configuration.accepted_output_modes):
            raise RpcError(
                RpcCode.CONTENT_TYPE_NOT_SUPPORTED,
                "Agents here answer with text.",
                param="configuration.acceptedOutputModes",
            )
        return params

    async def _handle(self, params: SendParams) -> TurnHandle:
        message, text = params.message, text_in(params.message)
        headers, context = self.request.headers, message.context_id or ""
        if context:
            wire.checked_id(context, "message.contextId")
        if not message.task_id:
            return await self.turns.send(self.caller, self.model, text, conversation=context, headers=headers)
        task = await self._found(message.task_id, "message.taskId")
        if context not in ("", task.session.conversation):
            raise RpcError(
                RpcCode.INVALID_PARAMS, "message.contextId is not that of the task.", param="message.contextId"
            )
        # An answer that is repeated finds that its question is answered.
        if task.state != "input-required" and not await self.turns.is_repeated(self.caller, headers):
            what = "has ended" if task.is_over else "is at work and asks nothing"
            how = f"send the message without a taskId, with the contextId {task.session.conversation}"
            raise RpcError(
                RpcCode.UNSUPPORTED_OPERATION, f"This task {what}: {how}.", param="message.taskId", state=task.state
            )
        sent, reply_to = {"taskId": message.task_id, "text": text}, task.asks or "answered"
        return await self.turns.send(self.caller, task.session.id, text, reply_to=reply_to, headers=headers, sent=sent)

    async def _task(self, stream: TurnStream, words: str = "") -> Task:
        """The task of a turn that was followed until now; `words`: what it waits behind, if it could not begin."""
        if stream.error and stream.error.code == "session_deleted":
            raise RpcError(RpcCode.TASK_NOT_FOUND, DELETED)
        task = await tasks.task_of(self.turns, stream.session, stream.handle.trace, stream.error)
        is_behind = stream.is_over and task.state == "submitted" and not task.text
        return replace(task, text=words) if is_behind else task

    # GetTask, CancelTask, SubscribeToTask

    async def get(self) -> Answered:
        task, history = await self._named()
        return self.result(self.dialect.task(task, history))

    async def cancel(self) -> Answered:
        self.caller.writes()
        task, _ = await self._named()
        if task.is_over:
            raise RpcError(RpcCode.TASK_NOT_CANCELABLE, f"This task is {task.state}.", param="id", state=task.state)
        after = await self.turns.inbox.cancel(task.session, by=self.caller.decider, trace=task.trace)
        return self.result(self.dialect.task(await tasks.task_of(self.turns, after, task.trace)))

    async def subscribe(self) -> Answered:
        task, _ = await self._named()
        if task.is_over:
            raise RpcError(
                RpcCode.UNSUPPORTED_OPERATION,
                f"This task is {task.state}; get it instead.",
                param="id",
                state=task.state,
            )
        handle = TurnHandle(task.session, task.trace, is_behind=True)
        return self._streamed(self.turns.follow(self.request.scope, handle, shows_drafts=True))

    async def _named(self) -> tuple[Task, int | None]:
        """The task that the parameters name, and how much of its history they ask for."""
        params = _params(TaskParams, self.params)
        return await self._found(params.id, "id"), params.history_length

    async def _found(self, task_id: str, param: str) -> Task:
        task = None if "\x00" in task_id else await tasks.find(self.turns, self.caller, self.agent.name, task_id)
        if task is None:
            raise RpcError(RpcCode.TASK_NOT_FOUND, "There is no such task.", param=param)
        return task

    # Events

    def _streamed(self, stream: TurnStream) -> Answered:
        return streaming.EventStream(self._events(stream), error=lambda error: self._failed(rpc_error(error)))

    async def _events(self, stream: TurnStream) -> AsyncGenerator[bytes, None]:
        try:
            async for event in self._told(stream):
                yield event
        except RpcError as error:
            yield self._failed(error)

    async def _told(self, stream: TurnStream) -> AsyncGenerator[bytes, None]:
        """The task, the text of its answer as it is written, and where the task stops."""
        dialect, trace, is_begun, words = self.dialect, stream.handle.trace, False, ""
        task = await tasks.task_of(self.turns, stream.session, trace)
        yield self._event(dialect.sent(task))
        while True:
            async for batch in stream.pieces():
                if not batch:
                    yield streaming.HEARTBEAT
                    continue
                # What a turn asks at its end is a status: it is no part of an answer.
                text = "".join(one.content for one in batch)
                if stream.is_over and not _is_answered(stream):
                    words = text
                elif text:
                    yield self._event(dialect.artifact_event(task, text, append=is_begun, last=False))
                    is_begun = True
                is_idle = task.state in ("submitted", "input-required")
                if is_idle and stream.session.trace == trace and not stream.is_over:
                    task = Task(stream.session, trace, "working")
                    yield self._event(dialect.status_event(task))
            task, session = await self._task(stream, words), stream.session
            if METHODS[self.method] is not RpcCall.subscribe or task.state != "input-required":
                break
            # It waits for a person, and is followed on.
            yield self._event(dialect.status_event(task, goes_on=True))
            async for happened in follow(
                self.turns.db, session.id, stream.subscription, after=session.head, beat=stream.beat
            ):
                if happened:
                    break
                yield streaming.HEARTBEAT
            else:
                raise RpcError(RpcCode.TASK_NOT_FOUND, DELETED)
            handle = TurnHandle(await journals.catch_up(self.turns.db, session), trace, is_behind=True)
            stream = TurnStream(self.turns.db, self.turns.bus, handle, stream.subscription, stream.address, stream.beat)
        if task.answer is not None:
            rest = "" if is_begun else task.answer
            yield self._event(dialect.artifact_event(task, rest, append=is_begun, last=True))
        yield self._event(dialect.status_event(task))

    def _failed(self, error: RpcError) -> bytes:
        return streaming.data(_failed(self.id, error))

    def _event(self, result: dict[str, Any]) -> bytes:
        return streaming.data(_done(self.id, result))


METHODS: Final[dict[str, Callable[[RpcCall], Awaitable[Answered]]]] = {
    "SendMessage": RpcCall.send,
    "SendStreamingMessage": RpcCall.stream,
    "GetTask": RpcCall.get,
    "CancelTask": RpcCall.cancel,
    "SubscribeToTask": RpcCall.subscribe,
    "message/send": RpcCall.send,
    "message/stream": RpcCall.stream,
    "tasks/get": RpcCall.get,
    "tasks/cancel": RpcCall.cancel,
    "tasks/resubscribe": RpcCall.subscribe,
}
NO_PUSH: Final = (
    RpcCode.PUSH_NOTIFICATION_NOT_SUPPORTED,
    "Push notifications are not supported: subscribe to the task, or get it.",
)
NO_CARD: Final = (
    RpcCode.EXTENDED_AGENT_CARD_NOT_CONFIGURED,
    "There is one card, at /.well-known/agent-card.json below this address.",
)
NO_LIST: Final = (
    RpcCode.UNSUPPORTED_OPERATION,
    "Tasks are not listed here: GET /v1/sessions lists the sessions behind them.",
)
NOT_OFFERED: Final = {
    "ListTasks": NO_LIST,
    "CreateTaskPushNotificationConfig": NO_PUSH,
    "GetTaskPushNotificationConfig": NO_PUSH,
    "ListTaskPushNotificationConfigs": NO_PUSH,
    "DeleteTaskPushNotificationConfig": NO_PUSH,
    "GetExtendedAgentCard": NO_CARD,
    "tasks/pushNotificationConfig/set": NO_PUSH,
    "tasks/pushNotificationConfig/get": NO_PUSH,
    "tasks/pushNotificationConfig/list": NO_PUSH,
    "tasks/pushNotificationConfig/delete": NO_PUSH,
    "agent/getAuthenticatedExtendedCard": NO_CARD,
}


def _is_answered(stream: TurnStream) -> bool:
    turn = stream.session.turn
    return turn is not None and turn.trace == stream.handle.trace and turn.ended == "COMPLETED"


def _decoded(body: bytes) -> dict[str, Any]:
    """A request of JSON-RPC; a batch is none."""
    try:
        given = wire.decode(body)
    except CallerError as error:
        raise RpcError(RpcCode.PARSE_ERROR, str(error)) from None
    if not isinstance(given, dict):
        raise RpcError(RpcCode.INVALID_REQUEST, "The body should be one object: a request of JSON-RPC 2.0.")
    return given


def _id_of(given: dict[str, Any]) -> str | int | float | None:
    rpc_id = given.get("id")
    if isinstance(rpc_id, bool) or not isinstance(rpc_id, str | int | float | None):
        raise RpcError(RpcCode.INVALID_REQUEST, "id should be text, a number or null.", param="id")
    return rpc_id


def _method_in(given: dict[str, Any], version: str) -> str:
    method = given.get("method")
    if given.get("jsonrpc") != "2.0":
        raise RpcError(RpcCode.INVALID_REQUEST, "jsonrpc should be '2.0'.", param="jsonrpc")
    if not isinstance(method, str):
        raise RpcError(RpcCode.INVALID_REQUEST, "method should be text.", param="method")
    if version and not version.startswith(("0.3", "1.")):
        raise RpcError(RpcCode.VERSION_NOT_SUPPORTED, "A2A-Version should be 1.0 or 0.3.", param="A2A-Version")
    return method


def _params(kind: type[Params], given: Any) -> Params:
    """The parameters of a method; the error names the field."""
    try:
        return kind.model_validate(given)
    except pydantic.ValidationError as error:
        param, sentence = invalid_value(*explain(error)[0], whole="params")
        raise RpcError(RpcCode.INVALID_PARAMS, sentence, param=param or "params") from None


def _done(rpc_id: Any, result: dict[str, Any]) -> RpcAnswer:
    return {"jsonrpc": "2.0", "id": rpc_id, "result": result}


def _failed(rpc_id: Any, error: RpcError) -> RpcAnswer:
    return {"jsonrpc": "2.0", "id": rpc_id, "error": error.shown}
