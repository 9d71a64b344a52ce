"""Parses and evaluates conditions such as `searches_used >= max_searches and not enough_data`."""

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

FACTS: Final = (
    "iteration",
    "searches_used",
    "clarifications_used",
    "calls",
    "tokens",
    "seconds",
    "sources_found",
    "plan_made",
    "enough_data",
    "stage",
)
"""The facts that a condition can use."""
STAGE: Final = "stage"
LIMITS: Final = (
    "max_iterations",
    "max_searches",
    "max_clarifications",
    "time_budget",
    "tool_budget",
    "token_budget",
)
"""The limits that a fact can be compared with, beside numbers and names of stages."""

Facts = Mapping[str, Any]

_OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON: Final = re.compile(r"(\w+)\s*(>=|<=|==|!=|>|<)\s*([\w.]+)")
_NUMBER: Final = re.compile(r"\d{1,12}(\.\d{1,6})?", re.ASCII)
_LONGEST: Final = 500


@dataclass(frozen=True, slots=True)
class _Term:
    fact: str
    compare: Callable[[Any, Any], bool] | None = None
    other: str | float = ""
    negated: bool = False

    def holds(self, facts: Facts) -> bool:
        return self._is_so(facts) is not self.negated

    def _is_so(self, facts: Facts) -> bool:
        value = facts[self.fact]
        if self.compare is None:
            return bool(value)
        # A string compared with `stage` is the name of a stage; with any other fact, the name of a limit.
        other = facts[self.other] if isinstance(self.other, str) and self.fact != STAGE else self.other
        # A limit that is not set is never reached.
        return other is not None and self.compare(value, other)


@dataclass(frozen=True, slots=True)
class Condition:
    """True when all terms of any one alternative hold."""

    alternatives: tuple[tuple[_Term, ...], ...]

    def holds(self, facts: Facts) -> bool:
        return any(all(term.holds(facts) for term in terms) for terms in self.alternatives)


@cache
def parse(text: str) -> Condition:
    """The parsed condition; raises ValueError with the part that cannot be parsed. `and` binds before `or`."""
    if len(text) > _LONGEST:
        raise ValueError(f"a condition has at most {_LONGEST} characters")
    return Condition(tuple(tuple(_terms(part)) for part in re.split(r"\s+or\s+", text.strip())))


def _terms(text: str) -> Iterator[_Term]:
    for part in re.split(r"\s+and\s+", text):
        negated = part.startswith("not ")
        yield _term(part.removeprefix("not ").strip(), negated=negated)


def _term(text: str, *, negated: bool) -> _Term:
    comparison = _COMPARISON.fullmatch(text)
    if comparison is None:
        return _Term(_fact(text), negated=negated)
    fact, sign, other = comparison.groups()
    if fact == STAGE and sign not in ("==", "!="):
        raise ValueError("a stage is compared with == or !=")
    return _Term(_fact(fact), _OPERATORS[sign], _other(fact, other), negated)


def _fact(name: str) -> str:
    if name not in FACTS:
        raise ValueError(f"{name!r} is not known; a condition asks about {', '.join(FACTS)}")
    return name


def _other(fact: str, text: str) -> str | float:
    if fact == STAGE:
        return text
    if _NUMBER.fullmatch(text):
        return float(text)
    if text not in LIMITS:
        raise ValueError(f"{text!r} is neither a number nor a limit ({', '.join(LIMITS)})")
    return text
