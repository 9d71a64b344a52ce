"""Toolbox: resolves the tools that this process can run, and runs calls with timeout, rate limit and error handling."""

import asyncio
import hashlib
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import msgspec
import structlog

from longhouse.activity import ActivityCounts
from longhouse.agents.tool import Remembers, Tool
from longhouse.agents.tool_descriptor import SecurityOverlay, ToolDescriptor
from longhouse.errors import SetupError
from longhouse.journal.events import Fault, Outcome, Output
from longhouse.journal.json_text import object_of, value_of
from longhouse.journal.messages import clean
from longhouse.journal.session import Open, ReadSource, Session, Turn
from longhouse.store.catalog.catalog import Catalog
from longhouse.tools.arguments import apart
from longhouse.tools.base import BaseTool, entrypoint_of
from longhouse.tools.bindings.base import Binding, Blocking, Work, class_binding
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import MadeFile, Services, ToolContext, changes_of, context_of, is_blank, written
from longhouse.tools.execution import CallExecutor, CallTimedOut, obeyed
from longhouse.tools.outcomes import (
    CallError,
    NotBegun,
    ToolFailed,
    bounded,
    hidden_variable,
    is_in_doubt,
    text_of,
    traceback_of,
    unknown,
)

log = structlog.get_logger()

T = TypeVar("T")

MAX_ARGUMENTS: Final = 1_000_000
"""Maximum characters of arguments; longer ones are not parsed."""
MAX_CHECKED: Final = 2_000
"""Maximum characters of arguments that are kept as they were parsed, from the check of a call until it runs."""
MAX_REVISION: Final = 200
MOST_BOUND: Final = 2048
"""Maximum tool versions in the cache of bindings."""


@dataclass(frozen=True, slots=True)
class CallToRemember:
    """A call of a tool whose results are remembered."""

    about: Remembers
    key: str
    """The same for calls that ask for the same."""
    revision: str
    """The state of what it reads, before it was read."""


class CheckedCall(msgspec.Struct, frozen=True):
    """A call whose arguments fit."""

    binding: Binding
    arguments: str
    work: Work


class Result(msgspec.Struct, frozen=True):
    """The outcome of a call, with the context changes and files of the tool."""

    outcome: Outcome
    writes: dict[str, Any] = {}
    adds: dict[str, Any] = {}
    made: tuple[MadeFile, ...] = ()
    doubt: str = ""
    """Why it is unknown whether the call took effect; empty if it is known."""
    has_ended: bool = False
    """With a doubt: what ran the call has ended, so that it can take effect no more."""
    reading: CallToRemember | None = None
    """Set if the result is to be remembered."""
    by_memory: bool = False
    """The result is a remembered one: the tool did not run."""


class ToolSource(msgspec.Struct, frozen=True):
    """A server whose tools this process can run, as it is now."""

    name: str
    trouble: str
    """Why its tools cannot be called; empty while they can."""
    tools: frozenset[str]
    last_words: tuple[tuple[datetime, str], ...]
    """The last lines that it wrote, the newest last."""


Begin = Callable[[], Fault | None]
"""Called right before an effect that must not happen twice; returns why it must not begin, or None."""

Binder = Callable[[ToolDescriptor], Awaitable[Binding | None]]
"""Binds a catalog tool to what runs it; None if this process cannot run it."""


async def _binds_none(descriptor: ToolDescriptor) -> None:
    return None


