"""Parses and repairs a model's JSON: a few known mistakes are repaired, everything else is reported as an error."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from longhouse.journal.json_text import DEEPEST, is_deep

MOST: Final = 1_000_000
"""Maximum characters of a text that is repaired."""
_FENCE: Final = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)
_TRAILING_COMMA: Final = re.compile(r",(\s*[}\]])")


def read_object(text: str, *, whole: bool = False) -> dict[str, Any] | str:
    """The JSON object in a text, or an error message.

    `whole` accepts complete objects only: a reply that was truncated at a limit must not be executed.
    """
    if not text.strip():
        return "it is empty"
    if len(text) > MOST:
        return f"it is longer than {MOST} characters"
    problem = "it holds no JSON object"
    for candidate in (text,) if whole else _candidates(text):
        try:
            value = json.loads(candidate, strict=False)
        except (ValueError, RecursionError) as error:
            problem = f"it is not valid JSON: {error}"
            continue
        if is_deep(value):
            problem = f"it is nested deeper than {DEEPEST} levels"
        elif isinstance(value, dict):
            return value
        else:
            problem = "it is JSON, but not an object"
    return "it was cut off at the limit of its length; say it in fewer words" if whole else problem


def _candidates(text: str) -> Iterator[str]:
    """The text; without its code fence; from first to last brace; without trailing commas; with brackets closed."""
    yield text
    fenced = _FENCE.search(text)
    inner = fenced[1] if fenced else text
    if fenced:
        yield inner
    start, end = inner.find("{"), inner.rfind("}")
    if start < 0:
        return
    if end > start:
        yield inner[start : end + 1]
        yield _TRAILING_COMMA.sub(r"\1", inner[start : end + 1])
    yield _closed(_TRAILING_COMMA.sub(r"\1", inner[start:]))


def _closed(text: str) -> str:
    """Truncated JSON with its open quotes and brackets closed."""
    closing: list[str] = []
    in_string = escaped = False
    for char in text:
        if in_string:
            in_string, escaped = (escaped or char != '"'), (char == "\\" and not escaped)
        elif char == '"':
            in_string = True
        elif char in "{[":
            closing.append("}" if char == "{" else "]")
        elif char in "}]" and closing:
            closing.pop()
    return text + ('"' if in_string else "") + "".join(reversed(closing))
