"""Parses descriptors that clients send: JSON is validated field by field, and one answer lists all problems."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pydantic

from longhouse.errors import CallerError
from longhouse.store.catalog.repository import T, VersionRepository
from longhouse.validation_messages import Where, explain, path_text

MOST: Final = 5_000
"""Descriptors in one publish request."""
MAX_NODES: Final = 5_000
"""Values in one descriptor without its schema: each may produce a problem to report."""
MAX_REPORTED: Final = 10
LONGEST: Final = 1_200
"""Characters of the problems in one refusal."""

GIVEN: Final = ("latest", "digest", "published_by", "published_at", "changed_at", "security_overlay", "effective")
"""Fields that the catalog adds to its answers: a client may send them back, and they are ignored."""
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class Problem(msgspec.Struct, frozen=True):
    """Why a descriptor is refused: its position in the request, the field, and the reason."""

    nth: int
    where: Where
    message: str
    is_conflict: bool = False
    """The descriptor is valid, but conflicts with the catalog's content."""
    is_warning: bool = False
    """The descriptor is published all the same."""


def read(repository: VersionRepository[T], nth: int, value: Any) -> T | list[Problem]:
    """The parsed descriptor, or all its problems."""
    plain = _plain(repository.kind, value)
    if isinstance(plain, str):
        return [Problem(nth, (), plain)]
    if value.get(f"{repository.kind}_id", value.get("name")) != value.get("name"):
        return [Problem(nth, (f"{repository.kind}_id",), "it is always the name")]
    try:
        return repository.adapter.validate_json(plain, strict=True)
    except pydantic.ValidationError as error:
        return [Problem(nth, where, message) for where, message in explain(error)]


def refuse(problems: Sequence[Problem], *, many: bool = False, result: str = "Nothing is published") -> None:
    """Raises one error for all problems, if there are any; it names every field, and the first one as `param`."""
    if not problems:
        return
    sentences = [f"{_param(one, many) or 'the descriptor'}: {one.message}" for one in problems[:MAX_REPORTED]]
    more = f"; and {len(problems) - MAX_REPORTED} more" if len(problems) > MAX_REPORTED else ""
    is_conflict = all(one.is_conflict for one in problems)
    raise CallerError(
        f"{result}. {'; '.join(sentences)[:LONGEST]}{more}.",
        status=409 if is_conflict else 400,
        code="name_taken" if is_conflict else None,
        param=_param(problems[0], many)[:200] or None,
    )


def warnings(problems: Sequence[Problem]) -> dict[int, tuple[str, ...]]:
    """The warnings for published descriptors, by their position in the request."""
    found: dict[int, tuple[str, ...]] = {}
    for one in problems:
        before = found.get(one.nth, ())
        if one.is_warning and len(before) < MAX_REPORTED:
            found[one.nth] = (*before, f"{_param(one, many=False)}: {one.message}")
    return found


def _plain(kind: str, value: Any) -> bytes | str:
    """The JSON of a descriptor without the fields that the catalog adds; or why it is no descriptor at all."""
    if not isinstance(value, Mapping):
        return "it is not an object"
    if _nodes(item for key, item in value.items() if key != "input_schema") > MAX_NODES:
        return f"it has more than {MAX_NODES} values"
    passed = (*GIVEN, f"{kind}_id", "is_active")
    try:
        plain = msgspec.json.encode({key: item for key, item in value.items() if key not in passed})
    except (TypeError, ValueError, OverflowError, RecursionError):
        return "it holds a value that cannot be stored"
    # The plain search spares almost all descriptors the slow one.
    if rb"\u0000" in plain and _NUL.search(plain):
        return "it holds a NUL character, which cannot be stored"
    return plain


def _nodes(values: Iterable[Any]) -> int:
    """Counts values at any depth; stops when there are too many."""
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
