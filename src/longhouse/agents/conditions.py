"""Parses and evaluates conditions such as `searches_used >= max_searches and not enough_data`."""

import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from longhouse.journal.events import Limits

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
LIMITS: Final = Limits.__struct_fields__
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


Check = Callable[[Facts], bool]


def holds(text: str, facts: Facts) -> bool:
    """Whether all terms of any one alternative hold."""
    for checks in parse(text):
        for check in checks:
            if not check(facts):
                break
        else:
            return True
    return False


@lru_cache(maxsize=4096)
def parse(text: str) -> list[list[Check]]:
    """The alternatives of a condition and the terms of each; raises ValueError with the part that cannot be parsed.

    `and` binds before `or`.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"a condition has at most {_LONGEST} characters")
    alternatives = re.split(r"\s+or\s+", text.strip())
    return [[_term(term) for term in re.split(r"\s+and\s+", alternative)] for alternative in alternatives]


def _term(text: str) -> Check:
    if not text.startswith("not "):
        return _plain_term(text.strip())
    check = _plain_term(text.removeprefix("not ").strip())
    return lambda facts: not check(facts)


def _plain_term(text: str) -> Check:
    comparison = _COMPARISON.fullmatch(text)
    fact, sign, other = comparison.groups() if comparison else (text, "", "")
    if fact == STAGE and sign not in ("", "==", "!="):
        raise ValueError("a stage is compared with == or !=")
    if fact not in FACTS:
        raise ValueError(f"{fact!r} is not known; a condition asks about {', '.join(FACTS)}")
    if not sign:
        return lambda facts: bool(facts[fact])
    compare = _OPERATORS[sign]
    if fact == STAGE or _NUMBER.fullmatch(other):
        value = other if fact == STAGE else float(other)
        return lambda facts: compare(facts[fact], value)
    if other not in LIMITS:
        raise ValueError(f"{other!r} is neither a number nor a limit ({', '.join(LIMITS)})")
    # A limit that is not set is never reached.
    return lambda facts: facts[other] is not None and compare(facts[fact], facts[other])
