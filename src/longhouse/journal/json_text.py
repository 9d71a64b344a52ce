"""JSON of a model that others can read back: model servers parse the calls in a history, and refuse what is none."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from longhouse.journal.messages import Assistant, Function, Message, ToolCall, ToolResult

DEEPEST: Final = 50
"""Levels of lists and objects; no schema of ours has so many, and whoever walks a value stays far from its limits."""
QUOTED: Final = 400
"""Characters of what could not be read that its result quotes."""


def value_of(text: str) -> Any:
    """The value that a JSON text holds; None where it holds none, or one that is nested too deeply to be handed on."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return None if is_deep(value) else value


def object_of(text: str) -> dict[str, Any] | None:
    value = value_of(text)
    return value if isinstance(value, dict) else None


def is_deep(value: Any) -> bool:
    """Is a value nested too deeply? Level by level: a walk that calls itself would break on such a one."""
    level = [value]
    for _ in range(DEEPEST):
        if not level:
            return False
        containers = [one for one in level if isinstance(one, dict | list)]
        level = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)


def sound(messages: Iterable[Message]) -> Iterator[Message]:
    """The messages, with an empty object where the arguments of a call are none; its result quotes what was written.

    The journal keeps the model's own words: this is how a history is told on.
    """
    broken: dict[str, str] = {}
    for message in messages:
        if isinstance(message, Assistant):
            written = {call.id: call.function.arguments for call in message.tool_calls}
            broken = {call: text for call, text in written.items() if object_of(text) is None}
            yield _emptied(message, broken) if broken else message
        elif isinstance(message, ToolResult) and (text := broken.get(message.tool_call_id, "").strip()):
            yield ToolResult(tool_call_id=message.tool_call_id, content=f"{message.content}\n{_quoted(text)}")
        else:
            yield message


def _emptied(message: Assistant, broken: dict[str, str]) -> Assistant:
    calls = tuple(
        ToolCall(id=call.id, function=Function(name=call.function.name, arguments="{}")) if call.id in broken else call
        for call in message.tool_calls
    )
    return Assistant(content=message.content, tool_calls=calls)


def _quoted(text: str) -> str:
    more = f" […{len(text) - QUOTED} more characters]" if len(text) > QUOTED else ""
    return f"The arguments were written as: {text[:QUOTED]}{more}"
