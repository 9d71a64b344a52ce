"""What comes back on the stream, and what of it is to be kept."""

import json
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from typing import Any

from longhouse.memory import MemoryMessage


async def events_of(lines: AsyncIterable[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event; comments and `[DONE]` are passed over."""
    data: list[str] = []
    async for raw in lines:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            text, data = "\n".join(data), []
            if text != "[DONE]":
                yield json.loads(text)


def words_of(chunk: Mapping[str, Any]) -> str:
    """What the chunk adds to the answer that the user reads."""
    return "".join(choice.get("delta", {}).get("content") or "" for choice in chunk.get("choices", ()))


def problem_of(chunk: Mapping[str, Any]) -> str | None:
    """Why the stream ends without an answer."""
    error = chunk.get("error")
    return str(error.get("message", error)) if isinstance(error, dict) else None


def event_in(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the agents did: on a chat chunk it rides as `x_agent`, elsewhere it is the event itself."""
    found = chunk.get("x_agent")
    return found if isinstance(found, dict) else chunk


def kept_of(event: Mapping[str, Any]) -> tuple[str, MemoryMessage] | None:
    """The sub-agent's name and the message its history grows by; None for what is only to be seen."""
    name = event.get("subagent_name")
    message = _message(event, event.get("role") or event.get("event"))
    return (name, message) if isinstance(name, str) and name and message else None


def _message(event: Mapping[str, Any], role: object) -> MemoryMessage | None:
    match role:
        case "subagent_delegation":
            return MemoryMessage("user", event.get("task") or "")
        case "subagent_assistant_with_tools":
            return MemoryMessage("assistant", event.get("content") or "", tool_calls=list(event["tool_calls"]))
        case "subagent_tool_result":
            return MemoryMessage(
                "tool", event.get("content") or "", tool_call_id=event["tool_call_id"], name=event.get("name")
            )
        case "subagent_completion":
            return MemoryMessage("assistant", event.get("response") or "")
        case _:
            return None
