"""Toolbox: resolves the tools that this process can run, and runs calls with timeout, rate limit and error handling."""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import structlog

from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import SecurityOverlay, ToolDescriptor
from longhouse.journal.events import Fault, Outcome, Output
from longhouse.journal.messages import clean
from longhouse.journal.session import Open, Session, Turn
from longhouse.store.catalog.catalog import Catalog
from longhouse.tools.attempt import Attempts, Late
from longhouse.tools.base import BaseTool, entrypoint_of
from longhouse.tools.bindings.base import Binding, Blocking, ClassBinding, RefusedBinding, Work
from longhouse.tools.bounded import bounded
from longhouse.tools.config import ToolConfig, with_model
from longhouse.tools.context import MadeFile, Services, ToolContext, changes, context_of, written
from longhouse.tools.mcp.listed import publish_served
from longhouse.tools.threads import Threads
from longhouse.tools.uncertain import CallError, NotBegun, unknown

log = structlog.get_logger()

MAX_ARGUMENTS: Final = 1_000_000
"""Maximum characters of arguments; longer ones are not parsed."""
MOST_BOUND: Final = 2048
"""Maximum tool versions in the cache of bindings."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a call, with the context changes and files of the tool."""

    outcome: Outcome
    writes: dict[str, Any] = field(default_factory=dict)
    adds: dict[str, Any] = field(default_factory=dict)
    made: tuple[MadeFile, ...] = ()
    doubt: str = ""
    """Why it is unknown whether the call took effect; empty if it is known."""


Begin = Callable[[], Fault | None]
"""Called right before an effect that must not happen twice; returns why it must not begin, or None."""

Binder = Callable[[ToolDescriptor], Binding | None]
"""Binds a catalog tool to what runs it; None if this process cannot run it."""


class _Overlaid(NamedTuple):
    """Cache entry: a tool with its security overlay applied."""

    of: Tool
    overlay: SecurityOverlay
    tool: Tool