class Toolbox:
    """The tools that this process can run: its classes, MCP tools, and tools bound from the catalog."""

    def __init__(
        self,
        classes: Iterable[type[BaseTool]],
        *,
        config: ToolConfig | None = None,
        configs: Mapping[str, ToolConfig] | None = None,
        services: Services | None = None,
        own_services: Mapping[str, Services] | None = None,
        catalog: Catalog | None = None,
        binder: Binder = _binds_none,
        activity: ActivityCounts | None = None,
        hide: Callable[[str], str] = str,
    ) -> None:
        self._classes = {entrypoint_of(cls): cls for cls in classes}
        self._named = {cls.tool_name: cls for cls in self._classes.values()}
        self._here: dict[str, Binding] = {cls.tool_name: class_binding(cls) for cls in self._classes.values()}
        self._bound: dict[tuple[str, int], Binding] = {}
        self.changes = 0
        """How often a tool was added, removed or loaded: as long as it stays, `resolve` finds what it found."""
        self._checked: dict[str, dict[str, CheckedCall]] = {}
        """Session -> its calls as they were checked, until they run or it rests."""
        self._made_configs: dict[tuple[str, int, str], ToolConfig] = {}
        """Template, its version, a tool -> what the tool is called with. Neither versions nor our settings change."""
        self._config = config or ToolConfig()
        self._configs = configs or {}
        """Configurations of agents that have their own."""
        self._services = services or Services()
        self._own_services = own_services or {}
        """Services of agents that have their own."""
        self.catalog = catalog
        if catalog:
            catalog.is_served = self._is_served
        self._binder = binder
        self.hide = hide
        """Takes secrets out of what is logged of tools."""
        self._activity = activity or ActivityCounts()
        self._execution = CallExecutor()
        self.sources: dict[str, Callable[[], ToolSource]] = {}
        """The servers that tools come from, by name."""

    @property
    def left_behind(self) -> int:
        return self._execution.left_behind

    @property
    def classes(self) -> list[type[BaseTool]]:
        return list(self._classes.values())

    def add(self, binding: Binding) -> None:
        """Adds a tool at run time, or replaces its description."""
        self.remove(binding.tool.name)
        self._here[binding.tool.name] = binding

    def remove(self, name: str) -> None:
        """Removes a tool."""
        self.changes += 1
        self._here.pop(name, None)
        for ref in [ref for ref in self._bound if ref[0] == name]:
            del self._bound[ref]

    def find(self, name: str) -> Tool | None:
        """The current description of a tool of this process."""
        binding = self._here.get(name)
        return binding.tool if binding else None

    async def resolve(self, name: str, version: int) -> Tool | None:
        """This version of a tool, ready to be called; None if it cannot be called here."""
        binding = self._bound.get((name, version)) or await self._load(name, version)
        if binding is None or binding.is_refused:
            return None
        if self.catalog is None:
            return binding.tool
        overlays = self.catalog.overlays
        if overlays.is_due:
            await overlays.refresh()
        overlay = overlays.of(name)
        return _overlaid(binding.tool, overlay) if overlay else binding.tool

    async def _is_served(self, descriptor: ToolDescriptor) -> bool:
        if descriptor.serve_over_mcp is not None or not descriptor.runtime_binding.python_entrypoint:
            return bool(descriptor.serve_over_mcp)
        tool = await self.resolve(descriptor.name, descriptor.version)
        return tool is not None and tool.is_served

    async def several(self, versions: Sequence[tuple[str, int]]) -> list[Tool]:
        """These versions of tools, ready to be called, without those that cannot be called here."""
        return [tool for name, version in versions if (tool := await self.resolve(name, version))]

    async def _load(self, name: str, version: int) -> Binding | None:
        descriptor = await self.catalog.tools.find(name, version) if self.catalog else None
        binding = await self._binding_of(descriptor) if descriptor else self._here.get(name)
        if binding:
            self.changes += 1
            _keep(self._bound, (name, version), binding)
            if binding.probe:
                _keep(self._bound, (binding.probe.tool.name, version), binding.probe)
        return binding

    async def active(self, name: str, owner: str) -> Tool | None:
        """The active version of a tool that this owner may see."""
        version = await self.catalog.tools.active(name, owner=owner) if self.catalog else 1
        return await self.resolve(name, version) if version is not None else None

    async def probe_of(self, tool: Tool, owner: str) -> Tool | None:
        """The tool that says whether a call of this one took effect: the one that it names, or its server's own."""
        if tool.probe:
            return await self.active(tool.probe, owner)
        binding = self._binding(tool.name, tool.version)
        return binding.probe.tool if binding and binding.probe else None

    def _services_of(self, session: Session) -> Services:
        return self._own_services.get(session.agent, self._services)

    def _is_disabled(self, name: str) -> bool:
        """Whether an operator has disabled the tool."""
        overlay = self.catalog.overlays.of(name) if self.catalog else None
        return overlay is not None and not overlay.enabled

    async def _binding_of(self, descriptor: ToolDescriptor) -> Binding | None:
        way = descriptor.runtime_binding
        if way.mcp:
            # The server's current tool, under the requested version.
            live = self._here.get(descriptor.name)
            return Binding(descriptor.tool, live.bind, is_elsewhere=True) if live else None
        # Code has no versions: a class of this name in this process is the tool, wherever it was imported from before.
        cls = self.class_of(descriptor)
        if way.python_entrypoint and cls and descriptor.isolation != "process":
            return class_binding(cls, descriptor)
        return await self._binder(descriptor)

    async def run_elsewhere(self, versions: Iterable[tuple[str, int]]) -> bool:
        """Whether calls of all these tools run in other processes: here, they are only waited for."""
        for name, version in versions:
            await self.resolve(name, version)
            binding = self._binding(name, version)
            if binding is None or not binding.is_elsewhere:
                return False
        return True

    def class_of(self, descriptor: ToolDescriptor) -> type[BaseTool] | None:
        """The class of this process that a descriptor means."""
        entrypoint = descriptor.runtime_binding.python_entrypoint
        return self._classes.get(entrypoint or "") or self._named.get(descriptor.name)

    async def check(self, tool: Tool, arguments: str, *, before: tuple[str, str] | None = None) -> Fault | None:
        """Why a call with these arguments cannot run. `before`: the session and the call that are to run next."""
        binding = self._binding(tool.name, tool.version)
        work = await _bound_to(binding, tool.name, arguments)
        if isinstance(work, Fault):
            return work
        fault = await binding.check(arguments) if binding and binding.check else None
        if before and binding and fault is None and len(arguments) <= MAX_CHECKED:
            session_id, call = before
            self._checked.setdefault(session_id, {})[call] = CheckedCall(binding, arguments, work)
        return fault

    def forget(self, session_id: str) -> None:
        """The session rests: what was checked and has not run is read anew."""
        self._checked.pop(session_id, None)

    async def perform(
        self,
        call: Open,
        session: Session,
        turn: Turn,
        *,
        memory_scope: str = "agent",
        remember: bool = False,
        begin: Begin = lambda: None,
    ) -> Result:
        """Runs one call; with `remember`, it may be answered from memory instead.

        It always returns an outcome, at the latest after the tool's timeout.
        """
        remember = remember and self._may_remember(call)
        reading = await self._reading(call, session, turn, memory_scope) if remember else None
        known = session.memory.reads.get(reading.key) if reading else None
        if reading and known and known.revision == reading.revision:
            return Result(Output(content=known.content), by_memory=True)
        began = time.monotonic()
        result = await self._run(call, session, turn, memory_scope=memory_scope, begin=begin)
        took, failed = time.monotonic() - began, isinstance(result.outcome, Fault)
        self._activity.tool_called(session.agent, session.owner, call.tool, took, failed=failed)
        return msgspec.structs.replace(result, reading=reading) if reading else result

    async def _run(self, call: Open, session: Session, turn: Turn, *, memory_scope: str, begin: Begin) -> Result:
        tool = await self.resolve(call.tool, call.version)
        binding = self._binding(call.tool, call.version)
        work = await self._work_of(call, session, binding)
        if isinstance(work, Fault) or tool is None or binding is None:
            return Result(work if isinstance(work, Fault) else _unknown(call.tool))
        config = await self._config_of(call.tool, session)
        if await self._is_switched_off(call, session):
            refused: Fault | None = Fault(
                code="switched_off", message=f"{call.tool} was switched off; nothing happened"
            )
        else:
            refused = await self.count_call(tool, session.owner)
        if not refused and "once" in (tool.effect, call.effect):
            refused = begin()
        if refused:
            return Result(refused)
        about = {"tool": call.tool, "session": session.id, "call": call.call}
        has_returned = False
        try:
            context = context_of(call, session, turn, self._services_of(session), memory_scope)
            before = None if is_blank(context, turn) else written(context)
            if isinstance(work, Blocking):
                work = partial(self._in_thread, tool.name, work)
            if binding.obeys:
                output = await obeyed(partial(work, context, config), tool.timeout)
            else:
                output = await self._execution.run(partial(work, context, config), tool.timeout, **about)
            has_returned = True
            if isinstance(output, Result):  # cut, cleaned and compared in a process of its own
                return output
            text = bounded(clean(text_of(output)), tool.max_output)
            return Result(Output(content=text), *changes_of(context, turn, before), tuple(context.made))
        except BaseException as error:
            # Any exception of a tool becomes an outcome for the agent; it never ends the run.
            if _is_ours(error):
                raise
            if isinstance(error, CallTimedOut):
                log.warning("tool_timed_out", message="a tool did not answer in time", seconds=tool.timeout, **about)
                return _late(tool, error)
            has_returned = has_returned or (isinstance(error, CallError) and error.has_returned)
            self._log_raised(error, about, has_returned=has_returned)
            is_known = not binding.is_elsewhere or isinstance(error, CallError | SetupError)
            in_doubt = has_returned or not is_known or is_in_doubt(error)
            return _failed(tool, error, in_doubt=in_doubt)

    def _log_raised(self, error: BaseException, about: Mapping[str, str], *, has_returned: bool) -> None:
        message = "a tool has run, and what it gave is no JSON" if has_returned else "a tool raised an exception"
        said = self.hide(traceback_of(error))
        if variable := hidden_variable(said):
            message = f"{variable} is set, but tools do not see it: name it in LONGHOUSE_TOOL_ENVIRONMENT"
        record = log.warning if said or has_returned else log.info
        more = {"exception": said} if said else {}
        record("tool_raised", message=message, error=self.hide(repr(error)), **more, **about)

    async def _is_switched_off(self, call: Open, session: Session) -> bool:
        """Has an operator disabled the tool, or deactivated it while the call waited for a person?"""
        if self._is_disabled(call.tool):
            return True
        if not call.has_waited or self.catalog is None:
            return False
        return await self.catalog.tools.active(call.tool, owner=session.owner) is None

    async def _work_of(self, call: Open, session: Session, binding: Binding | None) -> Work | Fault:
        """The work of a call, from its check where that was in this process and its tool is still the same."""
        checked = self._checked.get(session.id, {}).pop(call.call, None)
        if checked and checked.binding is binding and checked.arguments == call.arguments:
            return checked.work
        return await _bound_to(binding, call.tool, call.arguments)

    async def _config_of(self, tool: str, session: Session) -> ToolConfig:
        """What a tool of the session's agent is called with, in this turn."""
        version = session.turn.version if session.turn else 0
        known = self._made_configs.get((session.agent, version, tool))
        if known:
            return known
        config = self._configs.get(session.agent, self._config).for_tool(tool)
        template = await self.catalog.templates.find(session.agent, version) if self.catalog and version else None
        if template is None:
            return config
        return _keep(self._made_configs, (session.agent, version, tool), config.with_model(template.llm_policy))

    def _may_remember(self, call: Open) -> bool:
        """False if results of the call's tool are not remembered; True also for a tool that is not bound yet."""
        binding = self._bound.get((call.tool, call.version))
        return binding is None or bool(binding.tool.remembers)

    async def _reading(self, call: Open, session: Session, turn: Turn, memory_scope: str) -> CallToRemember | None:
        """What a call is remembered by; None if it is to run like any other.

        That is so if its tool is not remembered, or if a person, an operator or a rate limit has a say in it now.
        """
        tool = await self.resolve(call.tool, call.version)
        if tool is None or not tool.remembers or tool.needs_approval or not await self._is_open(tool, call):
            return None
        limit = tool.per_minute
        if limit and self.catalog and not await self.catalog.could_use(session.owner, tool.name, limit):
            return None
        context = context_of(call, session, turn, self._services_of(session), memory_scope)
        revision = await self._revision(tool, call, context)
        if revision is None:
            return None
        asked: list[Any] = [tool.ref, asked_for(tool, call.arguments)]
        if not session.is_own(turn):
            # A tool may read on behalf of a user: what it read for another user is kept apart.
            asked.append(context.user or "")
        key = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()[:32]
        return CallToRemember(tool.remembers, key, revision)

    async def outdated(self, session: Session) -> list[str]:
        """The keys of remembered calls whose tools now report another revision, or none."""
        turn, memory = session.turn, session.memory
        if turn is None:
            return []
        # The turn before may have been another user's; the next one may not be.
        own = msgspec.structs.replace(turn, user=None)
        checks = (self._is_current(source, session, own) for source in memory.sources.values())
        return [
            key for key, is_current in zip(memory.sources, await asyncio.gather(*checks), strict=True) if not is_current
        ]

    async def _is_current(self, source: ReadSource, session: Session, turn: Turn) -> bool:
        """Whether the call would read the same; a tool that must not run now is not asked."""
        name, _, version = source.tool.rpartition("@")
        if not version.isdecimal():
            return False
        tool = await self.resolve(name, int(version))
        call = Open(call="", tool=name, version=int(version), arguments=source.arguments, seq=0)
        if tool is None or not await self._is_open(tool, call):
            return True
        context = context_of(call, session, turn, self._services_of(session), "conversation")
        return await self._revision(tool, call, context) == source.revision

    async def _is_open(self, tool: Tool, call: Open) -> bool:
        return not self._is_disabled(tool.name) and await self.check(tool, call.arguments) is None

    async def _revision(self, tool: Tool, call: Open, context: ToolContext) -> str | None:
        """The state of what the call would read; None if the tool cannot tell."""
        binding = self._binding(call.tool, call.version)
        if binding is None or binding.revision is None:
            return ""
        try:
            async with asyncio.timeout(tool.timeout):
                return clean(str(await binding.revision(call.arguments, context)))[:MAX_REVISION]
        except BaseException as error:
            # Tools may raise anything; the call itself then runs, and tells what is wrong.
            if _is_ours(error):
                raise
            message = "a tool could not tell its revision: the call is neither answered from memory nor remembered"
            log.info("tool_revision_unknown", message=message, tool=tool.name, error=repr(error))
            return None

    async def _in_thread(self, name: str, work: Blocking, context: ToolContext, config: ToolConfig) -> Any:
        output = await self._execution.run_in_thread(name, lambda: work.call(context, config))
        return await output if inspect.isawaitable(output) else output

    async def count_call(self, tool: Tool, owner: str) -> Fault | None:
        """Counts the call against the rate limit of this minute; the fault if that is reached."""
        if tool.per_minute is None or self.catalog is None:
            return None
        if await self.catalog.may_use(owner, tool.name, tool.per_minute):
            return None
        return Fault(code="rate_limited", message=f"{tool.name} is used {tool.per_minute} times a minute at most; wait")

    def _binding(self, name: str, version: int) -> Binding | None:
        return self._bound.get((name, version)) or self._here.get(name)


