"""The objects of the Responses API: a response, its items, and the events of its stream."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

SERVER: Final = "longhouse"
"""The `server_label` of all that our agents do by themselves."""

Status = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class _Object(msgspec.Struct, frozen=True, kw_only=True):
    pass


class _Tagged(_Object, frozen=True, kw_only=True, tag_field="type"):
    """An object whose `type` says what it is."""


# Items


class OutputText(_Tagged, frozen=True, kw_only=True, tag="output_text"):
    text: str = ""
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputRefusal(_Tagged, frozen=True, kw_only=True, tag="refusal"):
    refusal: str = ""

    @property
    def text(self) -> str:
        return self.refusal


class OutputMessage(_Tagged, frozen=True, kw_only=True, tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    """`incomplete`: what was shown of it does not hold, since its step was restarted; it has no content then."""
    content: tuple[OutputText | OutputRefusal, ...] = ()


class SummaryText(_Tagged, frozen=True, kw_only=True, tag="summary_text"):
    text: str = ""


class ReasoningItem(_Tagged, frozen=True, kw_only=True, tag="reasoning"):
    id: str
    summary: tuple[SummaryText, ...] = ()
    status: ItemStatus


class ErrorText(_Tagged, frozen=True, kw_only=True, tag="text"):
    text: str


class ToolError(_Tagged, frozen=True, kw_only=True, tag="mcp_tool_execution_error"):
    content: tuple[ErrorText, ...]


class McpCall(_Tagged, frozen=True, kw_only=True, tag="mcp_call"):
    """A tool that the agent has used by itself."""

    id: str
    server_label: str = SERVER
    name: str
    arguments: str
    output: str | None = None
    error: ToolError | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    """`incomplete`: it has not returned when the response ended."""
    approval_request_id: str | None = None


class McpApprovalRequest(_Tagged, frozen=True, kw_only=True, tag="mcp_approval_request"):
    """A call that a person has to decide on: answer with an `mcp_approval_response`."""

    id: str
    server_label: str = SERVER
    name: str
    arguments: str


class FunctionCallItem(_Tagged, frozen=True, kw_only=True, tag="function_call"):
    """A call that the client has to make: answer with a `function_call_output`."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "completed"


OutputItem = OutputMessage | ReasoningItem | McpCall | McpApprovalRequest | FunctionCallItem


# The response


class ResponseError(_Object, frozen=True, kw_only=True):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(_Object, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens", "content_filter"]


class InputTokensDetails(_Object, frozen=True, kw_only=True):
    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(_Object, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class ResponseUsage(_Object, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class ResponseConversation(_Object, frozen=True, kw_only=True):
    id: str


class ResponseOrigin(_Object, frozen=True, kw_only=True, omit_defaults=True):
    """Ours: whose response it is, and what its turn waits for."""

    session_id: str
    conversation_id: str
    trace_id: str
    agent: str
    waiting_for: Literal["", "clarification", "approval", "function_call"] = ""
    call_id: str = ""
    """The question, as /v1/sessions/{id}/questions names it."""
    code: str = ""
    """Why the turn failed, as in other routes."""


class ResponseObject(_Object, frozen=True, kw_only=True):
    """A turn of a session, or the part of one between two messages of the client."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None = None
    model: str
    output: tuple[OutputItem, ...] = ()
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: ResponseConversation | None
    reasoning: Mapping[str, Any] | None
    service_tier: str | None
    store: bool
    temperature: float | None
    text: Mapping[str, Any]
    tool_choice: str | Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    top_p: float | None
    truncation: str | None
    metadata: Mapping[str, str]
    prompt_cache_key: str | None
    safety_identifier: str | None
    usage: ResponseUsage | UnsetType = UNSET
    user: str | UnsetType = UNSET
    x_agent: ResponseOrigin


class DeletedResponse(_Object, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


# Events of the stream


class _Numbered(msgspec.Struct, kw_only=True):
    """An event; its number is its place in the stream."""

    sequence_number: int = 0


class Lifecycle(_Numbered, kw_only=True):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.failed",
        "response.incomplete",
    ]
    response: ResponseObject


class ItemEvent(_Numbered, kw_only=True):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _OfItem(_Numbered, kw_only=True):
    """An event about a part of an item."""

    item_id: str
    output_index: int


class PartEvent(_OfItem, kw_only=True):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int = 0
    part: OutputText | OutputRefusal


class TextDelta(_OfItem, kw_only=True):
    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    content_index: int = 0
    delta: str
    logprobs: tuple[()] = ()


class TextDone(_OfItem, kw_only=True):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    content_index: int = 0
    text: str
    logprobs: tuple[()] = ()


class RefusalDelta(_OfItem, kw_only=True):
    type: Literal["response.refusal.delta"] = "response.refusal.delta"
    content_index: int = 0
    delta: str


class RefusalDone(_OfItem, kw_only=True):
    type: Literal["response.refusal.done"] = "response.refusal.done"
    content_index: int = 0
    refusal: str


class SummaryPartEvent(_OfItem, kw_only=True):
    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    summary_index: int = 0
    part: SummaryText


class SummaryDelta(_OfItem, kw_only=True):
    type: Literal["response.reasoning_summary_text.delta"] = "response.reasoning_summary_text.delta"
    summary_index: int = 0
    delta: str


class SummaryDone(_OfItem, kw_only=True):
    type: Literal["response.reasoning_summary_text.done"] = "response.reasoning_summary_text.done"
    summary_index: int = 0
    text: str


class CallEvent(_OfItem, kw_only=True):
    type: Literal["response.mcp_call.in_progress", "response.mcp_call.completed", "response.mcp_call.failed"]


class ArgumentsDelta(_OfItem, kw_only=True):
    type: Literal["response.mcp_call_arguments.delta", "response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_OfItem, kw_only=True):
    type: Literal["response.mcp_call_arguments.done", "response.function_call_arguments.done"]
    arguments: str
    name: str | UnsetType = UNSET
    """Of a function."""


class ErrorEvent(_Numbered, kw_only=True):
    """The stream ends here, and the response goes on: continue with `starting_after`."""

    type: Literal["error"] = "error"
    code: str | None
    message: str
    param: str | None = None


StreamEvent = (
    Lifecycle
    | ItemEvent
    | PartEvent
    | TextDelta
    | TextDone
    | RefusalDelta
    | RefusalDone
    | SummaryPartEvent
    | SummaryDelta
    | SummaryDone
    | CallEvent
    | ArgumentsDelta
    | ArgumentsDone
)

ResponseEvents = StreamEvent | ErrorEvent
