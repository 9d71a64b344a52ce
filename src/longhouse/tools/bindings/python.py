"""Tools that are classes of installed packages: `package.module:ClassName`, imported when one is first bound."""

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
"""Where tool classes of an earlier release are now: catalogs name them as they were."""

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
    module, name = _place(entrypoint)
    try:
        found: Any = getattr(importlib.import_module(module), name, None)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        # Whatever foreign code raises while it is imported, an exit included, ends this call and nothing else.
        raise EntrypointError(f"{module} cannot be imported: {type(error).__name__}: {error}") from error
    if not _is_tool(found):
        raise EntrypointError(f"{module} has no tool class {name}")
    return found


def known(entrypoint: str) -> type[BaseTool] | None:
    """The tool class, if this process has imported it already. Nothing is imported for that."""
    module, name = _place(entrypoint)
    # Not `getattr`, which may lead to an import.
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return found if _is_tool(found) else None


def bound(descriptor: ToolDescriptor, allowed_packages: Sequence[str]) -> Binding:
    """What runs a tool whose class the catalog names. One that asks for less care than its class does is refused."""
    binding = EntrypointBinding(descriptor, allowed_packages)
    if binding.weakened is None:
        return binding
    log.warning("a tool is not offered", tool=descriptor.ref, reason=binding.weakened.message)
    return RefusedBinding(descriptor.tool, binding.weakened)


class EntrypointBinding:
    """A class that the catalog names. One that cannot be loaded is tried again with every call, which is told why."""

    def __init__(self, descriptor: ToolDescriptor, allowed_packages: Sequence[str]) -> None:
        self._descriptor = descriptor
        self._allowed = tuple(allowed_packages)
        self.weakened: Fault | None = None
        """Set: the class is there, and the descriptor asks for less care than it does."""
        self._loaded = self._load()

    @property
    def fault(self) -> Fault | None:
        """Why it could not be loaded when it was last tried."""
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
    """The module and the name of the class, wherever it is by now."""
    module, _, name = entrypoint.partition(":")
    return MOVED.get(module, module), name


def _is_tool(found: object) -> TypeGuard[type[BaseTool]]:
    return isinstance(found, type) and issubclass(found, BaseTool) and found is not BaseTool


def _is_within(module: str, package: str) -> bool:
    package = package.strip()
    return bool(package) and (module == package or module.startswith(f"{package}."))
