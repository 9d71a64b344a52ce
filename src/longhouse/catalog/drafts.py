"""Descriptors as people send them: JSON read field by field, with every complaint in one answer."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pydantic

from longhouse.errors import CallerError
from longhouse.store.catalog.repository import Shelf, T
from longhouse.validation_messages import Where, explain, path_text

MOST: Final = 5_000
"""Descriptors that are published at once."""
MAX_NODES: Final = 5_000
"""Values in one descriptor, its schema apart: each of them may be a complaint to be written."""
MOST_TOLD: Final = 10
LONGEST: Final = 1_200
"""Characters of what a refusal says."""

GIVEN: Final = ("version", "latest", "digest", "published_by", "published_at", "changed_at", "security_overlay")
"""What the catalog adds to what it shows: it may come back with the rest, and is passed over."""
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a descriptor is not published: which of those sent, which field, what is wrong."""

    nth: int
    where: Where
    says: str
    is_conflict: bool = False
    """It would be fine, but for what the catalog holds."""
    is_warning: bool = False
    """It is published all the same."""


def read(shelf: Shelf[T], nth: int, value: Any) -> T | list[Problem]:
    """The descriptor, or all that is wrong with it."""
    try:
        return shelf.adapter.validate_json(_plain(shelf.kind, value), strict=True)
    except pydantic.ValidationError as error:
        return [Problem(nth, where, says) for where, says in explain(error)]
    except _Odd as odd:
        return [Problem(nth, odd.where, str(odd))]


def refuse(problems: Sequence[Problem], *, many: bool) -> None:
    """One refusal for all problems, if there are any; it names every field, and the first one as its parameter."""
    if not problems:
        return
    told = [f"{_param(one, many) or 'the descriptor'}: {one.says}" for one in problems[:MOST_TOLD]]
    more = f"; and {len(problems) - MOST_TOLD} more" if len(problems) > MOST_TOLD else ""
    is_conflict = all(one.is_conflict for one in problems)
    raise CallerError(
        f"Nothing is published. {'; '.join(told)[:LONGEST]}{more}.",
        status=409 if is_conflict else 400,
        code="name_taken" if is_conflict else None,
        param=_param(problems[0], many)[:200] or None,
    )


def warnings(problems: Sequence[Problem]) -> dict[int, tuple[str, ...]]:
    """What is told beside what was published, by which of those sent it is about."""
    told: dict[int, tuple[str, ...]] = {}
    for one in problems:
        before = told.get(one.nth, ())
        if one.is_warning and len(before) < MOST_TOLD:
            told[one.nth] = (*before, f"{_param(one, many=False)}: {one.says}")
    return told


class _Odd(ValueError):  # noqa: N818 - it says what the value is
    """A value that is no descriptor at all."""

    def __init__(self, says: str, *where: str) -> None:
        super().__init__(says)
        self.where = where


def _plain(kind: str, value: Any) -> bytes:
    """The JSON of what was said, without what the catalog had added."""
    if not isinstance(value, Mapping):
        raise _Odd("it is not an object")
    if _nodes(item for key, item in value.items() if key != "input_schema") > MAX_NODES:
        raise _Odd(f"it has more than {MAX_NODES} values")
    if value.get(f"{kind}_id", value.get("name")) != value.get("name"):
        raise _Odd("it is always the name", f"{kind}_id")
    passed = (*GIVEN, f"{kind}_id", "is_active")
    try:
        plain = msgspec.json.encode({key: item for key, item in value.items() if key not in passed})
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise _Odd("it holds what cannot be stored") from None
    if _NUL.search(plain):
        raise _Odd("it holds a NUL character, which cannot be stored")
    return plain


def _nodes(values: Iterable[Any]) -> int:
    """How many values there are, in whatever depth; it stops counting where there are too many."""
    count, left = 0, list(values)
    while left and count <= MAX_NODES:
        value = left.pop()
        count += 1
        if isinstance(value, dict):
            count += len(value)
            left += value.values()
        elif isinstance(value, list):
            left += value
    return count + len(left)


def _param(problem: Problem, many: bool) -> str:
    return path_text((problem.nth, *problem.where) if many else problem.where)
