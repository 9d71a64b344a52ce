"""Longhouse: a self-hosted server for AI agents that live long and forget nothing.

This is the front door: what programs of others import. The names are loaded when they are first used, so that
`import longhouse` alone reads neither FastAPI nor numpy.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from longhouse import errors
    from longhouse.agents.template import Template, ToolPolicy
    from longhouse.app import TOOLS, App, open_app
    from longhouse.settings import Settings
    from longhouse.tools import BaseTool, ToolContext, tool

__all__ = [
    "TOOLS",
    "App",
    "BaseTool",
    "Settings",
    "Template",
    "ToolContext",
    "ToolPolicy",
    "errors",
    "open_app",
    "tool",
]

__version__ = "0.1.0"

# Our matrices are small: threads for them cost a core that spins, and bring nothing. numpy reads the variable when it
# is imported, so it is set before any other module of ours is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_MODULES: Final = {
    "longhouse.agents.template": ("Template", "ToolPolicy"),
    "longhouse.app": ("TOOLS", "App", "open_app"),
    "longhouse.settings": ("Settings",),
    "longhouse.tools": ("BaseTool", "ToolContext", "tool"),
}
"""Where the names of the front door are defined."""


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("longhouse.errors")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
