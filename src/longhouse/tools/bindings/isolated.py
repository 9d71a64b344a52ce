"""Binding of Python entrypoints that run in processes of their own; their classes are not imported here."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import pydantic
import structlog

from longhouse.agents.adapters import adapter_of
from longhouse.agents.entrypoints import EntrypointError
from longhouse.agents.tool import Tool
from longhouse.agents.tool_descriptor import ToolDescriptor
from longhouse.journal.events import Fault, Output
from longhouse.journal.messages import clean
from longhouse.tools.bindings import python
from longhouse.tools.bindings.base import Binding, Work
from longhouse.tools.bindings.python import WeakerThanClass, check, fault_of, refused
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ContextChanges, MadeFile, ToolContext, kept_of
from longhouse.tools.isolation import messages
from longhouse.tools.isolation.pool import MEMORY, ProcessPool
from longhouse.tools.outcomes import CallError, NotBegun, ToolFailed, bounded
from longhouse.tools.toolbox import Result
from longhouse.validation_messages import explain, path_text

log = structlog.get_logger()

CUT_NOTE: Final = 100
"""Characters that a result may have beyond its maximum: it was cut in its process, and says so."""
_FIELDS: Final = {one.name: one.type for one in msgspec.structs.fields(ContextChanges)}


def own_descriptor(described: messages.Described) -> ToolDescriptor:
    """The descriptor of the class itself."""
    try:
        return adapter_of(ToolDescriptor).validate_python(described.descriptor)
    except pydantic.ValidationError as error:
        where, problem = explain(error, model=ToolDescriptor)[0]
        raise EntrypointError(f"its class does not describe a tool: {path_text(where)}: {problem}") from None


def known(entrypoint: str, *, processes: ProcessPool) -> ToolDescriptor | None:
    """How a class describes itself that was imported before, here or in a tool process."""
    described = processes.known(entrypoint)
    return own_descriptor(described) if described else python.described(entrypoint)


async def described(descriptor: ToolDescriptor, packages: Sequence[str], processes: ProcessPool) -> Tool:
    """The tool as its class and its descriptor say; EntrypointError if it cannot be used."""
    isolated = _Isolated(descriptor, packages, processes)
    await isolated.describe()
    return isolated.binding.tool


async def bound(descriptor: ToolDescriptor, packages: Sequence[str], processes: ProcessPool) -> Binding:
    """The binding of an entrypoint. If its class cannot be described, every call tries again and returns the fault."""
    isolated = _Isolated(descriptor, packages, processes)
    try:
        await isolated.describe()
    except WeakerThanClass as error:
        return refused(descriptor, error)
    except EntrypointError as error:
        message = "a tool cannot be used as it is: each call tries again"
        log.warning("tool_unusable", message=message, tool=descriptor.ref, reason=str(error))
    return isolated.binding


class _Isolated:
    def __init__(self, descriptor: ToolDescriptor, packages: Sequence[str], processes: ProcessPool) -> None:
        self.descriptor = descriptor
        self.packages = packages
        self.processes = processes
        self.binding = Binding(descriptor.tool, self.bind, check=self.check, is_elsewhere=True)
        self.described: messages.Described | None = None

    @property
    def entrypoint(self) -> str:
        return self.descriptor.runtime_binding.python_entrypoint or ""

    @property
    def limits(self) -> messages.ProcessLimits:
        said = self.descriptor
        return messages.ProcessLimits(said.max_memory or MEMORY, said.cpu_time or self.binding.tool.timeout)

    async def describe(self) -> messages.Described:
        """The class as it describes itself; from then on the tool is what both say, the stricter of the two."""
        if self.described:
            return self.described
        if problem := check(self.entrypoint, self.packages):
            raise EntrypointError(problem)
        described = await self.processes.describe(self.entrypoint, self.descriptor.name, self.limits)
        own = own_descriptor(described)
        if found := self.descriptor.weakened(own):
            raise WeakerThanClass(": ".join(found))
        tool = self.descriptor.bound_to(own)
        tool = replace(
            tool,
            inline=described.inline,
            finishes=described.finishes,
            closing=described.closing,
            asks=described.asks,
            role=tool.role or described.role,
        )
        self.binding.tool = tool
        self.binding.revision = self.revision if tool.remembers else None
        self.described = described
        return described

    def bind(self, arguments: str) -> Work | Fault:
        async def work(context: ToolContext, config: ToolConfig) -> Result:
            return await self.call(arguments, context, config)

        return work

    async def check(self, arguments: str) -> Fault | None:
        name, limits = self.descriptor.name, self.limits
        try:
            await self.describe()
            request = messages.Check(entrypoint=self.entrypoint, tool=name, arguments=arguments, limits=limits)
            problem = await self.processes.check(request, name, self.binding.tool.timeout)
        except EntrypointError as error:
            return fault_of(self.descriptor, error)
        except CallError as error:
            return Fault(code="tool_failed", message=f"{name} could not be called: {error}"[:2000])
        return Fault(code="bad_arguments", message=problem) if problem else None

    async def call(self, arguments: str, context: ToolContext, config: ToolConfig) -> Result:
        name = self.descriptor.name
        try:
            described = await self.describe()
        except EntrypointError as error:
            raise ToolFailed(fault_of(self.descriptor, error).message) from None
        request = messages.RunTool(
            entrypoint=self.entrypoint,
            digest=described.digest,
            tool=name,
            arguments=arguments,
            context=_sent(context),
            config=config,
            max_output=self.binding.tool.max_output,
            limits=self.limits,
        )
        about = {"session": context.session_id, "call": context.call}
        try:
            reply = await self.processes.ask(request, name, lambda: _session(context), **about)
        except NotBegun:
            raise
        except CallError as error:
            raise ToolFailed(f"{name} failed: {error}", in_doubt=error.in_doubt, has_ended=error.has_ended) from None
        return _performed(self.descriptor, self.binding.tool.max_output, reply)

    async def revision(self, arguments: str, context: ToolContext) -> str:
        request = messages.Revision(
            entrypoint=self.entrypoint, arguments=arguments, context=_sent(context), limits=self.limits
        )
        reply = await self.processes.ask(request, self.descriptor.name, lambda: _session(context))
        outcome = _performed(self.descriptor, self.binding.tool.max_output, reply).outcome
        assert isinstance(outcome, Output)
        return outcome.content


def _performed(descriptor: ToolDescriptor, most: int, reply: messages.Reply) -> Result:
    name = descriptor.name
    match reply:
        case messages.ToolReturned():
            made = tuple(MadeFile(clean(one.path), one.content, clean(one.media_type)) for one in reply.made)
            text = clean(reply.text)
            text = text if len(text) <= most + CUT_NOTE else bounded(text, most)
            return Result(Output(content=text), _kept(name, reply.writes), _kept(name, reply.adds), made)
        case messages.ArgumentsChecked():
            raise ToolFailed(reply.problem, code="bad_arguments")
        case messages.ToolRefused():
            raise ToolFailed(fault_of(descriptor, EntrypointError(reply.reason)).message)
        case messages.Raised(unbegun=True):
            raise NotBegun(reply.says)
        case messages.Raised(out_of_memory=True):
            raise ToolFailed(f"{name} failed: {reply.says}", in_doubt=True)
        case messages.Raised():
            failed = ToolFailed(reply.says, in_doubt=reply.in_doubt)
            failed.traceback, failed.has_returned = clean(reply.traceback), reply.has_returned
            raise failed
        case _:
            raise ToolFailed(f"{name} failed: its process gave an answer that was not asked for", in_doubt=True)


def _kept(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The changes of the context, if they can be kept: a tool that writes to our pipe may say anything."""
    try:
        for field, value in changes.items():
            msgspec.convert(value, _FIELDS[field])
    except (KeyError, msgspec.ValidationError):
        problem = f"{name} failed: its process said something about the context that cannot be kept"
        raise ToolFailed(problem, in_doubt=True) from None
    return changes


def _sent(context: ToolContext) -> messages.CallContext:
    names = (name for name in messages.CallContext.__struct_fields__ if name != "kept")
    kept = kept_of(context.session) if context.session else {}
    return messages.CallContext(**{name: getattr(context, name) for name in names}, kept=kept)


def _session(context: ToolContext) -> bytes | None:
    return msgspec.json.encode(context.session) if context.session else None
