"""The Binding protocol, from arguments to a callable, and the binding of a BaseTool class."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pydantic

from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.journal.events import Fault
from longhouse.tools.base import BaseTool
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.validation_messages import explain


@dataclass(frozen=True, slots=True)
class Blocking:
    """Blocking work: it runs in a thread, so that the event loop and the heartbeat continue."""

    call: Callable[[ToolContext, ToolConfig], Any]


Work = Callable[[ToolContext, ToolConfig], Awaitable[Any]] | Blocking
"""A call that is ready to run."""


class Binding(Protocol):
    """A tool and what runs it: a class, an MCP server, a remote endpoint."""

    @property
    def tool(self) -> Tool: ...

    def bind(self, arguments: str) -> Work | Fault:
        """The work, or a fault for the model that says why the arguments do not fit. Nothing runs yet."""
        ...


class ClassBinding:
    """A subclass of BaseTool under the descriptor of one catalog version."""

    def __init__(self, cls: type[BaseTool], descriptor: ToolDescriptor | None = None) -> None:
        self.tool = cls.described(descriptor)
        self._cls = cls

    def bind(self, arguments: str) -> Work | Fault:
        try:
            parsed = self._cls.model_validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            return unfit(self.tool.name, error)
        call = parsed.__call__
        return call if inspect.iscoroutinefunction(call) else Blocking(call)


@dataclass(frozen=True, slots=True)
class RefusedBinding:
    """A tool that is not offered because its descriptor is not allowed; a call returns the fault."""

    tool: Tool
    fault: Fault

    def bind(self, arguments: str) -> Work | Fault:
        return self.fault


def unfit(tool: str, error: pydantic.ValidationError) -> Fault:
    """A fault for the model that says why the arguments are refused."""
    problems = [f"{'.'.join(map(str, where)) or 'arguments'}: {says}" for where, says in explain(error)[:5]]
    return Fault(code="bad_arguments", message=f"the arguments of {tool} do not fit: {'; '.join(problems)}")
