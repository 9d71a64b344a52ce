"""What a JSON Schema says in words: the names of its properties, their descriptions, and what may be chosen."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from longhouse.agents.schema import resolve

DEPTH: Final = 6
"""So deep are schemas inside schemas read; a list of alternatives is a step too."""
MOST: Final = 200
MOST_CHOICES: Final = 20
"""Values of an enumeration that are read: the first say what it is a choice of."""


def parameters(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names of a schema's properties and what is said of them, of those inside them too."""
    # Each reference is followed once: what it leads to is told once, and a schema may refer to itself.
    return list(islice(_properties(schema, DEPTH, schema, {"#"}), MOST))


def _properties(schema: Any, depth: int, root: Mapping[str, Any], followed: set[str]) -> Iterator[tuple[str, str]]:
    if depth == 0 or not isinstance(schema, dict):
        return
    schema = resolve.inlined(schema, root, followed) or schema
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        yield name, " ".join(_said(inner))
        yield from _properties(inner, depth - 1, root, followed)
    yield from _properties(schema.get("items"), depth - 1, root, followed)
    for part in _parts(schema):
        # What is said of a part is said of the property that it is a part of.
        yield from (("", said) for said in _said(part))
        yield from _properties(part, depth - 1, root, followed)


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        yield from parts if isinstance(parts, list) else ()


def _said(schema: Any) -> list[str]:
    """The description, and the words that may be chosen."""
    if not isinstance(schema, dict):
        return []
    choices = schema.get("enum")
    words = [schema.get("description"), *(choices if isinstance(choices, list) else ())[:MOST_CHOICES]]
    return [word for word in words if isinstance(word, str)]
