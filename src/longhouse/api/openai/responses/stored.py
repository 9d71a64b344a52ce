"""What is stored of a response beside its journal: its request, and how it ended where its turn waits for somebody."""

from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from longhouse.api.openai.turn_stream import WaitingCall
from longhouse.store.openai.responses import ResponseRow

PREFIX: Final = "resp_"
APPROVAL: Final = "mcpr_"


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a response keeps of its request: what its object repeats, and its input."""

    model: str = ""
    input: tuple[dict[str, Any], ...] = ()
    instructions: str | None = None
    metadata: dict[str, str] = {}
    background: bool = False
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    conversation: str | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: dict[str, Any] = {}
    tool_choice: str | dict[str, Any] = "auto"
    tools: tuple[dict[str, Any], ...] = ()
    truncation: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    shows_reasoning: bool = True


class WaitingEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a response ends whose turn waits for somebody."""

    seq: int
    at: datetime
    text: str = ""
    waiting_for: Literal["", "clarification", "approval", "function_call"] = ""
    call_id: str = ""
    approvals: tuple[WaitingCall, ...] = ()
    calls: tuple[WaitingCall, ...] = ()


def rest_of(row: ResponseRow) -> WaitingEnd | None:
    return msgspec.json.decode(row.rest, type=WaitingEnd) if row.rest else None


def approval_calls(row: ResponseRow) -> dict[str, str]:
    """The approvals that a response has asked for: the ids of its items, and the calls as questions name them."""
    rest = rest_of(row)
    return {approval_id(row, one.id): one.id for one in rest.approvals} if rest else {}


def approval_id(row: ResponseRow, call: str) -> str:
    return f"{APPROVAL}{row.id.removeprefix(PREFIX)}_{call.encode().hex()}"
