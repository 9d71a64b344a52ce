"""Tools that are classes of installed packages: `package.module:ClassName`, imported when one is first bound."""

import importlib
import re
from collections.abc import Sequence
from typing import Any, Final

from longhouse.agents.descriptor import ToolDescriptor
from longhouse.agents.tool import Tool
from longhouse.errors import LonghouseError
from longhouse.journal.events import Fault
from longhouse.journal.messages import clean
from longhouse.tools.toolbox import BaseTool, ClassBinding, Work

OURS: Final = "longhouse.tools"
"""Always allowed."""
LONGEST: Final = 300

_NAME: Final = r"[A-Za-z][A-Za-z0-9_]*"
_ENTRYPOINT: Final = re.compile(rf"(?P<module>{_NAME}(?:\.{_NAME})*):(?P<cls>{_NAME})")


class EntrypointError(LonghouseError):
    """An entrypoint that gives no tool, and why."""


def check(entrypoint: str, allowed_packages: Sequence[str]) -> str | None:
    """Why this entrypoint is not allowed. Only its text is looked at: nothing is imported or looked for."""
    if len(entrypoint) > LONGEST:
        return f"an entrypoint has at most {LONGEST} characters"
    found = _ENTRYPOINT.fullmatch(entrypoint)
    if not found or "__" in entrypoint:
        return "an entrypoint looks like package.module:ClassName, in plain public names"
    if not any(_is_within(found["module"], package) for package in (OURS, *allowed_packages)):
        return f"{found['module']} is not in a package that tools may come from"
    return None


def load(entrypoint: str, allowed_packages: Sequence[str]) -> type[BaseTool]:
    """The tool class, imported now if it was not before."""
    if problem := check(entrypoint, allowed_packages):
        raise EntrypointError(problem)
    module, _, name = entrypoint.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name, None)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # Whatever foreign code raises while it is imported, an exit included, ends this call and nothing else.
        raise EntrypointError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(found, type) or not issubclass(found, BaseTool) or found is BaseTool:
        raise EntrypointError(f"{module} has no tool class {name}")
    return found


class EntrypointBinding:
    """A class that the catalog names. One that cannot be loaded is tried again with every call, which is told why."""

    def __init__(self, descriptor: ToolDescriptor, allowed_packages: Sequence[str]) -> None:
        self._descriptor = descriptor
        self._allowed = tuple(allowed_packages)
        self._loaded = self._load()

    @property
    def tool(self) -> Tool:
        return self._loaded.tool if isinstance(self._loaded, ClassBinding) else self._descriptor.tool

    def bind(self, arguments: str) -> Work | Fault:
        if isinstance(self._loaded, Fault):
            self._loaded = self._load()
        return self._loaded if isinstance(self._loaded, Fault) else self._loaded.bind(arguments)

    def _load(self) -> ClassBinding | Fault:
        entrypoint = self._descriptor.runtime_binding.python_entrypoint or ""
        try:
            return ClassBinding(load(entrypoint, self._allowed), self._descriptor)
        except EntrypointError as error:
            return Fault(code="tool_failed", message=clean(f"{self._descriptor.name} cannot be used: {error}")[:2000])


def _is_within(module: str, package: str) -> bool:
    package = package.strip()
    return bool(package) and (module == package or module.startswith(f"{package}."))
