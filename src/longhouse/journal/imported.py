"""Imports message histories from other programs: parses JSON leniently, trims without splitting calls and results."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from longhouse.journal.messages import Assistant, Function, Message, ToolCall, ToolResult, User, clean

ROLES: Final = frozenset({"user", "assistant", "tool"})
OURS: Final = re.compile(r"\d+-(action-\d+|reasoning)")
"""Call ids as our sessions assign them; numbering starts anew in each session."""


class _SentFunction(msgspec.Struct):
    name: str
    arguments: str = "{}"


class _SentCall(msgspec.Struct):
    id: str
    function: _SentFunction


def last(messages: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """At most `limit` of the newest messages; a tool result whose call is cut off is dropped too."""
    kept = list(messages[-limit:]) if limit > 0 else []
    while kept and kept[0].get("role") == "tool":
        kept.pop(0)
    return kept


def paired(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without calls that have no result and results that have no call: models accept neither."""
    kept: list[dict[str, Any]] = []
    group: list[dict[str, Any]] = []
    missing: set[str] = set()
    for message in messages:
        if message.get("role") == "tool":
            if message.get("tool_call_id") in missing:
                missing.discard(message["tool_call_id"])
                group.append(message)
        else:
            kept += _settled(group, missing)
            group, missing = [message], {call["id"] for call in message.get("tool_calls") or ()}
    return kept + _settled(group, missing)


def _settled(group: list[dict[str, Any]], missing: set[str]) -> list[dict[str, Any]]:
    """A message and its results; if results are missing, only the message's text."""
    if not missing:
        return group
    words = group[0].get("content")
    return [{"role": "assistant", "content": words}] if words else []


def read(raw: object) -> list[dict[str, Any]]:
    """The messages of a JSON array that another program may have written; entries that are no messages are skipped."""
    if not isinstance(raw, list):
        return []
    return [message for one in raw if isinstance(one, dict) and (message := _read(one))]


def as_messages(history: Iterable[dict[str, Any]]) -> tuple[Message, ...]:
    """A history as messages that a model can be sent."""
    return tuple(_as_message(message) for message in _with_unique_ids(paired(history)))


def _with_unique_ids(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The messages with unique call ids that also differ from the ids the next turn will assign."""
    known: set[str] = set()
    ids: dict[str, str] = {}
    for message in messages:
        if calls := message.get("tool_calls"):
            ids = {call["id"]: _unique_id(known, call["id"]) for call in calls}
            yield {**message, "tool_calls": [{**call, "id": ids[call["id"]]} for call in calls]}
        elif message["role"] == "tool":
            yield {**message, "tool_call_id": ids[message["tool_call_id"]]}
        else:
            yield message


def _unique_id(known: set[str], call: str) -> str:
    number = len(known)
    while OURS.fullmatch(call) or call in known:
        number += 1
        call = f"told-{number}"
    known.add(call)
    return call


def _as_message(message: dict[str, Any]) -> Message:
    match message["role"]:
        case "user":
            return User(content=message["content"])
        case "tool":
            return ToolResult(tool_call_id=message["tool_call_id"], content=message["content"])
        case _:
            calls = tuple(
                ToolCall(id=call["id"], function=Function(**call["function"])) for call in message.get("tool_calls", ())
            )
            return Assistant(content=message["content"] or (None if calls else ""), tool_calls=calls)


def _read(raw: dict[str, Any]) -> dict[str, Any] | None:
    role, content = raw.get("role"), _text(raw.get("content"))
    if role not in ROLES or content is None:
        return None
    message: dict[str, Any] = {"role": role, "content": content}
    if role == "tool":
        call = raw.get("tool_call_id")
        if not isinstance(call, str) or not call:
            return None
        message["tool_call_id"] = clean(call)
        if isinstance(name := raw.get("name"), str) and name:
            message["name"] = clean(name)
    if role == "assistant" and raw.get("tool_calls"):
        calls = _calls(raw["tool_calls"])
        if calls is None:
            return None
        message["tool_calls"] = calls
    says_nothing = role != "tool" and not content and "tool_calls" not in message
    return None if says_nothing else message


def _text(content: object) -> str | None:
    """The content as text; of a list of parts, the text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return clean(content)
    if not isinstance(content, list):
        return None
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return clean("\n".join(text for text in texts if isinstance(text, str)))


def _calls(raw: object) -> list[dict[str, Any]] | None:
    if not isinstance(raw, list):
        return None
    calls = [_call(one) for one in raw]
    return None if None in calls else [call for call in calls if call]


def _call(raw: object) -> dict[str, Any] | None:
    try:
        call = msgspec.convert(raw, _SentCall)
    except msgspec.ValidationError:
        return None
    function = {"name": clean(call.function.name), "arguments": clean(call.function.arguments)}
    is_named = call.id and call.function.name
    return {"id": clean(call.id), "type": "function", "function": function} if is_named else None
