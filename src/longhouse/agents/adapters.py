"""Reading templates, tools and sections of files, which Pydantic validates; and writing them, as JSON has them."""

from collections.abc import Collection
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, TypeVar, get_args

from pydantic import TypeAdapter

T = TypeVar("T")
_MADE: Final[dict[Any, TypeAdapter[Any]]] = {}


def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    """Made once for a type, when something is first read as it: a template's takes 15 ms."""
    if kind not in _MADE:
        _MADE[kind] = TypeAdapter(kind)
    return _MADE[kind]


def written(one: Any, *, without: Collection[str] = (), briefly: bool = False) -> dict[str, Any]:
    """The fields of a template or a tool; `briefly`: those that differ from their defaults."""
    given = ((field, getattr(one, field.name)) for field in fields(one) if field.name not in without)
    return {
        field.name: _plain(value, field.type, briefly=briefly)
        for field, value in given
        if not briefly or value != _default(field)
    }


def _plain(value: Any, kind: Any, *, briefly: bool) -> Any:
    if is_dataclass(value):
        return written(value, briefly=briefly)
    if isinstance(value, tuple):
        return [_plain(item, Any, briefly=briefly) for item in value]
    for meant, given in (float, int), (int, bool):
        if type(value) is given and _is(kind, meant) and not _is(kind, given):
            return meant(value)
    return value


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _is(kind: Any, plain: type) -> bool:
    """Code may set a `timeout` to 5 where 5.0 is meant, and a number to True where it is 1."""
    return kind is plain or any(_is(one, plain) for one in get_args(kind))
