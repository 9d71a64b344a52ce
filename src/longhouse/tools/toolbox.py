"""BaseTool, and how a call becomes an outcome."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

import pydantic
import structlog

from longhouse.agents.registry import Registry
from longhouse.agents.tool import Tool
from longhouse.journal.events import Effect, Fault, Outcome, Output
from longhouse.journal.messages import clean
from longhouse.journal.session import Open, Session
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import MadeFile, Services, ToolContext, changes, context_of, written

log = structlog.get_logger()

MAX_ARGUMENTS: Final = 1_000_000
"""Characters of arguments that we read at all."""


class ToolRegistry(Registry[type["BaseTool"]]):
    """Every tool class, from the moment it is defined."""


class BaseTool(pydantic.BaseModel):
    """The contract of a tool: its fields are the arguments, its docstring the description, `__call__` the work."""

    tool_name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    effect: ClassVar[Effect] = "read"
    timeout: ClassVar[float] = 60.0
    max_output: ClassVar[int] = 40_000
    inline: ClassVar[bool] = False
    finishes: ClassVar[bool] = False
    closing: ClassVar[bool] = False
    asks: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tool_name = cls.__dict__.get("tool_name") or cls.__name__.lower()
        cls.description = cls.__dict__.get("description") or inspect.cleandoc(cls.__doc__ or "")
        ToolRegistry.register(cls, name=cls.tool_name)

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        raise NotImplementedError(f"{type(self).__name__} does not say what it does: define `async def __call__`")

    @classmethod
    def described(cls) -> Tool:
        schema = _without_titles(cls.model_json_schema())
        schema.pop("description", None)
        return Tool(
            name=cls.tool_name,
            description=cls.description,
            schema=schema,
            effect=cls.effect,
            timeout=cls.timeout,
            max_output=cls.max_output,
            inline=cls.inline,
            finishes=cls.finishes,
            closing=cls.closing,
            asks=cls.asks,
        )


Work = Callable[[ToolContext, ToolConfig], Awaitable[Any]]
"""A call that is ready to be made."""


class Binding(Protocol):
    """A tool and the way from its arguments to the work: a class of ours, an MCP server, a remote endpoint."""

    @property
    def tool(self) -> Tool: ...

    def bind(self, arguments: str) -> Work | Fault:
        """The work, or why these arguments do not fit, in words that the model can act on. Nothing happens yet."""
        ...


class ClassBinding:
    """A subclass of BaseTool."""

    def __init__(self, cls: type[BaseTool]) -> None:
        self.tool = cls.described()
        self._cls = cls

    def bind(self, arguments: str) -> Work | Fault:
        try:
            parsed = self._cls.model_validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            return Fault(code="bad_arguments", message=f"the arguments of {self.tool.name} do not fit: {_why(error)}")
        if inspect.iscoroutinefunction(type(parsed).__call__):
            return parsed.__call__
        return lambda context, config: _in_thread(parsed, context, config)


async def _in_thread(tool: BaseTool, context: ToolContext, config: ToolConfig) -> Any:
    """A blocking tool gets a thread, so that the event loop and the heartbeat go on."""
    output = await asyncio.to_thread(tool, context, config)
    return await output if inspect.isawaitable(output) else output


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a call, and what the tool changed and made beside it."""

    outcome: Outcome
    writes: dict[str, Any] = field(default_factory=dict)
    adds: dict[str, Any] = field(default_factory=dict)
    made: tuple[MadeFile, ...] = ()


class Toolbox:
    """The tools that this process can run, by name."""

    def __init__(
        self,
        classes: Iterable[type[BaseTool]],
        *,
        config: ToolConfig | None = None,
        services: Services | None = None,
    ) -> None:
        self._bindings: dict[str, Binding] = {cls.tool_name: ClassBinding(cls) for cls in classes}
        self._config = config or ToolConfig()
        self._services = services or Services()

    def add(self, binding: Binding) -> None:
        """Takes up a tool that became known later, or a newer description of one."""
        self._bindings[binding.tool.name] = binding

    def remove(self, name: str) -> None:
        """A tool that is not there any more."""
        self._bindings.pop(name, None)

    def offered(self, names: Iterable[str]) -> list[Tool]:
        """The tools of these names that are there now; `<server>.*` stands for all of a server, in their order."""
        found: dict[str, Tool] = {}
        for name in names:
            known = (
                sorted(one for one in self._bindings if one.startswith(name[:-1])) if name.endswith(".*") else [name]
            )
            found |= {one: self._bindings[one].tool for one in known if one in self._bindings}
        return list(found.values())

    def find(self, name: str) -> Tool | None:
        binding = self._bindings.get(name)
        return binding.tool if binding else None

    def get(self, name: str) -> Tool:
        return self._bindings[name].tool

    def check(self, name: str, arguments: str) -> Fault | None:
        """Why a call with these arguments cannot be made."""
        work = self._bind(name, arguments)
        return work if isinstance(work, Fault) else None

    async def perform(self, call: Open, session: Session, *, memory_scope: str = "agent") -> Result:
        """Runs one call. Whatever the tool does, an outcome comes back."""
        work = self._bind(call.tool, call.arguments)
        if isinstance(work, Fault):
            return Result(work)
        tool, context = self.get(call.tool), context_of(call, session, self._services, memory_scope)
        before, deadline = written(context), asyncio.timeout(tool.timeout)
        try:
            async with deadline:
                output = await work(context, self._config)
            writes, adds = changes(before, written(context))
            content = _bounded(clean(str(output)), tool.max_output)
            return Result(Output(content=content), writes, adds, tuple(context.made))
        except BaseException as error:
            # A raising tool is an outcome for the agent, never a dead run, whatever it raises.
            if _is_ours(error):
                raise
            if isinstance(error, TimeoutError) and deadline.expired():
                late = f"{call.tool} did not answer within {tool.timeout:g} seconds"
                return Result(Fault(code="timeout", message=late))
            log.info("a tool raised", tool=call.tool, session=session.id, call=call.call, error=repr(error))
            return Result(Fault(code="tool_failed", message=clean(f"{type(error).__name__}: {error}")[:2000]))

    def _bind(self, name: str, arguments: str) -> Work | Fault:
        binding = self._bindings.get(name)
        if binding is None:
            return Fault(code="unknown_tool", message=f"there is no tool {name!r}; use one of those you are offered")
        if len(arguments) > MAX_ARGUMENTS:
            return Fault(code="bad_arguments", message=f"the arguments are longer than {MAX_ARGUMENTS} characters")
        return binding.bind(arguments)


def _is_ours(error: BaseException) -> bool:
    """Does this end more than the tool? A cancellation that nobody asked for, or an exit, is the tool's own doing."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


def _bounded(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text) - limit} of {len(text)} characters left out]"


def _why(error: pydantic.ValidationError) -> str:
    problems = [f"{'.'.join(str(part) for part in e['loc']) or 'arguments'}: {e['msg']}" for e in error.errors()[:5]]
    return "; ".join(problems)


def _without_titles(schema: Any) -> Any:
    """Pydantic's generated titles say nothing that the names do not, and cost tokens in every request."""
    if isinstance(schema, dict):
        return {
            key: {name: _without_titles(prop) for name, prop in value.items()}
            if key == "properties"
            else _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    return schema
