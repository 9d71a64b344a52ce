"""Describes the bounds of a JSON Schema in words, for output formats that cannot express them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeGuard

LONGEST: Final = 200
"""Maximum characters of a pattern that is included; a longer one does not help a model."""


def words(schema: Mapping[str, Any]) -> str:
    """The constraints of a value beside its type, such as "between 1 and 20"; empty if there are none."""
    return ", ".join([*_number(schema), *_size(schema), *_text(schema)])


def _number(schema: Mapping[str, Any]) -> Iterator[str]:
    least, most = schema.get("minimum"), schema.get("maximum")
    if _is_number(least) and _is_number(most):
        yield f"between {least} and {most}"
    elif _is_number(least):
        yield f"at least {least}"
    elif _is_number(most):
        yield f"at most {most}"
    for key, said in (("exclusiveMinimum", "more than"), ("exclusiveMaximum", "less than")):
        if _is_number(bound := schema.get(key)):
            yield f"{said} {bound}"
    if _is_number(step := schema.get("multipleOf")):
        yield f"a multiple of {step}"


def _size(schema: Mapping[str, Any]) -> Iterator[str]:
    for noun, low, high in (("character", "minLength", "maxLength"), ("item", "minItems", "maxItems")):
        least, most = schema.get(low) or None, schema.get(high)
        if _is_number(least) and _is_number(most):
            yield f"exactly {_many(most, noun)}" if least == most else f"{least} to {_many(most, noun)}"
        elif _is_number(least):
            yield f"at least {_many(least, noun)}"
        elif _is_number(most):
            yield f"at most {_many(most, noun)}"
    if schema.get("uniqueItems") is True:
        yield "no item twice"


def _text(schema: Mapping[str, Any]) -> Iterator[str]:
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str) and 0 < len(pattern) <= LONGEST:
        yield f"matching {pattern}"
    if isinstance(form, str) and 0 < len(form) <= LONGEST:
        yield f"in the format {form}"


def _many(count: float, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
