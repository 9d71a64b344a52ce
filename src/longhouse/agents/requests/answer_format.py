"""The response format that a client asked for: the JSON that the final answer of a turn has to be."""

import json
from functools import lru_cache
from typing import Any, Final

import msgspec

from longhouse.agents.json_repair import read_object
from longhouse.journal.events import Prompted
from longhouse.journal.session import Turn

CODE: Final = "answer_format"
"""The code of an answer that does not follow the response format, and of a turn that failed for it."""
MOST_REPAIRS: Final = 2
"""How often the model is asked again for an answer that follows the format."""

IN_WORDS: Final = (
    "The final answer must be one JSON object and nothing else: no words around it, no code fence. Where a tool takes"
    " the answer as text, that text is the JSON object."
)


def is_asked(prompt: Prompted) -> bool:
    """Does the client ask for JSON?"""
    return prompt.sampling is not None and _format(prompt) is not None


def schema_of(turn: Turn) -> dict[str, Any] | None:
    """The schema of the answer; None if any object will do."""
    described = (_format(turn.prompted) or {}).get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    return schema if isinstance(schema, dict) else None


def words(turn: Turn) -> str:
    """What the model is told of the format; empty if none was asked for."""
    if not is_asked(turn.prompted):
        return ""
    schema = schema_of(turn)
    return f"{IN_WORDS} It must fit this JSON Schema:\n{json.dumps(schema, ensure_ascii=False)}" if schema else IN_WORDS


def read(answer: Any, *, is_cut: bool = False) -> tuple[str, dict[str, Any]] | str:
    """The answer as JSON text and its value; or what is wrong with it. A few known mistakes are repaired."""
    if isinstance(answer, str):
        try:
            value = msgspec.json.decode(answer)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            value = read_object(answer, whole=is_cut)
        else:
            if isinstance(value, dict):
                return answer.strip(), value
        answer = value
    if isinstance(answer, str):
        return answer
    if not isinstance(answer, dict):
        return "it is JSON, but not an object"
    try:
        return json.dumps(answer, ensure_ascii=False, allow_nan=False), answer
    except ValueError:
        return "it holds a number that JSON does not know"


def _format(prompt: Prompted) -> dict[str, Any] | None:
    text = prompt.sampling.response_format if prompt.sampling else None
    asked = _decoded(text) if text else None
    return asked if isinstance(asked, dict) and asked.get("type") in ("json_object", "json_schema") else None


@lru_cache(maxsize=256)
def _decoded(text: str) -> Any:
    return msgspec.json.decode(text)
