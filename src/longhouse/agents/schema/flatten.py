"""Flattens a JSON Schema into its alternatives, with references resolved and `allOf` merged.

Strict structured output supports neither references nor `allOf`. A schema is therefore converted to a few leaves, each
of one type: an object with its properties, an array, a string or another scalar.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from longhouse.agents.schema import resolve

DEPTHS: Final = (20, 10, 6, 4, 3, 2, 1)
"""Levels that are expanded; deeper ones, and recursive schemas, are written as JSON in a string. The first is taken
with which no more than MOST_WRITTEN is written."""
MOST_WRITTEN: Final = 256_000
"""Bytes of a schema that is written out, with some for each of its parts."""
_PARTS: Final = resolve.ONE | resolve.LISTED
_NAMES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class TooLong(Exception):  # noqa: N818 - it says what the schema is
    """A schema is too long when it is written out."""


class SchemaDocument(msgspec.Struct):
    """The schema that all places are in."""

    schema: dict[str, Any]
    left: float = math.inf
    """How much more may be written."""
    known: dict[Hashable, tuple["SchemaPlace", list["Leaf"]]] = {}
    """The alternatives of places; with each its place, so that no other schema gets its identity."""

    def write(self, schema: dict[str, Any]) -> None:
        """Counts what is written of a schema, without its parts; TooLong if that is too much."""
        own = {word: said for word, said in schema.items() if word not in _PARTS}
        named = {word: list(own[word]) for word in resolve.NAMED & own.keys()}
        self.spend(100 + len(msgspec.json.encode({**own, **named})))

    def spend(self, effort: int) -> None:
        self.left -= effort
        if self.left < 0:
            raise TooLong

    def leaves(self, place: "SchemaPlace") -> list["Leaf"]:
        """The alternatives of a place, which are looked for once."""
        key = (id(place.schema), place.depth, place.followed)
        if key not in self.known:
            self.known[key] = place, list(leaves(place))
        return self.known[key][1]


class SchemaPlace(msgspec.Struct, frozen=True):
    """A schema nested in another one, not yet flattened."""

    schema: Any
    root: SchemaDocument
    followed: frozenset[str] = frozenset()
    """The references on the path to here: none of them is followed again."""
    depth: int = DEPTHS[0]

    @property
    def description(self) -> str | None:
        return self.schema.get("description") if isinstance(self.schema, dict) else None


class Leaf(msgspec.Struct, frozen=True):
    """One alternative that a schema allows."""

    schema: dict[str, Any]
    place: SchemaPlace
    is_cut: bool = False
    """Too deep, or recursive."""

    @classmethod
    def of_arguments(cls, schema: dict[str, Any]) -> "Leaf":
        """The arguments of a tool: always one object, whatever alternatives the schema has."""
        depth = _depth(msgspec.json.encode(schema))
        place = SchemaPlace(schema, SchemaDocument(schema), depth=depth)
        return cls._whole(place) if depth else cls({**schema, "type": "object"}, place)

    @classmethod
    def _whole(cls, place: SchemaPlace) -> "Leaf":
        flat, followed = _flat(place) or (place.schema, place.followed)
        here = SchemaPlace(place.schema, place.root, followed, place.depth)
        return cls(_joined({**flat, "type": "object"}, here), here)

    @property
    def is_object(self) -> bool:
        return self.schema.get("type") == "object" and not self.is_json_string

    @property
    def is_array(self) -> bool:
        return self.schema.get("type") == "array" and not self.is_cut

    @property
    def is_text(self) -> bool:
        """Whether a string value is the value itself, not JSON in a string."""
        return not self.is_cut and self.schema.get("type", "string") == "string"

    @property
    def is_json_string(self) -> bool:
        """Whether the value is written as JSON in a string, since its property names or its depth are not known."""
        if self.is_cut:
            return True
        if self.schema.get("type") != "object" or self.schema.get("properties"):
            return False
        others = self.schema.get("additionalProperties", "properties" not in self.schema)
        return others is not False or "patternProperties" in self.schema

    @property
    def properties(self) -> dict[str, SchemaPlace]:
        return {name: self.inner(schema) for name, schema in self.schema.get("properties", {}).items()}

    @property
    def required(self) -> set[str]:
        names = self.schema.get("required", ())
        self.place.root.spend(len(names))
        return set(names)

    @property
    def is_tuple(self) -> bool:
        return "prefixItems" in self.schema or isinstance(self.schema.get("items"), list)

    @property
    def items(self) -> list[SchemaPlace]:
        """The item schemas of an array; of a tuple, by position."""
        items = self.schema.get("items", {})
        listed = [*self.schema.get("prefixItems", ()), *(items if isinstance(items, list) else ())]
        others = [items] if isinstance(items, dict) and (items or not listed) else []
        return [self.inner(schema) for schema in [*listed, *others]] or [self.inner({})]

    def fits(self, value: dict[str, Any]) -> bool:
        """Whether the value has this object's property names and its constants."""
        known = self.schema.get("properties", {})
        return (
            value.keys() <= known.keys()
            and self.required <= value.keys()
            and all(item is None or item in self._listed(known[name], item) for name, item in value.items())
        )

    def _listed(self, schema: Any, value: Any) -> Sequence[Any]:
        """The values that a property may have, if they are listed; otherwise the given value."""
        if not isinstance(schema, dict):
            return [value]
        values = [schema["const"]] if "const" in schema else schema.get("enum", [value])
        self.place.root.spend(len(values))
        return values

    def inner(self, schema: Any) -> SchemaPlace:
        return SchemaPlace(schema, self.place.root, self.place.followed, self.place.depth - 1)


