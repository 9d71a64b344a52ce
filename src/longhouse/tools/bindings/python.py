"""Binding of Python entrypoints, `package.module:ClassName` in installed packages, imported at first use."""

import inspect
import sys
from collections.abc import Sequence
from typing import Final, TypeGuard

import structlog

from longhouse.agents import entrypoints
from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.tool import Isolation
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.journal.events import Fault
from longhouse.journal.messages import clean
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings.base import Binding, Work, class_binding
from longhouse.validation_messages import did_you_mean

log = structlog.get_logger()

OURS: Final = "longhouse.tools"
"""Always allowed."""
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


class WeakerThanClass(EntrypointError):  # noqa: N818 - it says what the descriptor is
    """The descriptor of the tool is less careful than its class."""


def check(entrypoint: str, allowed_packages: Sequence[str]) -> str | None:
    """Why a tool may not come from this entrypoint. Only its text is checked: nothing is imported or searched."""
    return entrypoints.check(entrypoint, (OURS, *allowed_packages))


def load(entrypoint: str, allowed_packages: Sequence[str]) -> type[BaseTool]:
    """The tool class; imports its module if needed."""
    if problem := check(entrypoint, allowed_packages):
        raise EntrypointError(problem)
    module, name = _place(entrypoint)
    found = entrypoints.imported(f"{module}:{name}")
    if _is_tool(found):
        return found
    if inspect.isroutine(found):
        raise EntrypointError(f"{name} of {module} is a function and no tool yet; put @tool of longhouse above it")
    near = did_you_mean(name, [one for one, value in vars(sys.modules[module]).items() if _is_tool(value)])
    raise EntrypointError(f"{module} has no tool class {name}{near}")


def known(entrypoint: str) -> type[BaseTool] | None:
    """The tool class if its module is already imported; imports nothing."""
    module, name = _place(entrypoint)
    # Not `getattr`, which may cause an import.
    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    return found if _is_tool(found) else None


def described(entrypoint: str) -> ToolDescriptor | None:
    """How a class that is already imported describes itself."""
    cls = known(entrypoint)
    return cls.descriptor() if cls else None


def isolation_of(descriptor: ToolDescriptor) -> Isolation:
    """Where the tool runs: foreign packages in processes of their own, unless the descriptor says otherwise."""
    entrypoint = descriptor.runtime_binding.python_entrypoint or ""
    return descriptor.isolation or ("none" if f"{entrypoint.partition(':')[0]}.".startswith(f"{OURS}.") else "process")


def class_of(descriptor: ToolDescriptor, allowed_packages: Sequence[str]) -> type[BaseTool]:
    """The class that a descriptor names; WeakerThanClass if the descriptor is less careful than the class."""
    cls = load(descriptor.runtime_binding.python_entrypoint or "", allowed_packages)
    if found := descriptor.weakened(cls.descriptor()):
        raise WeakerThanClass(": ".join(found))
    return cls


def bound(descriptor: ToolDescriptor, allowed_packages: Sequence[str]) -> Binding:
    """The binding of an entrypoint. If its class cannot be loaded, every call tries again and returns the fault."""

    def load_and_bind(arguments: str) -> Work | Fault:
        try:
            loaded = class_binding(class_of(descriptor, allowed_packages), descriptor)
        except EntrypointError as error:
            return fault_of(descriptor, error)
        binding.tool, binding.bind, binding.revision = loaded.tool, loaded.bind, loaded.revision
        binding.obeys = loaded.obeys
        return binding.bind(arguments)

    binding = Binding(descriptor.tool, load_and_bind)
    try:
        return class_binding(class_of(descriptor, allowed_packages), descriptor)
    except WeakerThanClass as error:
        return refused(descriptor, error)
    except EntrypointError:
        return binding


def refused(descriptor: ToolDescriptor, error: WeakerThanClass) -> Binding:
    """The binding of a tool that is not offered."""
    fault = fault_of(descriptor, error)
    message = "a tool is not offered: its descriptor is less careful than its class"
    log.warning("tool_refused", message=message, tool=descriptor.ref, reason=fault.message)
    return Binding(descriptor.tool, lambda arguments: fault, is_refused=True)


def fault_of(descriptor: ToolDescriptor, error: EntrypointError) -> Fault:
    return Fault(code="tool_failed", message=clean(f"{descriptor.name} cannot be used: {error}")[:2000])


def _place(entrypoint: str) -> tuple[str, str]:
    """The current module and name of the class."""
    module, _, name = entrypoint.partition(":")
    return MOVED.get(module, module), name


def _is_tool(found: object) -> TypeGuard[type[BaseTool]]:
    return isinstance(found, type) and issubclass(found, BaseTool) and found is not BaseTool
