"""Makes a model's JSON arguments valid: model servers parse the calls in a history and refuse invalid JSON."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from longhouse.journal.messages import Assistant, Function, Message, ToolResult

DEEPEST: Final = 50
"""Maximum nesting of lists and objects; our schemas have less, and recursive code stays far from its limits."""
REMEMBERED: Final = 1_000
"""Characters of a text of which it is remembered whether it is valid: every request contains those of all steps."""
QUOTED: Final = 400
"""Characters of invalid arguments that the result of the call quotes."""


def value_of(text: str) -> Any:
    """The parsed value of a JSON text; None if it is invalid or nested too deeply."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return None if len(text) > DEEPEST and is_deep(value) else value


def object_of(text: str) -> dict[str, Any] | None:
    value = value_of(text)
    return value if isinstance(value, dict) else None


def is_object(text: str) -> bool:
    return _is_object(text) if len(text) <= REMEMBERED else object_of(text) is not None


@lru_cache(maxsize=4_096)
def _is_object(text: str) -> bool:
    return object_of(text) is not None


def is_deep(value: Any) -> bool:
    """Whether a value is nested too deeply. Checked level by level: recursion would fail on such a value."""
    level = [value]
    for _ in range(DEEPEST):
        if not level:
            return False
        containers = [one for one in level if isinstance(one, dict | list)]
        level = [item for one in containers for item in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)


def with_valid_arguments(messages: Iterable[Message]) -> Iterator[Message]:
    """The messages with invalid call arguments replaced by an empty object; the call's result quotes the original.

    The journal keeps the model's own text; only the history that is sent on is changed.
    """
    broken: dict[str, str] = {}
    for message in messages:
        if type(message) is Assistant:
            written = [(call.id, call.function.arguments) for call in message.tool_calls] if message.tool_calls else ()
            broken = {call: text for call, text in written if not is_object(text)} if written else {}
            yield _emptied(message, broken) if broken else message
        elif broken and type(message) is ToolResult and (text := broken.get(message.tool_call_id, "").strip()):
            yield ToolResult(tool_call_id=message.tool_call_id, content=f"{message.content}\n{_quoted(text)}")
        else:
            yield message


def _emptied(message: Assistant, broken: dict[str, str]) -> Assistant:
    calls = tuple(
        msgspec.structs.replace(call, function=Function(name=call.function.name, arguments="{}"))
        if call.id in broken
        else call
        for call in message.tool_calls
    )
    return msgspec.structs.replace(message, tool_calls=calls)


def _quoted(text: str) -> str:
    more = f" […{len(text) - QUOTED} more characters]" if len(text) > QUOTED else ""
    return f"The arguments were written as: {text[:QUOTED]}{more}"
