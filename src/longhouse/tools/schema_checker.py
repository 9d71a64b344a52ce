"""Checks the arguments of calls against JSON Schemas. No fetch, no pattern is run."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import jsonschema
import jsonschema_specifications
import msgspec
from referencing.exceptions import Unresolvable

from longhouse.tools.arguments import BadSchema, Check

MAX_CHECKS: Final = 25_000
"""Maximum keyword checks for the arguments of one call: at most a second, during which the event loop is blocked."""
MOST_PROBLEMS: Final = 5


def checker(schema: dict[str, Any]) -> Check:
    """A check of arguments against a schema of any draft."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError) as error:
        raise BadSchema("the schema is not valid") from error
    effort = itertools.count(1)

    def counted(do: Any) -> Any:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
            if next(effort) > MAX_CHECKS:
                raise _TooMuchWork
            return do(validator, value, instance, schema)

        return run

    # Even a small schema can need an unbounded number of checks. This is why the validator is written in Python: a
    # compiled one cannot be stopped.
    patient = jsonschema.validators.extend(kind, {word: counted(do) for word, do in _keywords(kind).items()})
    validator = patient(schema, registry=jsonschema_specifications.REGISTRY)

    def check(given: dict[str, Any]) -> str | None:
        nonlocal effort
        problems, effort = [], itertools.count(1)
        try:
            for error in validator.iter_errors(given):
                where = ".".join(str(part) for part in error.absolute_path)
                problems.append(f"{where}: {error.message[:300]}" if where else error.message[:300])
                if len(problems) == MOST_PROBLEMS:
                    break
        except Unresolvable as error:
            return f"its schema points outside of itself ({error.ref[:200]!r}), and nothing is fetched"
        except RecursionError:
            return "its schema or the arguments are nested without end"
        except _TooMuchWork:
            return "they are too much to check; send less at once"
        return "; ".join(problems) or None

    return check


class _TooMuchWork(Exception):  # noqa: N818
    """A check needs more than MAX_CHECKS keyword checks."""


def _keywords(kind: Any) -> dict[str, Any]:
    """The function of each keyword. Patterns can run forever on crafted arguments: their keywords do nothing here."""
    closed = kind.VALIDATORS.get("additionalProperties")

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        return closed(validator, value, instance, schema) if closed and "patternProperties" not in schema else ()

    passed = dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties"), lambda *_: ())
    return {**kind.VALIDATORS, **passed, "additionalProperties": additional, "uniqueItems": _unique}


def _unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """The library compares every pair of items, which takes minutes for a long list of objects."""
    if not value or not validator.is_type(instance, "array"):
        return
    if len({msgspec.json.encode(item, order="sorted") for item in instance}) < len(instance):
        yield jsonschema.ValidationError("an item is there twice")
