"""The JSON of A2A in its versions 1.0 and 0.3: what clients send, and tasks as they read them.

Both are spoken at the same address; the method says which: SendMessage is of 1.0, message/send of 0.3.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, Literal, NotRequired, TypedDict

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from longhouse.api.a2a.tasks import HistoryMessage, Task
from longhouse.api.wire import Lenient
from longhouse.errors import CallerError

DOMAIN: Final = "a2a-protocol.org"
ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
ARTIFACT: Final = "answer"
TEXT: Final = "text/plain"


class RpcCode(IntEnum):
    """The codes of errors, by the names that the specifications have for them."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    REFUSED = -32000
    """Ours: a limit, a budget or a right of the key; JSON-RPC leaves this code to servers."""
    TASK_NOT_FOUND = -32001
    TASK_NOT_CANCELABLE = -32002
    PUSH_NOTIFICATION_NOT_SUPPORTED = -32003
    UNSUPPORTED_OPERATION = -32004
    CONTENT_TYPE_NOT_SUPPORTED = -32005
    EXTENDED_AGENT_CARD_NOT_CONFIGURED = -32007
    VERSION_NOT_SUPPORTED = -32009


class RpcErrorInfo(TypedDict):
    code: int
    message: str
    data: list[dict[str, Any]]


class RpcAnswer(TypedDict):
    """A response of JSON-RPC: the result, or the error."""

    jsonrpc: Literal["2.0"]
    id: str | int | float | None
    result: NotRequired[dict[str, Any]]
    error: NotRequired[RpcErrorInfo]


class RpcError(Exception):
    """An error of JSON-RPC, or of A2A, with its code."""

    def __init__(self, code: RpcCode, message: str, /, **details: str) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        """What programs read: the field that is meant, `param`, and our own `code`."""

    @property
    def shown(self) -> RpcErrorInfo:
        told = {"@type": ERROR_INFO, "domain": DOMAIN, "metadata": self.details}
        if self.code == RpcCode.REFUSED:
            told |= {"reason": self.details.get("code", "refused").upper(), "domain": "longhouse"}
        else:
            told["reason"] = self.code.name
        return {"code": self.code, "message": str(self), "data": [told]}


def rpc_error(error: CallerError) -> RpcError:
    """An error of ours, as one of JSON-RPC."""
    told = {"param": error.param, "code": error.code, "retry_after": error.retry_after}
    shown = {name: str(value) for name, value in told.items() if value is not None}
    if error.status >= 500:
        return RpcError(RpcCode.INTERNAL_ERROR, str(error), **shown)
    code = RpcCode.REFUSED if error.status in (401, 403, 409, 429) else RpcCode.INVALID_PARAMS
    return RpcError(code, str(error), **shown)


# What clients send


class RpcModel(Lenient):
    """What a client sends; unknown fields are those of a later version, or of an extension."""

    model_config = ConfigDict(alias_generator=to_camel)


class PartIn(RpcModel):
    text: str | None = None


class MessageIn(RpcModel):
    message_id: str = Field(min_length=1, max_length=512)
    context_id: str | None = None
    task_id: str | None = None
    role: Literal["user", "ROLE_USER"]
    parts: list[PartIn] = Field(min_length=1, max_length=1000, fail_fast=True)


class Configuration(RpcModel):
    blocking: bool | None = None
    return_immediately: bool | None = None
    history_length: int | None = Field(None, ge=0)
    accepted_output_modes: list[str] | None = Field(None, max_length=100)
    push_notification_config: Any = None
    task_push_notification_config: Any = None

    @property
    def waits(self) -> bool:
        """Whether the response comes when the task has stopped."""
        return not self.return_immediately and self.blocking is not False


class SendParams(RpcModel):
    message: MessageIn
    configuration: Configuration = Field(default_factory=lambda: Configuration.model_validate({}))


class TaskParams(RpcModel):
    id: str = Field(min_length=1, max_length=512)
    history_length: int | None = Field(None, ge=0)


