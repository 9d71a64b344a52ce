"""Resolves `$ref` references within a JSON Schema; all code that follows references uses this module.

A reference points into the same document: `#`, or a JSON pointer such as `#/$defs/City`. Nothing is fetched.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urljoin

_INDEX: Final = re.compile("[0-9]{1,6}")
ONE: Final = frozenset((
    "additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else", "contentSchema",
    "unevaluatedItems", "unevaluatedProperties",
))  # fmt: skip
LISTED: Final = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
NAMED: Final = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)
"""The keywords that hold one schema, a list of schemas, and schemas by name, in this order."""
MAX_HOPS: Final = 32
"""References that lead to references, which are followed when a schema is written out."""
_REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
_ANCHORS: Final = frozenset(("$anchor", "$dynamicAnchor"))
_LEFT_OUT: Final = frozenset(("$schema", "$id", "$recursiveAnchor", "additionalItems"))
_ONCE_BOOLEAN: Final = frozenset(("required", "exclusiveMinimum", "exclusiveMaximum"))
"""Keywords that were booleans in drafts of long ago."""


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

    `followed` collects the references on the path. None if one of them was followed before, since the schema is
    recursive, or if they are too many.
    """
    chain: list[Any] = [schema]
    while "$ref" in chain[-1]:
        ref = chain[-1]["$ref"]
        if str(ref) in followed or len(chain) > MAX_HOPS:
            return None
        followed.add(str(ref))
        try:
            found = target(root, ref)
        except BadReference:
            break
        if not isinstance(found, dict):
            break
        chain.append(found)
    whole: dict[str, Any] = {}
    for part in reversed(chain):
        whole.update(part)
    whole.pop("$ref", None)
    return whole


def has_end(schema: Any, root: Mapping[str, Any], known: set[int]) -> bool:
    """Whether its references lead to a schema without one; `known`: schemas of which that is known."""
    path = set[int]()
    while isinstance(schema, dict) and "$ref" in schema and id(schema) not in known:
        if id(schema) in path:
            return False
        path.add(id(schema))
        schema = target(root, schema["$ref"])
    known |= path
    return True


def walk(root: dict[str, Any], read: Callable[[Any], Any]) -> Iterator[dict[str, Any]]:
    """Each subschema once, following parts and references; BadReference if one leads nowhere.

    `read` raises if a schema or one of its parts is not well formed. It gets the root and each target of a
    reference that is not part of what it got before, since a target may lie where no schema is expected.
    """
    seen: set[int] = set()
    targets: list[Any] = [root]
    while targets:
        left = [targets.pop()]
        if id(left[0]) not in seen:
            read(left[0])
        while left:
            schema = left.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if "$ref" in schema:
                targets.append(target(root, schema["$ref"]))
            left += _parts(schema)


def plain(root: dict[str, Any]) -> dict[str, Any]:
    """The schema in the words of draft 2020-12, with JSON pointers as its only references.

    Other names of its parts (`$id`, `$anchor`) are left out, and a list of `items` is called `prefixItems`.
    """
    names: dict[str, str] = {}
    referring: list[tuple[dict[str, Any], str]] = []

    def read(schema: Any, old: str, new: str, base: str) -> Any:
        names[old] = new
        if not isinstance(schema, dict):
            return schema
        base = _joined(base, schema.get("$id", ""))
        names.setdefault(base, new)
        kept: dict[str, Any] = {}
        for word, value in schema.items():
            name = _renamed(word, schema)
            here, there = _at(old, word), _at(new, name)
            if word in _ANCHORS:
                names.setdefault(_joined(base, f"#{value}"), new)
            elif name in LISTED and isinstance(value, list):
                kept[name] = [read(part, _at(here, nth), _at(there, nth), base) for nth, part in enumerate(value)]
            elif name in NAMED and isinstance(value, dict):
                kept[name] = {key: read(part, _at(here, key), _at(there, key), base) for key, part in value.items()}
            elif name in ONE:
                kept[name] = read(value, here, there, base)
            elif name not in _LEFT_OUT and not (name in _ONCE_BOOLEAN and isinstance(value, bool)):
                kept[name] = value
        if "$ref" in kept:
            referring.append((kept, base))
        return kept

    changed: dict[str, Any] = read(root, "#", "#", "")
    for schema, base in referring:
        ref = str(schema["$ref"])
        whole = _joined(base, ref)
        uri, _, fragment = whole.partition("#")
        pointer = unquote(f"#{fragment}" if names.get(uri) == "#" else ref)
        schema["$ref"] = names.get(pointer) or names.get(whole, schema["$ref"])
    return changed


def _at(pointer: str, name: str | int) -> str:
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}"


def _renamed(word: str, schema: Mapping[str, Any]) -> str:
    """The name of a keyword in draft 2020-12."""
    if word in _REFERENCES:
        return "$ref"
    is_tuple = isinstance(schema.get("items"), list)
    if word == "items" and is_tuple:
        return "prefixItems"
    return "items" if word == "additionalItems" and is_tuple else word


def _joined(base: str, ref: Any) -> str:
    try:
        return urljoin(base, str(ref))
    except ValueError:
        return base


def _parts(schema: dict[str, Any]) -> Iterator[Any]:
    for word, value in schema.items():
        if word in ONE:
            yield value
        elif word in LISTED:
            yield from value
        elif word in NAMED:
            yield from value.values()
