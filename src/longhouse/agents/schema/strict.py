"""Converts JSON Schema to the subset that strict structured output accepts everywhere, and arguments back from it.

The whole subset: `type`, `properties`, `required` (all of them), `additionalProperties: false`, `items`, `anyOf`,
`enum`, `const`, `description`. No `$ref`, no `oneOf`, no `discriminator`, no open objects, no lengths or defaults.
Optional properties become nullable; an object with free property names is written as JSON in a string. Bounds that the
subset cannot express are added to the description: a model that does not know them violates them.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from longhouse.agents.schema.flatten import Leaf, SchemaDocument, SchemaPlace, TooLong, leaves
from longhouse.journal.json_text import value_of

JSON_STRING: Final = "A JSON object, written as a string"
MOST_RESTORED: Final = 4_000_000
"""The effort of converting arguments back: bytes of schemas that are written, and what is looked at of them."""
A_VALUE: Final = 10
"""The effort of looking at one value, or of placing one schema."""
LONGEST_PATTERN: Final = 200
"""Maximum characters of a pattern that is described; a longer one does not help a model."""


def strict(schema: dict[str, Any], *, in_words: bool = True) -> dict[str, Any]:
    """A tool's argument schema in the strict subset; `in_words`: bounds that it cannot express are described."""
    return _converted(msgspec.json.encode(schema), in_words)


@lru_cache(maxsize=256)
def _converted(schema: bytes, in_words: bool) -> dict[str, Any]:
    leaf = Leaf.of_arguments(msgspec.json.decode(schema))
    return {**_kept(leaf.schema), **_object(leaf, in_words)}


def restored(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Converts arguments in the strict form back to the original schema.

    A null that only the strict form allows is removed, and JSON in strings is parsed. Where that is too much work, they
    are left as they are, and the tool says what does not fit.
    """
    leaf = Leaf.of_arguments(schema)
    leaf.place.root.left = MOST_RESTORED
    try:
        return _fields(arguments, leaf)
    except TooLong:
        return arguments


def _strict(leaf: Leaf, in_words: bool) -> dict[str, Any]:
    if leaf.is_json_string:
        words = leaf.schema.get("description")
        return {"type": "string", "description": f"{words} ({JSON_STRING})" if words else JSON_STRING}
    kept = _bounded(leaf.schema) if in_words else _kept(leaf.schema)
    if leaf.is_object:
        return {**kept, **_object(leaf, in_words)}
    if leaf.is_array:
        kept["items"] = _one_of([_strict(one, in_words) for item in leaf.items for one in leaves(item)])
    if not kept.keys() - {"description"}:
        kept["type"] = "string"  # the original allows any value; a string can hold any value
    return kept


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    kept, bound = _kept(schema), ", ".join([*_number_bounds(schema), *_text_bounds(schema)])
    if not bound or "enum" in kept or "const" in kept:
        return kept
    about = kept.get("description")
    return {**kept, "description": f"{about} ({bound})" if about else bound[:1].upper() + bound[1:]}


def _number_bounds(schema: dict[str, Any]) -> Iterator[str]:
    """The bounds of a number, of the length of a text or of the size of a list, such as "between 1 and 20"."""
    numbers = {key: one for key, one in schema.items() if isinstance(one, int | float) and not isinstance(one, bool)}
    if {"minimum", "maximum"} <= numbers.keys():
        yield f"between {numbers.pop('minimum')} and {numbers.pop('maximum')}"
    for key, words in (
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("exclusiveMinimum", "more than"),
        ("exclusiveMaximum", "less than"),
        ("multipleOf", "a multiple of"),
    ):
        if key in numbers:
            yield f"{words} {numbers[key]}"
    for noun, low, high in (("character", "minLength", "maxLength"), ("item", "minItems", "maxItems")):
        least, most = numbers.get(low) or None, numbers.get(high)
        if least is not None and most is not None:
            yield f"exactly {_many(most, noun)}" if least == most else f"{least} to {_many(most, noun)}"
        elif least is not None:
            yield f"at least {_many(least, noun)}"
        elif most is not None:
            yield f"at most {_many(most, noun)}"


def _many(count: float, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _text_bounds(schema: dict[str, Any]) -> Iterator[str]:
    if schema.get("uniqueItems") is True:
        yield "no item twice"
    for key, words in (("pattern", "matching"), ("format", "in the format")):
        if isinstance(text := schema.get(key), str) and 0 < len(text) <= LONGEST_PATTERN:
            yield f"{words} {text}"


def _kept(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key in ("type", "enum", "const", "description")}


def _object(leaf: Leaf, in_words: bool) -> dict[str, Any]:
    properties, required = {}, leaf.required
    for name, place in leaf.properties.items():
        found = _described(place) if in_words else leaves(place)
        inner = _one_of([_strict(one, in_words) for one in found], place.description)
        properties[name] = inner if name in required else _nullable(inner)
    return closed_object(properties)


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _described(place: SchemaPlace) -> list[Leaf]:
    """The leaves of a place; a single leaf gets the place's description, so that its bounds are added to it."""
    found = list(leaves(place))
    if len(found) != 1 or not place.description or "description" in found[0].schema:
        return found
    return [replace(found[0], schema={**found[0].schema, "description": place.description})]


def _one_of(schemas: list[dict[str, Any]], description: str | None = None) -> dict[str, Any]:
    written: dict[bytes, dict[str, Any]] = {}
    for schema in schemas:
        written.setdefault(msgspec.json.encode(schema, order="sorted"), schema)
    distinct = list(written.values())
    described = {"description": description} if description else {}
    if len(distinct) == 1:
        return distinct[0] if "description" in distinct[0] else {**distinct[0], **described}
    return {"anyOf": distinct, **described}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if {"type": "null"} in schema.get("anyOf", ()):
        return schema
    described = {"description": schema["description"]} if "description" in schema else {}
    plain = {key: value for key, value in schema.items() if key != "description"}
    branches = plain["anyOf"] if set(plain) == {"anyOf"} else [plain]
    return {"anyOf": [*branches, {"type": "null"}], **described}


def _restored(value: Any, found: list[Leaf], root: SchemaDocument) -> Any:
    root.spend(A_VALUE + len(found) ** 2)
    match value:
        case dict():
            closed = [leaf for leaf in found if leaf.is_object]
            leaf = closed[0] if len(closed) == 1 else next((leaf for leaf in closed if leaf.fits(value)), None)
            return _fields(value, leaf) if leaf else value
        case list():
            array = next((leaf for leaf in found if leaf.is_array), None)
            return _items(value, array) if array else value
        case str() if any(leaf.is_json_string for leaf in found) and not any(leaf.is_text for leaf in found):
            written = value_of(value)
            # Text that is no JSON is passed on, and the tool refuses it.
            return written if isinstance(written, dict | list) else value
        case _:
            return value


def _fields(value: dict[str, Any], leaf: Leaf) -> dict[str, Any]:
    known, root = leaf.schema.get("properties", {}), leaf.place.root
    required = leaf.required
    return {
        name: _restored(item, root.leaves(leaf.inner(known[name])), root) if name in known else item
        for name, item in value.items()
        if item is not None or name in required
    }


def _items(value: list[Any], array: Leaf) -> list[Any]:
    """The items of an array, each by its index in a tuple, otherwise by the alternatives of any item."""
    places, root = array.items, array.place.root
    root.spend(A_VALUE * len(places))
    items = []
    for nth, item in enumerate(value):
        own = places[nth : nth + 1] if array.is_tuple and nth < len(places) else places
        items.append(_restored(item, [leaf for place in own for leaf in root.leaves(place)], root))
    return items
