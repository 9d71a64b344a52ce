"""Pydantic's reading and writing of templates, tools and sections of files."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Made once for a type, when it is first asked for: a template's takes 15 ms."""
    return TypeAdapter(kind)
