"""Checks JSON values against JSON Schema in bounded effort. Nothing is fetched, and no pattern is run.

Schemas come from strangers, and even a small one can ask for an unbounded number of comparisons. This is why it is
written in Python, counts what it looks at and not only keywords, and builds no words before they are told.
"""

import math
import operator
import reprlib
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from longhouse.agents.schema import resolve

MAX_EFFORT: Final = 300_000
"""Values, names and keywords that one check looks at: about a second of a processor."""
QUICK: Final = 5_000
"""The effort that the event loop can be kept waiting for: some milliseconds."""
MAX_SECONDS: Final = 5.0
"""Seconds of a processor for one check, on a machine however slow."""
LOOK_EVERY: Final = 10_000
"""The effort after which the clock is looked at."""
MOST_PROBLEMS: Final = 5
MAX_SHOWN: Final = 300
"""Maximum characters of one problem."""

_Where = tuple[Any, ...]
"""The place of a value: the place that it is in, and its name there; empty for the whole."""
_Problem = tuple[Any, ...]
"""A place, a sentence with gaps, and the values that fill the gaps."""
_TYPES: Final[Mapping[str, Any]] = {
    "null": type(None), "boolean": bool, "object": dict, "array": list, "string": str, "number": (int, float),
    "integer": int,
}  # fmt: skip
_BOUNDS: Final[Mapping[str, tuple[Any, Callable[[Any, Any], bool], str]]] = {
    "minimum": ("number", operator.lt, "{} is less than the minimum of {}"),
    "maximum": ("number", operator.gt, "{} is greater than the maximum of {}"),
    "exclusiveMinimum": ("number", operator.le, "{} is not more than {}"),
    "exclusiveMaximum": ("number", operator.ge, "{} is not less than {}"),
    "minLength": ("string", operator.lt, "{} is too short: the least is {}"),
    "maxLength": ("string", operator.gt, "{} is too long: the most is {}"),
    "minItems": ("array", operator.lt, "{} has too few items: the least is {}"),
    "maxItems": ("array", operator.gt, "{} has too many items: the most is {}"),
    "minProperties": ("object", operator.lt, "{} has too few properties: the least is {}"),
    "maxProperties": ("object", operator.gt, "{} has too many properties: the most is {}"),
}


class TooMuchWork(Exception):  # noqa: N818
    """A check needs more effort than it may take."""


