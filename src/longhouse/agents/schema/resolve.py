"""Resolves `$ref` references within a JSON Schema; all code that follows references uses this module.

A reference points into the same document: `#`, or a JSON pointer such as `#/$defs/City`. Nothing is fetched.
"""

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

MAX_DEPTH: Final = 64
"""Maximum nesting of schemas; a reference counts as a level."""
MAX_EXPANDED: Final = 10_000
"""Maximum number of subschemas when every reference is expanded."""

_INDEX: Final = re.compile("[0-9]{1,6}")
ONE: Final = frozenset((
    "additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else", "contentSchema",
    "unevaluatedItems", "unevaluatedProperties",
))  # fmt: skip
LISTED: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
NAMED: Final = frozenset(("properties", "patternProperties", "dependentSchemas", "$defs", "definitions"))
"""The keywords that hold one schema, a list of schemas, and schemas by name, in this order."""


class BadReference(ValueError):  # noqa: N818 - it says what the reference is
    """A reference that cannot be resolved, and why."""


def target(root: Mapping[str, Any], ref: Any) -> Any:
    """The schema that a reference points to: an object or a boolean."""
    shown = f"the $ref {str(ref)[:200]!r}"
    if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
        raise BadReference(f"{shown} points outside of the schema, and nothing is fetched")
    place: Any = root
    for part in ref.split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and _INDEX.fullmatch(name) and int(name) < len(place):
            place = place[int(name)]
        elif isinstance(place, dict) and name in place:
            place = place[name]
        else:
            raise BadReference(f"{shown} points to nothing")
    if not isinstance(place, dict | bool):
        raise BadReference(f"{shown} points to what is no schema")
    return place


def inlined(schema: Mapping[str, Any], root: Mapping[str, Any], followed: set[str]) -> dict[str, Any] | None:
    """The schema with its reference expanded; its own keywords take precedence; a bad reference adds nothing.

    `followed` collects the references on the path. None if one of them was followed before: the schema is recursive.
    """
    whole = dict(schema)
    while "$ref" in whole:
        ref = whole.pop("$ref")
        if str(ref) in followed:
            return None
        followed.add(str(ref))
        try:
            found = target(root, ref)
        except BadReference:
            break
        whole = {**found, **whole} if isinstance(found, dict) else whole
    return whole


def walk(root: dict[str, Any], read: Callable[[Any], Any]) -> Iterator[dict[str, Any]]:
    """Each subschema once, following parts and references; BadReference if the expansion exceeds its bounds.

    `read` raises if a schema or one of its parts is not well formed. It gets the root and each target of a
    reference, since a target may lie where no schema is expected.
    """
    sizes: dict[int, int] = {}

    def visit(schema: dict[str, Any] | bool, depth: int) -> Generator[dict[str, Any], None, int]:
        if isinstance(schema, bool):
            return 1
        here = id(schema)
        if here not in sizes:
            if depth > MAX_DEPTH:
                raise BadReference("the references of the schema lead too deep")
            yield schema
            sizes[here] = 0  # until all parts are visited
            size = 1
            for part in _parts(schema, root, read):
                size += yield from visit(part, depth + 1)
            if size > MAX_EXPANDED:
                raise BadReference(f"the schema is longer than {MAX_EXPANDED} schemas when its references are followed")
            sizes[here] = size
        if not sizes[here]:
            raise BadReference("the schema refers to itself")
        return sizes[here]

    read(root)
    yield from visit(root, 0)


def _parts(schema: dict[str, Any], root: dict[str, Any], read: Callable[[Any], Any]) -> Iterator[Any]:
    for word, value in schema.items():
        if word == "$ref":
            read(found := target(root, value))
            yield found
        elif word in ONE:
            yield value
        elif word in LISTED:
            yield from value
        elif word in NAMED:
            yield from value.values()
