"""The `@tool` decorator: a function as a tool. Its parameters are the arguments, its docstring is the description."""

import inspect
import types
from collections.abc import Callable
from typing import Any, Final, TypedDict, Unpack, get_type_hints, overload

import pydantic

from longhouse.agents.tool import Isolation, Remembers
from longhouse.errors import SetupError
from longhouse.journal.events import Effect
from longhouse.tools.base import BaseTool
from longhouse.tools.context import ToolContext

Function = Callable[..., Any]

CONTEXT: Final = "context"
"""A parameter of this name is not an argument: it receives the ToolContext."""
_FIELD: Final = "argument_"
"""Prefix of each field, so that an argument may be named `timeout`, `json` or `_x`; models never see it."""
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class ToolOptions(TypedDict, total=False):
    """How the tool is described and handled, as in BaseTool; its name and description are the function's by default."""

    name: str
    description: str
    effect: Effect
    timeout: float
    max_output: int
    needs_approval: bool
    remembers: Remembers
    probe: str
    isolation: Isolation
    serve_over_mcp: bool


@overload
def tool(function: Function, /) -> type[BaseTool]: ...
@overload
def tool(**options: Unpack[ToolOptions]) -> Callable[[Function], type[BaseTool]]: ...
def tool(function: Function | None = None, /, **options: Any) -> Any:
    """Makes a BaseTool from a function: `@tool`, or `@tool(effect="once", timeout=5)`. A `def` runs in a thread."""
    if unknown := options.keys() - ToolOptions.__annotations__.keys():
        raise TypeError(f"tool() has no option {', '.join(sorted(unknown))}")
    return _made(function, options) if function else lambda given: _made(given, options)


def _made(function: Function, options: dict[str, Any]) -> type[BaseTool]:
    if not inspect.isfunction(function):
        raise SetupError(f"{_name(function)} cannot be a tool: it is not a function.")
    arguments = _arguments(function)
    takes_context = CONTEXT in inspect.signature(function).parameters

    def begun(self: BaseTool, context: ToolContext, config: Any = None, **kwargs: Any) -> Any:
        given = {name: getattr(self, f"{_FIELD}{name}") for name in arguments}
        return function(**given, **({CONTEXT: context} if takes_context else {}))

    async def awaited(self: BaseTool, context: ToolContext, config: Any = None, **kwargs: Any) -> Any:
        return await begun(self, context)

    hints = get_type_hints(function, include_extras=True)
    namespace = {
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "__doc__": function.__doc__,
        "__annotations__": {f"{_FIELD}{name}": hints[name] for name in arguments},
        "__call__": awaited if inspect.iscoroutinefunction(function) else begun,
        "model_config": pydantic.ConfigDict(alias_generator=lambda field: field.removeprefix(_FIELD)),
        **{f"{_FIELD}{name}": default for name, default in arguments.items() if default is not inspect.Parameter.empty},
        **{option: value for option, value in options.items() if option != "name"},
        "tool_name": options.get("name") or function.__name__,
    }
    return types.new_class(function.__name__, (BaseTool,), exec_body=lambda body: body.update(namespace))


def _arguments(function: Function) -> dict[str, Any]:
    """The parameters of a function and their defaults; refuses those that a schema cannot describe."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in _NAMED:
            raise SetupError(f"{_name(function)} cannot be a tool: its parameter {name!r} cannot be given by name.")
        if name == CONTEXT:
            continue
        if parameter.annotation is inspect.Parameter.empty:
            raise SetupError(f"{_name(function)} cannot be a tool: its parameter {name!r} has no annotation.")
        found[name] = parameter.default
    return found


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", function))
