"""JSON Schema within the subset that strict structured output accepts everywhere.

The whole subset: `type`, `properties`, `required` (all of them), `additionalProperties: false`, `items`, `anyOf`,
`enum`, `const`, `description`. No `$ref`, no `oneOf`, no `discriminator`, no open objects, no lengths or defaults.
"""

from typing import Any, Final

KEYWORDS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const", "description"}
)
DEPTH: Final = 20
"""Schemas that refer to themselves are cut here: strict modes know no recursion."""


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema in the strict subset; what may be left out becomes what may be null."""
    return _strict(schema, schema.get("$defs", {}), DEPTH)


def without_nulls(arguments: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments for the original schema: a null where only the strict form allowed one is left out again."""
    required = set(schema.get("required", ()))
    return {name: value for name, value in arguments.items() if value is not None or name in required}


def _strict(schema: Any, known: dict[str, Any], depth: int) -> dict[str, Any]:
    if depth == 0 or not isinstance(schema, dict):
        return {"type": "string"}
    if "$ref" in schema:
        return _strict(known.get(str(schema["$ref"]).rpartition("/")[2], {}), known, depth - 1)
    if branches := _branches(schema):
        return {"anyOf": [_strict(branch, known, depth - 1) for branch in branches], **_described(schema)}
    kept = {key: value for key, value in schema.items() if key in ("type", "enum", "const", "description")}
    if schema.get("type") == "object" or "properties" in schema:
        return {**kept, **_object(schema, known, depth)}
    if schema.get("type") == "array":
        kept["items"] = _strict(schema.get("items", {}), known, depth - 1)
    if not kept.keys() - {"description"}:
        kept["type"] = "string"  # anything goes in the original; a string can say anything
    return kept


def _branches(schema: dict[str, Any]) -> list[Any]:
    """What the schema leaves a choice between."""
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": one} for one in schema["type"]]
    return list(schema.get("anyOf") or schema.get("oneOf") or (schema.get("allOf") or ())[:1])


def _object(schema: dict[str, Any], known: dict[str, Any], depth: int) -> dict[str, Any]:
    required = set(schema.get("required", ()))
    properties = {}
    for name, value in schema.get("properties", {}).items():
        inner = _strict(value, known, depth - 1)
        properties[name] = inner if name in required else _nullable(inner)
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if {"type": "null"} in schema.get("anyOf", ()):
        return schema
    described = _described(schema)
    plain = {key: value for key, value in schema.items() if key != "description"}
    branches = plain["anyOf"] if set(plain) == {"anyOf"} else [plain]
    return {"anyOf": [*branches, {"type": "null"}], **described}


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": schema["description"]} if "description" in schema else {}
