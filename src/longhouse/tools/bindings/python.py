"""Binding of Python entrypoints, `package.module:ClassName` in installed packages, imported at first use."""

import importlib
import re
import sys
from collections.abc import Sequence
from typing import Any, Final, TypeGuard

import structlog

from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.errors import LonghouseError
from longhouse.journal.events import Fault
from longhouse.journal.messages import clean
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings.base import Binding, ClassBinding, RefusedBinding, Work

log = structlog.get_logger()

OURS: Final = "longhouse.tools"
"""Always allowed."""
LONGEST: Final = 300
MOVED: Final = {
    "longhouse.tools.clock": "longhouse.tools.builtin.clock",
    "longhouse.tools.delegate": "longhouse.tools.bindings.agent",
    "longhouse.tools.find": "longhouse.tools.builtin.find_tools",
    "longhouse.tools.plan": "longhouse.tools.builtin.planning",
    "longhouse.tools.report": "longhouse.tools.builtin.report",
    "longhouse.tools.research": "longhouse.tools.builtin.research",
    "longhouse.tools.talk": "longhouse.tools.builtin.dialogue",
    "longhouse.tools.workspace": "longhouse.tools.builtin.memory_files",
}
"""New locations of tool classes of earlier releases: catalogs still contain the old names."""

_NAME: Final = r"[A-Za-z][A-Za-z0-9_]*"
_ENTRYPOINT: Final = re.compile(rf"(?P<module>{_NAME}(?:\.{_NAME})*):(?P<cls>{_NAME})")


class EntrypointError(LonghouseError):
    """This entrypoint gives no tool; the message says why."""


def check(entrypoint: str, allowed_packages: Sequence[str]) -> str | None:
    """Why this entrypoint is not allowed. Only its text is checked: nothing is imported or searched."""
    if len(entrypoint) > LONGEST:
        return f"an entrypoint has at most {LONGEST} characters"
    found = _ENTRYPOINT.fullmatch(entrypoint)
    if not found or "__" in entrypoint:
        return "an entrypoint looks like package.module:ClassName, in plain public names"
    if not any(_is_within(found["module"], package) for package in (OURS, *allowed_packages)):
        return f"{found['module']} is not in a package that tools may come from"
    return None


def load(entrypoint: str, allowed_packages: Sequence[str]) -> type[BaseTool]:
    """The tool class; imports its module if needed."""
    if problem := check(entrypoint, allowed_packages):
        raise EntrypointError(problem)
    module, name = _place(entrypoint)
    try:
        found: Any = getattr(importlib.import_module(module), name, None)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # Any exception of foreign code during import, even SystemExit, ends only this call.
        raise EntrypointError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    if not _is_tool(found):
        raise EntrypointError(f"{module} has no tool class {name}")
    return found


def known(entrypoint: str) -> type[BaseTool] | None:
    """The tool class if its module is already imported; imports nothing."""
    module, name = _place(entrypoint)
    # Not `getattr`, which may cause an import.
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return found if _is_tool(found) else None


def bound(descriptor: ToolDescriptor, allowed_packages: Sequence[str]) -> Binding:
    """The binding of an entrypoint. A descriptor that is less careful than its class is refused."""
    binding = EntrypointBinding(descriptor, allowed_packages)
    if binding.weakened is None:
        return binding
    message = "a tool is not offered: its descriptor is less careful than its class"
    log.warning("tool_refused", message=message, tool=descriptor.ref, reason=binding.weakened.message)
    return RefusedBinding(descriptor.tool, binding.weakened)


class EntrypointBinding:
    """A class named by the catalog. If it cannot be loaded, every call retries and returns the fault."""

    def __init__(self, descriptor: ToolDescriptor, allowed_packages: Sequence[str]) -> None:
        self._descriptor = descriptor
        self._allowed = tuple(allowed_packages)
        self.weakened: Fault | None = None
        """Set if the class was loaded and the descriptor is less careful than the class."""
        self._loaded = self._load()

    @property
    def fault(self) -> Fault | None:
        """Why the last attempt to load it failed."""
        return self._loaded if isinstance(self._loaded, Fault) else None

    @property
    def tool(self) -> Tool:
        return self._loaded.tool if isinstance(self._loaded, ClassBinding) else self._descriptor.tool

    def bind(self, arguments: str) -> Work | Fault:
        if isinstance(self._loaded, Fault):
            self._loaded = self._load()
        return self._loaded if isinstance(self._loaded, Fault) else self._loaded.bind(arguments)

    def _load(self) -> ClassBinding | Fault:
        try:
            cls = load(self._descriptor.runtime_binding.python_entrypoint or "", self._allowed)
        except EntrypointError as error:
            return self._fault(str(error))
        if found := self._descriptor.weakened(cls.descriptor()):
            self.weakened = self._fault(": ".join(found))
            return self.weakened
        return ClassBinding(cls, self._descriptor)

    def _fault(self, why: str) -> Fault:
        return Fault(code="tool_failed", message=clean(f"{self._descriptor.name} cannot be used: {why}")[:2000])


def _place(entrypoint: str) -> tuple[str, str]:
    """The current module and name of the class."""
    module, _, name = entrypoint.partition(":")
    return MOVED.get(module, module), name


def _is_tool(found: object) -> TypeGuard[type[BaseTool]]:
    return isinstance(found, type) and issubclass(found, BaseTool) and found is not BaseTool


def _is_within(module: str, package: str) -> bool:
    package = package.strip()
    return bool(package) and (module == package or module.startswith(f"{package}."))
