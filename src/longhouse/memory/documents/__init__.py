"""Documents: files become pages and blocks. Parsers run in a process of their own and are not imported here."""

import importlib
from typing import TYPE_CHECKING, Any

from longhouse.memory.documents.detect import SUFFIXES
from longhouse.memory.documents.parsed import Block, DocumentError, OutlineLine, ParsedDocument, ParseLimits

if TYPE_CHECKING:
    from longhouse.memory.documents.sandbox import parse

__all__ = ["SUFFIXES", "Block", "DocumentError", "OutlineLine", "ParseLimits", "ParsedDocument", "parse"]


def __getattr__(name: str) -> Any:
    """Loads `parse` when it is first used: the process that reads a file does not need it, and starts twice as fast."""
    if name != "parse":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("longhouse.memory.documents.sandbox").parse
