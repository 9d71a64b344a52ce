"""What is wrong in files: collected, so that people are told all of it at once."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, get_type_hints

import msgspec
import pydantic

from longhouse.errors import SetupError
from longhouse.files.nodes import Node, Spot

ADDRESS: Final = "should be an address that begins with http:// or https://, without a user or a password in it"


@dataclass(slots=True)
class Mistakes:
    _found: dict[str, tuple[Spot, str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, spot: Spot, what: str) -> None:
        """One for each place: what follows from a mistake is none of its own, and several agents may inherit it."""
        self._found.setdefault(str(spot), (spot, what))

    def refuse(self) -> None:
        """Raises all that was found, in the order of the files, one line each."""
        if not self._found:
            return
        ordered = sorted(self._found.values(), key=lambda one: (str(one[0].file), one[0].line))
        lines = [f"{spot}: {what}" for spot, what in ordered]
        many = "is one mistake" if len(lines) == 1 else f"are {len(lines)} mistakes"
        raise SetupError("\n".join([f"there {many} in the files:", *lines]))


def checked(kind: type[Any], node: Node, mistakes: Mistakes) -> Any:
    """The node as this kind of value, or None where it is not one; what is wrong is added to the mistakes."""
    try:
        # Through JSON, where a list is a list and a number is not taken from a text.
        return pydantic.TypeAdapter(kind).validate_json(msgspec.json.encode(node.plain), strict=True)
    except pydantic.ValidationError as error:
        # Without the input: it may be a key.
        for one in error.errors(include_url=False, include_input=False, include_context=True):
            mistakes.add(node.find(one["loc"]), _told(kind, one))
    return None


def _told(kind: type[Any], error: Any) -> str:
    *above, last = error["loc"] or ("",)
    match error["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return unknown(str(last), known(kind, above))
        case "string_pattern_mismatch" if "http" in str(error["ctx"]["pattern"]):
            return ADDRESS
        case "dataclass_type" | "dict_type":
            return "should hold fields of its own"
        case "tuple_type" | "list_type":
            return "should be a list"
        case _:
            return str(error["msg"]).removeprefix("Input ").removeprefix("Value error, ")


def unknown(name: str, names: Iterable[str]) -> str:
    names = sorted(names)
    if near := difflib.get_close_matches(name, names, n=1):
        return f"is not known; did you mean {near[0]}?"
    return f"is not known; known here: {', '.join(names)}" if names else "is not known"


def known(kind: type[Any], path: Sequence[str | int]) -> list[str]:
    """The fields that a dataclass has at the end of this path."""
    at: Any = kind
    for step in path:
        at = get_type_hints(at).get(str(step)) if is_dataclass(at) else None
    return [one.name for one in fields(at)] if is_dataclass(at) else []
