"""Extracts the words of a JSON Schema: property names, their descriptions, and enum values."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from longhouse.agents.schema import resolve

DEPTH: Final = 6
"""Maximum depth of nested schemas that are read; a list of alternatives counts as a level."""
MOST: Final = 200
MOST_CHOICES: Final = 20
"""Enum values that are read: the first ones show what the choice is about."""


def parameters(schema: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and descriptions of a schema's properties, nested ones included."""
    # Each reference is followed once: its target is described once, and a schema may refer to itself.
    return list(islice(_properties(schema, DEPTH, schema, {"#"}), MOST))


def _properties(schema: Any, depth: int, root: Mapping[str, Any], followed: set[str]) -> Iterator[tuple[str, str]]:
    if depth == 0 or not isinstance(schema, dict):
        return
    schema = resolve.inlined(schema, root, followed) or schema
    properties = schema.get("properties")
    for name, inner in properties.items() if isinstance(properties, dict) else ():
        yield name, " ".join(_texts(inner))
        yield from _properties(inner, depth - 1, root, followed)
    yield from _properties(schema.get("items"), depth - 1, root, followed)
    listed = (schema.get(key) for key in ("anyOf", "oneOf", "allOf"))
    for part in (part for parts in listed if isinstance(parts, list) for part in parts):
        # The description of a part belongs to the property that contains the part.
        yield from (("", text) for text in _texts(part))
        yield from _properties(part, depth - 1, root, followed)


def _texts(schema: Any) -> list[str]:
    """The description and the enum values."""
    if not isinstance(schema, dict):
        return []
    choices = schema.get("enum")
    words = [schema.get("description"), *(choices if isinstance(choices, list) else ())[:MOST_CHOICES]]
    return [word for word in words if isinstance(word, str)]
