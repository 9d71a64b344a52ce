"""Binding, from the arguments of a tool to work that can run, and the binding of a BaseTool class."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pydantic

from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.journal.events import Fault
from longhouse.tools.base import BaseTool
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.validation_messages import explain

OWN_PROBE: Final = ":probe"
"""Ends the name of the tool that asks another tool's own server. No tool of the catalog can have such a name."""
BUILT_IN: Final = "longhouse.tools.builtin."


class Blocking(msgspec.Struct, frozen=True):
    """Blocking work: it runs in a thread, so that the event loop and the heartbeat continue."""

    call: Callable[[ToolContext, ToolConfig], Any]


Work = Callable[[ToolContext, ToolConfig], Awaitable[Any]] | Blocking
"""A call that is ready to run."""


@dataclass(slots=True)
class Binding:
    """A tool and what runs it: a class, a remote endpoint, an MCP server or an agent."""

    tool: Tool
    bind: Callable[[str], Work | Fault]
    """From the arguments to the work, or to a fault for the model that says why they do not fit. Nothing runs yet."""
    check: Callable[[str], Awaitable[Fault | None]] | None = None
    """What is wrong with the arguments, where only another process can tell that; None: `bind` tells all."""
    is_refused: bool = False
    """The descriptor is not allowed: the tool is not offered, and a call returns the fault."""
    revision: Callable[[str, ToolContext], Awaitable[str]] | None = None
    """The state of what a call with these arguments would read; None: it is not known, and taken as unchanged."""
    probe: "Binding | None" = None
    """Asks its server whether a call took effect; its name ends with OWN_PROBE. None: there is nobody to ask."""
    obeys: bool = False
    """Its work ends as soon as it is cancelled. Work of others may not, and runs in a task that can be left behind."""
    is_elsewhere: bool = False
    """It runs in another process, and cannot take this one down. An exception that is no CallError does not say that it
    failed: the request may have been sent."""


def class_binding(cls: type[BaseTool], descriptor: ToolDescriptor | None = None) -> Binding:
    """A subclass of BaseTool under the descriptor of one catalog version."""
    tool, is_async = cls.described(descriptor), inspect.iscoroutinefunction(cls.__call__)

    def bind(arguments: str) -> Work | Fault:
        try:
            parsed = cls.model_validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            return arguments_fault(tool.name, error)

        def call(context: ToolContext, config: ToolConfig) -> Any:
            return parsed(context, config, **config.settings_of(tool.name))

        return call if is_async else Blocking(call)

    async def revision(arguments: str, context: ToolContext) -> str:
        return await cls.model_validate_json(arguments or "{}").revision(context)

    # Nobody else may have written what it runs: neither the class nor a subclass in another package.
    obeys = cls.__module__.startswith(BUILT_IN)
    return Binding(tool, bind, revision=revision if tool.remembers else None, obeys=obeys)


def arguments_fault(tool: str, error: pydantic.ValidationError) -> Fault:
    """A fault for the model that says why the arguments are refused."""
    problems = [f"{'.'.join(map(str, where)) or 'arguments'}: {problem}" for where, problem in explain(error)[:5]]
    return Fault(code="bad_arguments", message=f"the arguments of {tool} do not fit: {'; '.join(problems)}")
