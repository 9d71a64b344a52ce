"""Reading templates, tools and sections of files, which Pydantic validates; and writing them, as JSON has them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, TypeVar, get_args

from pydantic import TypeAdapter

T = TypeVar("T")
_MADE: Final[dict[Any, TypeAdapter[Any]]] = {}
_KnownField = tuple[str, Any, Mapping[type, type]]
"""The name of a field, its default, and what is meant by values of other types."""
_FIELDS: Final[dict[type, Sequence[_KnownField]]] = {}
_PLAIN: Final = frozenset({str, bool, int, float, dict, type(None)})
"""Types whose values are written as they are."""


def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    """Made once for a type, when something is first read as it: a template's takes 15 ms."""
    if kind not in _MADE:
        _MADE[kind] = TypeAdapter(kind)
    return _MADE[kind]


def written(one: Any, *, without: Collection[str] = (), briefly: bool = False) -> dict[str, Any]:
    """The fields of a template or a tool; `briefly`: those that differ from their defaults."""
    found = {}
    for name, default, meant in _fields_of(type(one)):
        value = getattr(one, name)
        if name in without or (briefly and value == default):
            continue
        found[name] = value if type(value) in _PLAIN and not meant else _plain(value, meant, briefly=briefly)
    return found


def _fields_of(kind: type) -> Sequence[_KnownField]:
    """Found once for a type: tools are written by the thousand."""
    if kind not in _FIELDS:
        _FIELDS[kind] = [(field.name, _default(field), _meant(field.type)) for field in fields(kind)]
    return _FIELDS[kind]


def _plain(value: Any, meant: Mapping[type, type], *, briefly: bool) -> Any:
    kind = type(value)
    if kind in meant:
        return meant[kind](value)
    if kind in _PLAIN:
        return value
    if isinstance(value, tuple):
        return [_plain(item, {}, briefly=briefly) for item in value]
    return written(value, briefly=briefly) if is_dataclass(kind) else value


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _meant(kind: Any) -> dict[type, type]:
    """Code may set a `timeout` to 5 where 5.0 is meant, and a number to True where it is 1."""
    others: dict[type, type] = {int: float, bool: int}
    return {given: meant for given, meant in others.items() if _is(kind, meant) and not _is(kind, given)}


def _is(kind: Any, plain: type) -> bool:
    return kind is plain or any(_is(one, plain) for one in get_args(kind))