class Toolbox:
    """The tools that this process can run: its classes, MCP tools, and tools bound from the catalog."""

    def __init__(
        self,
        classes: Iterable[type[BaseTool]],
        *,
        config: ToolConfig | None = None,
        configs: Mapping[str, ToolConfig] | None = None,
        services: Services | None = None,
        catalog: Catalog | None = None,
        binder: Binder = lambda descriptor: None,
    ) -> None:
        self._classes = {entrypoint_of(cls): cls for cls in classes}
        self._named = {cls.tool_name: cls for cls in self._classes.values()}
        self._here: dict[str, Binding] = {cls.tool_name: ClassBinding(cls) for cls in self._classes.values()}
        self._bound: dict[tuple[str, int], Binding] = {}
        self._overlaid: dict[tuple[str, int], _Overlaid] = {}
        self._config = config or ToolConfig()
        self._configs = configs or {}
        """Configurations of agents that have their own."""
        self._services = services or Services()
        self._catalog = catalog
        self._binder = binder
        self._attempts, self._threads = Attempts(), Threads()

    @property
    def left_behind(self) -> int:
        """Number of calls that still run after their timeout, in tasks or threads."""
        return self._attempts.left + self._threads.hanging

    @property
    def classes(self) -> list[type[BaseTool]]:
        return list(self._classes.values())

    def add(self, binding: Binding) -> None:
        """Adds a tool at run time, or replaces its description."""
        self.remove(binding.tool.name)
        self._here[binding.tool.name] = binding

    async def announce(self, server: str, bindings: Sequence[Binding]) -> None:
        """Adds the tools of an MCP server and publishes them to the catalog, so that search finds them."""
        if self._catalog:
            await publish_served(self._catalog, server, [binding.tool for binding in bindings])
        for binding in bindings:
            self.add(binding)

    def remove(self, name: str) -> None:
        """Removes a tool."""
        self._here.pop(name, None)
        for ref in [ref for ref in self._bound if ref[0] == name]:
            del self._bound[ref]
            self._overlaid.pop(ref, None)

    def find(self, name: str) -> Tool | None:
        """The current description of a tool of this process."""
        binding = self._here.get(name)
        return binding.tool if binding else None

    def get(self, name: str) -> Tool:
        return self._here[name].tool

    async def resolve(self, name: str, version: int) -> Tool | None:
        """This version of a tool, ready to be called; None if it cannot be called here."""
        binding = self._bound.get((name, version))
        if binding is None:
            descriptor = await self._catalog.tools.find(name, version) if self._catalog else None
            binding = self._binding_of(descriptor) if descriptor else self._here.get(name)
            if binding is None:
                return None
            if len(self._bound) >= MOST_BOUND:
                oldest = next(iter(self._bound))
                del self._bound[oldest]
                self._overlaid.pop(oldest, None)
            self._bound[name, version] = binding
        if self._catalog and self._catalog.overlays.is_due:
            await self._catalog.overlays.refresh()
        return None if isinstance(binding, RefusedBinding) else self._decided(binding.tool)

    def _decided(self, tool: Tool) -> Tool:
        """The tool with the operator's security overlay; cached, since requests are built from it."""
        overlay = self._catalog.overlays.of(tool.name) if self._catalog else None
        if overlay is None:
            return tool
        kept = self._overlaid.get((tool.name, tool.version))
        if kept is None or (kept.of, kept.overlay) != (tool, overlay):
            kept = self._overlaid[tool.name, tool.version] = _Overlaid(tool, overlay, overlay.over_tool(tool))
        return kept.tool

    def _binding_of(self, descriptor: ToolDescriptor) -> Binding | None:
        way = descriptor.runtime_binding
        if way.mcp:
            return self._of_server(descriptor)
        # Code has no versions: a class of this name in this process is the tool, wherever it was imported from before.
        cls = self._classes.get(way.python_entrypoint or "") or self._named.get(descriptor.name)
        if way.python_entrypoint and cls:
            return ClassBinding(cls, descriptor)
        return self._binder(descriptor)

    def _of_server(self, descriptor: ToolDescriptor) -> Binding | None:
        """The server's current tool, under the requested version."""
        live = self._here.get(descriptor.name)
        return Versioned(live, descriptor.tool) if live else None

    def check(self, tool: Tool, arguments: str) -> Fault | None:
        """Why a call with these arguments cannot run."""
        work = self._bind(tool.name, tool.version, arguments)
        return work if isinstance(work, Fault) else None

    async def perform(
        self, call: Open, session: Session, turn: Turn, *, memory_scope: str = "agent", begin: Begin = lambda: None
    ) -> Result:
        """Runs one call. It always returns an outcome, at the latest after the tool's timeout."""
        tool = await self.resolve(call.tool, call.version)
        work = self._bind(call.tool, call.version, call.arguments)
        if isinstance(work, Fault) or tool is None:
            return Result(work if isinstance(work, Fault) else _unknown(call.tool))
        if self._is_off(call.tool):
            return Result(Fault(code="switched_off", message=f"{call.tool} was switched off; nothing happened"))
        config = await with_model(self._configs.get(session.agent, self._config), session, self._catalog)
        refused = await self.is_full(tool, session.owner)
        if not refused and "once" in (tool.effect, call.effect):
            refused = begin()
        if refused:
            return Result(refused)
        about = {"tool": call.tool, "session": session.id, "call": call.call}
        try:
            context = context_of(call, session, turn, self._services, memory_scope)
            before = written(context)
            output = await self._attempts.run(
                lambda: self._done(tool.name, work, context, config), tool.timeout, **about
            )
            writes, adds = changes(before, written(context))
            content = bounded(clean(str(output)), tool.max_output)
            return Result(Output(content=content), writes, adds, tuple(context.made))
        except BaseException as error:
            # Any exception of a tool becomes an outcome for the agent; it never ends the run.
            if _is_ours(error):
                raise
            if isinstance(error, Late):
                return _late(tool, error)
            log.info("tool_raised", message="a tool raised an exception", error=repr(error), **about)
            return _failed(tool, error)

    async def _done(self, name: str, work: Work, context: ToolContext, config: ToolConfig) -> Any:
        if not isinstance(work, Blocking):
            return await work(context, config)
        output = await self._threads.run(name, lambda: work.call(context, config))
        return await output if inspect.isawaitable(output) else output

    def _is_off(self, name: str) -> bool:
        """Has an operator disabled the tool since the call was recorded?"""
        over = self._catalog.overlays.of(name) if self._catalog else None
        return over is not None and not over.enabled

    async def is_full(self, tool: Tool, owner: str) -> Fault | None:
        """The rate-limit fault if the limit of this minute is reached; otherwise the call is counted."""
        if tool.per_minute is None or self._catalog is None:
            return None
        if await self._catalog.may_use(owner, tool.name, tool.per_minute):
            return None
        return Fault(code="rate_limited", message=f"{tool.name} is used {tool.per_minute} times a minute at most; wait")

    def _bind(self, name: str, version: int, arguments: str) -> Work | Fault:
        binding = self._bound.get((name, version)) or self._here.get(name)
        if binding is None:
            return _unknown(name)
        if len(arguments) > MAX_ARGUMENTS:
            return Fault(code="bad_arguments", message=f"the arguments are longer than {MAX_ARGUMENTS} characters")
        return binding.bind(arguments)


@dataclass(frozen=True, slots=True)
class Versioned:
    """A binding under the description that the agent saw."""

    binding: Binding
    tool: Tool

    def bind(self, arguments: str) -> Work | Fault:
        return self.binding.bind(arguments)


def _late(tool: Tool, late: Late) -> Result:
    """The result after a timeout: the call had no effect, a repeatable one, or an unknown one."""
    if isinstance(late.error, NotBegun):
        message = f"{tool.name} was not begun within {tool.timeout:g} seconds: {late.error}; nothing happened"
        return Result(Fault(code="timeout", message=clean(message)[:2000]))
    told = f"{tool.name} did not answer within {tool.timeout:g} seconds"
    return _in_doubt(tool, told) if tool.effect == "once" else Result(Fault(code="timeout", message=told))


def _failed(tool: Tool, error: BaseException) -> Result:
    if isinstance(error, CallError) and error.in_doubt and tool.effect == "once":
        return _in_doubt(tool, clean(str(error))[:2000])
    return Result(Fault(code="tool_failed", message=clean(f"{type(error).__name__}: {error}")[:2000]))


def _in_doubt(tool: Tool, why: str) -> Result:
    return Result(unknown(tool.name, why), doubt=why)


def _unknown(name: str) -> Fault:
    return Fault(code="unknown_tool", message=f"there is no tool {name!r}; use one of those you are offered")


def _is_ours(error: BaseException) -> bool:
    """Must the error be re-raised? A cancellation that we did not request, or a SystemExit, is the tool's own error."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