async def _bound_to(binding: Binding | None, name: str, arguments: str) -> Work | Fault:
    if binding is None:
        return _unknown(name)
    if len(arguments) > MAX_ARGUMENTS:
        return Fault(code="bad_arguments", message=f"the arguments are longer than {MAX_ARGUMENTS} characters")
    return await apart(partial(binding.bind, arguments))


def asked_for(tool: Tool, arguments: str) -> dict[str, Any]:
    """The arguments of a call that are not defaults. Those of the same call are equal, in any order and with numbers in
    any spelling: 900, 900.0, 9e2, and "900" where the schema asks for a number."""
    described = tool.schema.get("properties")
    properties = described if isinstance(described, dict) else {}
    fields = {name: one for name, one in properties.items() if isinstance(one, dict)}
    asked = {}
    for name, value in (object_of(arguments) or {}).items():
        field = fields.get(name, {})
        is_text_of_number = isinstance(value, str) and field.get("type") in ("integer", "number")
        number = value_of(value) if is_text_of_number else None
        read = value if number is None else number
        if read != field.get("default"):
            asked[name] = read
    return asked


def _keep(cache: dict[Any, T], key: Any, value: T) -> T:
    """Caches a value, in place of the oldest one if there are too many."""
    if len(cache) >= MOST_BOUND:
        del cache[next(iter(cache))]
    cache[key] = value
    return value