def text_in(message: MessageIn) -> str:
    """The text of a message; what an agent cannot read is refused."""
    texts = []
    for index, part in enumerate(message.parts):
        if part.text is None:
            where = f"message.parts[{index}]"
            raise RpcError(
                RpcCode.CONTENT_TYPE_NOT_SUPPORTED,
                f"{where} has no text: agents here read text alone.",
                param=where,
            )
        texts.append(part.text)
    text = "\n\n".join(texts)
    if not text.strip():
        raise RpcError(RpcCode.INVALID_PARAMS, "message.parts has no text.", param="message.parts")
    return text


# What they read


class V1:
    """How version 1.0 writes tasks and events: in ProtoJSON, where the name of a field says what an object is."""

    def state(self, task: Task) -> str:
        return f"TASK_STATE_{task.state.upper().replace('-', '_')}"

    def role(self, by: str) -> str:
        return f"ROLE_{by.upper()}"

    def object(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        """An object of this kind."""
        return fields

    def result(self, name: str, shown: dict[str, Any]) -> dict[str, Any]:
        """A result that may be one of several objects."""
        return {name: shown}

    def task(self, task: Task, history: int | None = None) -> dict[str, Any]:
        said = task.history
        shown = said if history is None else said[len(said) - min(history, len(said)) :]
        first = len(said) - len(shown)
        told: dict[str, Any] = {
            "id": task.id,
            "contextId": task.session.conversation,
            "status": self.status(task),
            "history": [self.message(task, first + nth, one) for nth, one in enumerate(shown)],
            "metadata": {"session_id": task.session.id, **({"question": task.asks} if task.asks else {})},
        }
        if task.answer is not None:
            told["artifacts"] = [self.artifact(task.answer)]
        return self.object("task", told)

    def status(self, task: Task) -> dict[str, Any]:
        status: dict[str, Any] = {"state": self.state(task), "timestamp": _moment(task.at)}
        if task.text:
            status["message"] = self.message(task, len(task.history), HistoryMessage("agent", task.text))
        return status

    def message(self, task: Task, nth: int, said: HistoryMessage) -> dict[str, Any]:
        told = {
            "messageId": f"{task.id}:{nth}",
            "contextId": task.session.conversation,
            "taskId": task.id,
            "role": self.role(said.by),
            "parts": [self.part(said.text)],
        }
        return self.object("message", told)

    def part(self, text: str) -> dict[str, Any]:
        return self.object("text", {"text": text})

    def artifact(self, text: str) -> dict[str, Any]:
        return {"artifactId": ARTIFACT, "name": ARTIFACT, "parts": [self.part(text)]}

    def sent(self, task: Task, history: int | None = None) -> dict[str, Any]:
        """The result of sending a message, and the first event of a stream."""
        return self.result("task", self.task(task, history))

    def status_event(self, task: Task, *, goes_on: bool = False) -> dict[str, Any]:
        told = self.object("status-update", {**_of(task), "status": self.status(task)})
        return self.result("statusUpdate", told)

    def artifact_event(self, task: Task, text: str, *, append: bool, last: bool) -> dict[str, Any]:
        told = {**_of(task), "artifact": self.artifact(text), "append": append, "lastChunk": last}
        return self.result("artifactUpdate", self.object("artifact-update", told))


class V03(V1):
    """Version 0.3: a `kind` says what an object is."""

    def state(self, task: Task) -> str:
        return task.state

    def role(self, by: str) -> str:
        return by

    def object(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        return {"kind": kind, **fields}

    def result(self, name: str, shown: dict[str, Any]) -> dict[str, Any]:
        return shown

    def status_event(self, task: Task, *, goes_on: bool = False) -> dict[str, Any]:
        is_final = task.is_over or (task.state == "input-required" and not goes_on)
        return {**super().status_event(task), "final": is_final}


def _of(task: Task) -> dict[str, Any]:
    return {"taskId": task.id, "contextId": task.session.conversation}


def _moment(at: datetime | None) -> str:
    moment = (at or datetime.now(UTC)).astimezone(UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def accepts_text(modes: Sequence[str] | None) -> bool:
    return not modes or any(mode in (TEXT, "text/*", "*/*", "text", "text/markdown") for mode in modes)
