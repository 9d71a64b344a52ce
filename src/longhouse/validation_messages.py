"""Turns validation errors into sentences: the path of each invalid value, and what is wrong with it.

A sentence never contains the value itself, which may be a key.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, Final, Protocol, get_args, get_type_hints

Where = tuple[int | str, ...]
"""The path to a value: field names and list indexes."""

LONGEST: Final = 1_000
"""Maximum characters of a sentence."""
ADDRESS: Final = "should be an address that begins with http:// or https://, without a user or a password in it"
_UNKNOWN: Final = ("unexpected_keyword_argument", "extra_forbidden")
_WORDS: Final = dict.fromkeys(
    ("model_type", "model_attributes_type", "dataclass_type", "dict_type"), "It should be an object"
)
"""Where the library names classes and dictionaries."""


class Errors(Protocol):
    """The validation errors of Pydantic and FastAPI."""

    def errors(self) -> Sequence[Any]: ...


def explain(error: Errors, *, model: Any = None, words: Mapping[str, str] | None = None) -> list[tuple[Where, str]]:
    """All problems of the error. `model`: a dataclass whose fields are suggested for unknown ones; `words`: sentences
    that replace those of the library, by error type."""
    return [(tuple(one["loc"]), _sentence(one, model, words or {})) for one in error.errors()]


def path_text(where: Where) -> str:
    """The path as text, such as `messages[0].content`. Names come from clients and may be long."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part[:64]}" for part in where)
    return "".join(parts).removeprefix(".")


def invalid_value(where: Where, problem: str, *, whole: str) -> tuple[str | None, str]:
    """The path of an invalid value, and the sentence about it in every protocol; `whole` names what was sent."""
    param = path_text(where)[:200] or None
    return param, f"Invalid value for {param or whole}: {problem[:300]}."


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a sentence about a name that is not known; empty if no known name is near."""
    near = difflib.get_close_matches(name.lower(), lower := {one.lower(): one for one in known}, n=1, cutoff=cutoff)
    return f"; did you mean {lower[near[0]]}?" if near else ""


def unknown_field(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    if near := did_you_mean(name, names):
        return f"is not known{near}"
    return f"is not known; known here: {', '.join(names)}" if names else "there is no such field"


def _sentence(one: Mapping[str, Any], model: Any, words: Mapping[str, str]) -> str:
    if one["type"] in _UNKNOWN:
        return unknown_field(str(one["loc"][-1]), _fields(model, one["loc"][:-1]))
    if one["type"] == "string_pattern_mismatch" and "http" in one["ctx"]["pattern"]:
        return ADDRESS.replace("http://", "http://, socks5://") if "socks" in one["ctx"]["pattern"] else ADDRESS
    problem = {**_WORDS, **words}.get(one["type"]) or str(one["msg"]).removeprefix("Value error, ")
    return problem[:LONGEST].rstrip(".")


def _fields(model: Any, path: Where) -> list[str]:
    """The fields of the dataclass at this path of a model; empty where there is no dataclass."""
    for step in path:
        model = get_type_hints(model).get(str(step)) if is_dataclass(model) else _inside(model)
        model = _inside(model) if NoneType in get_args(model) else model
    return [one.name for one in fields(model)] if is_dataclass(model) else []


def _inside(kind: Any) -> Any:
    """The item type of a dict, a tuple or an optional type."""
    return next((one for one in reversed(get_args(kind)) if one not in (NoneType, Ellipsis)), None)
