"""The JSON of A2A in its versions 1.0 and 0.3: what clients send, and tasks as they read them.

Both are spoken at the same address; the method says which: SendMessage is of 1.0, message/send of 0.3.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NotRequired, Protocol, TypedDict

from pydantic import Field

from longhouse.api.a2a.tasks import HistoryMessage, Task
from longhouse.api.wire import Lenient
from longhouse.errors import CallerError

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REFUSED: Final = -32000
"""A limit, a budget or a right of the key; JSON-RPC leaves this code to servers."""
TASK_NOT_FOUND: Final = -32001
NOT_CANCELABLE: Final = -32002
NO_PUSH: Final = -32003
UNSUPPORTED: Final = -32004
CONTENT_TYPE: Final = -32005
NO_EXTENDED_CARD: Final = -32007
VERSION: Final = -32009
REASONS: Final = {
    PARSE_ERROR: "PARSE_ERROR",
    INVALID_REQUEST: "INVALID_REQUEST",
    METHOD_NOT_FOUND: "METHOD_NOT_FOUND",
    INVALID_PARAMS: "INVALID_PARAMS",
    INTERNAL_ERROR: "INTERNAL_ERROR",
    TASK_NOT_FOUND: "TASK_NOT_FOUND",
    NOT_CANCELABLE: "TASK_NOT_CANCELABLE",
    NO_PUSH: "PUSH_NOTIFICATION_NOT_SUPPORTED",
    UNSUPPORTED: "UNSUPPORTED_OPERATION",
    CONTENT_TYPE: "CONTENT_TYPE_NOT_SUPPORTED",
    NO_EXTENDED_CARD: "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    VERSION: "VERSION_NOT_SUPPORTED",
}
"""As the specification names them."""
DOMAIN: Final = "a2a-protocol.org"
ERROR_INFO: Final = "type.googleapis.com/google.rpc.ErrorInfo"
ARTIFACT: Final = "answer"
TEXT: Final = "text/plain"


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

    def __init__(self, code: int, message: str, /, **details: str) -> None:
        super().__init__(message)
        self.code = code
        self.details = details
        """What programs read: the field that is meant, `param`, and our own `code`."""

    @property
    def shown(self) -> RpcErrorInfo:
        told = {"@type": ERROR_INFO, "domain": DOMAIN, "metadata": self.details}
        if self.code == REFUSED:
            told |= {"reason": self.details.get("code", "refused").upper(), "domain": "longhouse"}
        else:
            told["reason"] = REASONS[self.code]
        return {"code": self.code, "message": str(self), "data": [told]}


def rpc_error(error: CallerError) -> RpcError:
    """An error of ours, as one of JSON-RPC."""
    told = {"param": error.param, "code": error.code, "retry_after": error.retry_after}
    shown = {name: str(value) for name, value in told.items() if value is not None}
    if error.status >= 500:
        return RpcError(INTERNAL_ERROR, str(error), **shown)
    return RpcError(REFUSED if error.status in (401, 403, 409, 429) else INVALID_PARAMS, str(error), **shown)


# What clients send


# Unknown fields are those of a later version, or of an extension.


class PartIn(Lenient):
    text: str | None = None


class MessageIn(Lenient):
    message_id: str = Field(alias="messageId", min_length=1, max_length=512)
    context_id: str | None = Field(None, alias="contextId")
    task_id: str | None = Field(None, alias="taskId")
    role: Literal["user", "ROLE_USER"]
    parts: list[PartIn] = Field(min_length=1, max_length=1000, fail_fast=True)


class Configuration(Lenient):
    blocking: bool | None = None
    return_immediately: bool | None = Field(None, alias="returnImmediately")
    history_length: int | None = Field(None, alias="historyLength", ge=0)
    accepted_output_modes: list[str] | None = Field(None, alias="acceptedOutputModes", max_length=100)
    push_config: Any = Field(None, alias="pushNotificationConfig")
    task_push_config: Any = Field(None, alias="taskPushNotificationConfig")

    @property
    def waits(self) -> bool:
        """Whether the response comes when the task has stopped."""
        return not self.return_immediately and self.blocking is not False


class SendParams(Lenient):
    message: MessageIn
    configuration: Configuration = Field(default_factory=lambda: Configuration.model_validate({}))


class TaskParams(Lenient):
    id: str = Field(min_length=1, max_length=512)
    history_length: int | None = Field(None, alias="historyLength", ge=0)


def text_in(message: MessageIn) -> str:
    """The text of a message; what an agent cannot read is refused."""
    texts = []
    for index, part in enumerate(message.parts):
        if part.text is None:
            what = "agents here read text alone"
            raise RpcError(
                CONTENT_TYPE, f"message.parts[{index}] has no text: {what}.", param=f"message.parts[{index}]"
            )
        texts.append(part.text)
    text = "\n\n".join(texts)
    if not text.strip():
        raise RpcError(INVALID_PARAMS, "message.parts has no text.", param="message.parts")
    return text


# What they read


class Dialect(Protocol):
    """How a version of A2A writes tasks and events."""

    def task(self, task: Task, history: int | None = None) -> dict[str, Any]: ...

    def sent(self, task: Task, history: int | None = None) -> dict[str, Any]:
        """The result of sending a message."""
        ...

    def task_event(self, task: Task) -> dict[str, Any]: ...

    def status_event(self, task: Task, *, goes_on: bool = False) -> dict[str, Any]: ...

    def artifact_event(self, task: Task, text: str, *, append: bool, last: bool) -> dict[str, Any]: ...


class _Common(Protocol):
    """What both versions have; a version says how it writes a state, a role and a part."""

    def state(self, task: Task) -> str: ...

    def role(self, by: str) -> str: ...

    def part(self, text: str) -> dict[str, Any]: ...

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
        return told

    def status(self, task: Task) -> dict[str, Any]:
        status: dict[str, Any] = {"state": self.state(task), "timestamp": _moment(task.at)}
        if task.text:
            status["message"] = self.message(task, len(task.history), HistoryMessage("agent", task.text))
        return status

    def message(self, task: Task, nth: int, said: HistoryMessage) -> dict[str, Any]:
        return {
            "messageId": f"{task.id}:{nth}",
            "contextId": task.session.conversation,
            "taskId": task.id,
            "role": self.role(said.by),
            "parts": [self.part(said.text)],
        }

    def artifact(self, text: str) -> dict[str, Any]:
        return {"artifactId": ARTIFACT, "name": ARTIFACT, "parts": [self.part(text)]}

    def _of(self, task: Task) -> dict[str, Any]:
        return {"taskId": task.id, "contextId": task.session.conversation}


class V1(_Common):
    """Version 1.0: ProtoJSON, where the name of a field says what an object is."""

    def state(self, task: Task) -> str:
        return f"TASK_STATE_{task.state.upper().replace('-', '_')}"

    def role(self, by: str) -> str:
        return f"ROLE_{by.upper()}"

    def part(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def sent(self, task: Task, history: int | None = None) -> dict[str, Any]:
        return {"task": self.task(task, history)}

    def task_event(self, task: Task) -> dict[str, Any]:
        return {"task": self.task(task)}

    def status_event(self, task: Task, *, goes_on: bool = False) -> dict[str, Any]:
        return {"statusUpdate": {**self._of(task), "status": self.status(task)}}

    def artifact_event(self, task: Task, text: str, *, append: bool, last: bool) -> dict[str, Any]:
        return {
            "artifactUpdate": {
                **self._of(task), "artifact": self.artifact(text), "append": append, "lastChunk": last,
            }
        }  # fmt: skip


class V03(_Common):
    """Version 0.3: a `kind` says what an object is."""

    def state(self, task: Task) -> str:
        return task.state

    def role(self, by: str) -> str:
        return by

    def part(self, text: str) -> dict[str, Any]:
        return {"kind": "text", "text": text}

    def message(self, task: Task, nth: int, said: HistoryMessage) -> dict[str, Any]:
        return {"kind": "message", **super().message(task, nth, said)}

    def task(self, task: Task, history: int | None = None) -> dict[str, Any]:
        return {"kind": "task", **super().task(task, history)}

    def sent(self, task: Task, history: int | None = None) -> dict[str, Any]:
        return self.task(task, history)

    def task_event(self, task: Task) -> dict[str, Any]:
        return self.task(task)

    def status_event(self, task: Task, *, goes_on: bool = False) -> dict[str, Any]:
        is_final = task.is_over or (task.state == "input-required" and not goes_on)
        return {"kind": "status-update", **self._of(task), "status": self.status(task), "final": is_final}

    def artifact_event(self, task: Task, text: str, *, append: bool, last: bool) -> dict[str, Any]:
        told = {"artifact": self.artifact(text), "append": append, "lastChunk": last}
        return {"kind": "artifact-update", **self._of(task), **told}


def _moment(at: datetime | None) -> str:
    moment = (at or datetime.now(UTC)).astimezone(UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def accepts_text(modes: Sequence[str] | None) -> bool:
    return not modes or any(mode in (TEXT, "text/*", "*/*", "text", "text/markdown") for mode in modes)