@lru_cache(maxsize=MOST_BOUND)
def _overlaid(tool: Tool, overlay: SecurityOverlay) -> Tool:
    """The tool with the operator's security overlay; cached, since requests are built from it."""
    return overlay.over_tool(tool)


def _late(tool: Tool, late: CallTimedOut) -> Result:
    """The result after a timeout: the call had no effect, a repeatable one, or an unknown one."""
    if isinstance(late.error, NotBegun):
        message = f"{tool.name} was not begun within {tool.timeout:g} seconds: {late.error}; nothing happened"
        return Result(Fault(code="timeout", message=clean(message)[:2000]))
    message = f"{tool.name} did not answer within {tool.timeout:g} seconds"
    return _in_doubt(tool, message) if tool.effect == "once" else Result(Fault(code="timeout", message=message))


def _failed(tool: Tool, error: BaseException, *, in_doubt: bool) -> Result:
    words = clean(f"{type(error).__name__}: {error}")[:2000]
    if in_doubt and tool.effect == "once":
        if isinstance(error, CallError):
            return _in_doubt(tool, clean(str(error))[:2000], has_ended=error.has_ended)
        return _in_doubt(tool, words)
    if isinstance(error, ToolFailed):
        return Result(Fault(code=error.code, message=clean(str(error))[:2000]))
    return Result(Fault(code="tool_failed", message=words))


def _in_doubt(tool: Tool, why: str, *, has_ended: bool = False) -> Result:
    return Result(unknown(tool.name, why), doubt=why, has_ended=has_ended)


def _unknown(name: str) -> Fault:
    return Fault(code="unknown_tool", message=f"there is no tool {name!r}; use one of those you are offered")


def _is_ours(error: BaseException) -> bool:
    """Must the error be re-raised? A cancellation that we did not request, or a SystemExit, is the tool's own error."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)