class SchemaChecker:
    """Checks values against one schema."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._targets: dict[str, Any] = {}
        """The schemas that references point to."""
        self._sets: dict[int, frozenset[bytes]] = {}
        """The encoded values of each `enum` and `const`, by the identity of what holds them."""

    def problem(self, value: Any, *, effort: int = MAX_EFFORT) -> str | None:
        """The first problems of the value in words; TooMuchWork if more than this effort is needed."""
        found = islice(_Check(self, effort).problems(value, self._root, ()), MOST_PROBLEMS)
        return "; ".join(map(_sentence, found)) or None

    def target(self, ref: Any) -> Any:
        if ref not in self._targets:
            self._targets[ref] = resolve.target(self._root, ref)
        return self._targets[ref]

    def values(self, holder: Any, listed: list[Any], check: "_Check") -> frozenset[bytes]:
        if id(holder) not in self._sets:
            self._sets[id(holder)] = frozenset(map(check.encoded, listed))
        return self._sets[id(holder)]


class _Check:
    """One check of one value."""

    def __init__(self, checker: SchemaChecker, effort: int) -> None:
        self._checker = checker
        self._left = effort
        self._look_at = effort - LOOK_EVERY
        self._until = time.thread_time() + MAX_SECONDS

    def spend(self, effort: int) -> None:
        self._left -= effort
        if self._left > self._look_at and self._left >= 0:
            return
        self._look_at = self._left - LOOK_EVERY
        if self._left < 0 or time.thread_time() > self._until:
            raise TooMuchWork

    def problems(self, value: Any, schema: Any, where: _Where) -> Iterator[_Problem]:
        if isinstance(schema, bool):
            self.spend(1)
            if not schema:
                yield where, "{} is not allowed", value
            return
        self.spend(1 + len(schema))
        for word, said in schema.items():
            yield from self._of_any(word, said, value, schema, where)
            yield from self._combined(word, said, value, schema, where)
            if isinstance(value, dict):
                yield from self._of_object(word, said, value, schema, where)
            elif isinstance(value, list):
                yield from self._of_list(word, said, value, schema, where)

    def fits(self, value: Any, schema: Any) -> bool:
        return next(self.problems(value, schema, ()), None) is None

    def encoded(self, value: Any) -> bytes:
        """Equal values as equal bytes, numbers with and without a fraction of nothing too."""
        return msgspec.json.encode(self._canonical(value), order="sorted")

    def _canonical(self, value: Any) -> Any:
        self.spend(1)
        match value:
            case dict():
                self.spend(sum(map(len, value)) // 1000)
                return {name: self._canonical(inner) for name, inner in value.items()}
            case list():
                return list(map(self._canonical, value))
            case str():
                self.spend(len(value) // 1000)
            case int():
                self.spend(value.bit_length() // 128)  # long ones are written in quadratic time
            case float() if value.is_integer():
                return int(value)
        return value

    def _of_any(self, word: str, said: Any, value: Any, schema: Any, where: _Where) -> Iterator[_Problem]:
        """The problems by keywords that are for values of all kinds, or for numbers and texts."""
        match word:
            case "type":
                names = said if isinstance(said, list) else [said]
                self.spend(len(names) - 1)
                if not any(_is(name, value) for name in names):
                    yield where, "{} is not of type " + " or ".join(map(repr, names)), value
            case "enum" if self.encoded(value) not in self._checker.values(said, said, self):
                yield where, "{} is not one of {}", value, said
            case "const" if self.encoded(value) not in self._checker.values(schema, [said], self):
                yield where, "{} was expected", said
            case "multipleOf" if _is("number", value) and not _is_multiple(value, said):
                yield where, "{} is not a multiple of {}", value, said
            case _ if word in _BOUNDS:
                kind, is_outside, sentence = _BOUNDS[word]
                if _is(kind, value) and is_outside(value if kind == "number" else len(value), said):
                    yield where, sentence, value, said

    def _combined(self, word: str, said: Any, value: Any, schema: Any, where: _Where) -> Iterator[_Problem]:
        """The problems by keywords that hold other schemas for the same value."""
        match word:
            case "allOf":
                for part in said:
                    yield from self.problems(value, part, where)
            case "anyOf" if not any(self.fits(value, part) for part in said):
                yield where, "{} is not valid under any of the given schemas", value
            case "oneOf":
                fitting = len(list(islice((part for part in said if self.fits(value, part)), 2)))
                if fitting == 0:
                    yield where, "{} is not valid under any of the given schemas", value
                elif fitting > 1:
                    yield where, "{} is valid under more than one of the given schemas", value
            case "not" if self.fits(value, said):
                yield where, "{} should not be valid under {}", value, said
            case "if":
                branch = "then" if self.fits(value, said) else "else"
                yield from self.problems(value, schema.get(branch, True), where)
            case "$ref":
                yield from self.problems(value, self._checker.target(said), where)

    def _of_object(self, word: str, said: Any, value: Any, schema: Any, where: _Where) -> Iterator[_Problem]:
        match word:
            case "required":
                for name in said:
                    self.spend(1)
                    if name not in value:
                        yield where, "{} is a required property", name
            case "properties":
                for name in self._common(said, value):
                    yield from self.problems(value[name], said[name], (where, name))
            case "dependentRequired" | "dependentSchemas" | "dependencies":  # the last held both in earlier drafts
                for needed in map(said.get, self._common(said, value)):
                    part = {"required": needed} if isinstance(needed, list) else needed
                    yield from self.problems(value, part, where)
            case "additionalProperties":
                yield from self._additional(said, value, schema, where)
            case "propertyNames":
                for name in value:
                    yield from self.problems(name, said, where)

    def _of_list(self, word: str, said: Any, value: Any, schema: Any, where: _Where) -> Iterator[_Problem]:
        match word:
            case "prefixItems":
                for nth, (item, part) in enumerate(zip(value, said, strict=False)):
                    yield from self.problems(item, part, (where, nth))
            case "items":
                for nth in range(len(schema.get("prefixItems", ())), len(value)):
                    yield from self.problems(value[nth], said, (where, nth))
            case "contains":
                least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
                fitting = sum(self.fits(item, said) for item in value)
                if not least <= fitting <= most:
                    yield where, "{} of its items match `contains`; {} to {} are expected", fitting, least, most
            case "uniqueItems" if said and len(set(map(self.encoded, value))) < len(value):
                yield where, "an item is there twice"

    def _additional(self, said: Any, value: Any, schema: Any, where: _Where) -> Iterator[_Problem]:
        # Patterns can run for ever on crafted names: where they decide, nothing is additional.
        if "patternProperties" in schema:
            return
        self.spend(len(value))
        known = schema.get("properties", ())
        for name in [name for name in value if name not in known]:
            if said is False:
                yield where, "Additional properties are not allowed, and {} was unexpected", name
            else:
                yield from self.problems(value[name], said, (where, name))

    def _common(self, said: Any, value: Any) -> list[str]:
        """The names that both have, found by those of the shorter."""
        fewer, others = (said, value) if len(said) <= len(value) else (value, said)
        self.spend(len(fewer))
        return [name for name in fewer if name in others]


def _is_multiple(value: Any, said: Any) -> bool:
    try:
        quotient = value / said
    except OverflowError:  # a number that long is left to the tool
        return True
    return math.isinf(quotient) or quotient.is_integer()


def _is(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name]) or (name == "integer" and isinstance(value, float) and value.is_integer())


def _sentence(problem: _Problem) -> str:
    where, sentence, *shown = problem
    path: list[str] = []
    while where:
        where, name = where
        path.insert(0, str(name))
    words = sentence.format(*map(_shorter.repr, shown))[:MAX_SHOWN]
    return f"{'.'.join(path)}: {words}" if path else words


class _Shorter(reprlib.Repr):
    def repr_dict(self, x: dict[str, Any], level: int) -> str:
        return super().repr_dict(dict(islice(x.items(), self.maxdict + 1)), level)  # it would sort all of them


_shorter: Final = _Shorter()
_shorter.maxlevel = 2
_shorter.maxlist = _shorter.maxdict = 30
_shorter.maxstring = _shorter.maxother = _shorter.maxlong = 200
"""Writes values in words, whose length and effort are bounded."""