@lru_cache(maxsize=128)
def _depth(schema: bytes) -> int:
    """How deep a schema is written out; 0 if only the names of its own properties are."""
    for depth in DEPTHS:
        root = SchemaDocument(msgspec.json.decode(schema), MOST_WRITTEN)
        try:
            _write_out(Leaf._whole(SchemaPlace(root.schema, root, depth=depth)))
        except TooLong:
            continue
        return depth
    return 0


def leaves(place: SchemaPlace) -> Iterator[Leaf]:
    """All alternatives of a schema, nested ones included."""
    if not isinstance(place.schema, dict):
        yield Leaf({}, place)  # `true`: any value
        return
    found = _flat(place) if place.depth > 0 else None
    if found is None:
        cut = Leaf({"description": place.description} if place.description else {}, place, is_cut=True)
        place.root.write(cut.schema)
        yield cut
        return
    schema, followed = found
    here = SchemaPlace(schema, place.root, followed, place.depth)
    if schema.get("properties") and schema.get("type", "object") == "object":
        yield Leaf(_joined({"type": "object", **schema}, here), here)
        return
    branches = _branches(schema)
    for branch in branches:
        yield from leaves(SchemaPlace(branch, place.root, followed, place.depth - 1))
    if not branches:
        yield Leaf(schema, here)


def _write_out(leaf: Leaf) -> None:
    """Looks at every alternative of all parts, one after another."""
    left = [leaf]
    while left:
        leaf = left.pop()
        parts = leaf.properties.values() if leaf.is_object else leaf.items if leaf.is_array else ()
        for part in parts:
            left += leaves(part)


def _flat(place: SchemaPlace) -> tuple[dict[str, Any], frozenset[str]] | None:
    """The schema with references and `allOf` merged in; None if it is recursive or too deep."""
    seen = set(place.followed)
    whole = resolve.inlined(place.schema, place.root.schema, seen) if place.depth >= 0 else None
    if whole is None:
        return None
    followed = frozenset(seen)
    place.root.write(whole)
    for part in whole.pop("allOf", ()):
        place.root.write(whole)
        found = _flat(SchemaPlace(part, place.root, followed, place.depth - 1)) if isinstance(part, dict) else None
        if found:
            whole, followed = _merged(whole, found[0]), followed | found[1]
    return _typed(whole), followed


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both schemas merged: properties and required names of both; for other keywords the first one wins."""
    both = {**other, **one}
    if "properties" in both:
        both["properties"] = {**other.get("properties", {}), **one.get("properties", {})}
    if "required" in both:
        both["required"] = [*other.get("required", ()), *one.get("required", ())]
    return both


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its `type` set, if it follows from other keywords."""
    if "type" in schema:
        return schema
    if "items" in schema or "prefixItems" in schema:
        return {"type": "array", **schema}
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    types = list(dict.fromkeys(_types(value)[0] for value in values))
    return {**schema, "type": types[0] if len(types) == 1 else types} if types else schema


def _branches(schema: dict[str, Any]) -> list[Any]:
    """The alternatives of a schema that is not a single object."""
    if isinstance(types := schema.get("type"), list):
        narrowed = (_narrowed(schema, one) for one in types)
        return [one for one in narrowed if one.get("enum", True)]
    if schema.get("type") == "null":
        return []
    base = {"type": schema["type"]} if "type" in schema else {}
    chosen = schema.get("anyOf") or schema.get("oneOf") or ()
    return [{**base, **branch} if isinstance(branch, dict) else branch for branch in chosen]


def _narrowed(schema: dict[str, Any], one: str) -> dict[str, Any]:
    """The schema restricted to one of its types."""
    if one == "null":
        return {"type": "null"}
    narrow = {key: value for key, value in schema.items() if key not in ("type", "enum", "description")}
    if "enum" in schema:
        narrow["enum"] = [value for value in schema["enum"] if one in _types(value)]
    return {"type": one, **narrow}


def _types(value: Any) -> tuple[str, ...]:
    name = _NAMES.get(type(value), "null")
    return (name, "number") if name == "integer" else (name,)


def _joined(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """An object and its alternatives as one object: properties that only some alternatives have are optional."""
    chosen = schema.get("anyOf") or schema.get("oneOf") or ()
    whole = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
    found = [_flat(SchemaPlace(one, place.root, place.followed)) for one in chosen if isinstance(one, dict)]
    branches = [one[0] for one in found if one]
    offered: dict[str, list[Any]] = {}
    for branch in branches:
        for name, inner in branch.get("properties", {}).items():
            if name not in schema.get("properties", {}) and inner not in offered.setdefault(name, []):
                offered[name].append(inner)
    if offered:
        more = {name: inner[0] if len(inner) == 1 else {"anyOf": inner} for name, inner in offered.items()}
        whole["properties"] = {**schema.get("properties", {}), **more}
    required = [set(branch.get("required", ())) for branch in branches]
    always = set.intersection(*required) if required else set()
    return {**whole, "required": [*schema.get("required", ()), *sorted(always)]}
