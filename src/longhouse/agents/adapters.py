"""Pydantic's reading and writing of templates, tools and sections of files."""

from typing import Any, Final, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")
_MADE: Final[dict[Any, TypeAdapter[Any]]] = {}


def adapter_of(kind: type[T]) -> TypeAdapter[T]:
    """Made once for a type, when it is first asked for: a template's takes 15 ms."""
    if kind not in _MADE:
        _MADE[kind] = TypeAdapter(kind)
    return _MADE[kind]
