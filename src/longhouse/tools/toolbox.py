"""BaseTool, what a tool is given, and how a call becomes an outcome."""

import asyncio
import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec
import pydantic
import structlog

from longhouse.agents.tool import Tool
from longhouse.journal.events import Effect, Fault, Outcome, Output
from longhouse.journal.messages import clean
from longhouse.journal.session import Open, Session

log = structlog.get_logger()

MAX_ARGUMENTS: Final = 1_000_000
"""Characters of arguments that we read at all."""


@dataclass(slots=True)
class ToolContext:
    """What a tool sees of its session. What it writes here is journaled with its outcome."""

    session_id: str
    conversation_id: str
    call: str
    key: str
    """The idempotency key of this call: the same over all attempts."""
    state: str = "RESEARCHING"
    iteration: int = 0
    searches_used: int = 0
    clarifications_used: int = 0
    searches: list[Any] = field(default_factory=list)
    sources: dict[str, Any] = field(default_factory=dict)
    execution_result: str | None = None
    current_step_reasoning: Any = None


class Written(msgspec.Struct, frozen=True):
    """What a tool may write to its context, in types that a journal can carry."""

    state: str
    searches_used: int
    searches: list[Any]
    sources: dict[str, Any]
    execution_result: str | None
    current_step_reasoning: Any


class BaseTool(pydantic.BaseModel):
    """The contract of a tool: its fields are the arguments, its docstring the description, `__call__` the work."""

    tool_name: ClassVar[str] = ""
    description: ClassVar[str] = ""
    effect: ClassVar[Effect] = "read"
    timeout: ClassVar[float] = 60.0
    max_output: ClassVar[int] = 40_000
    inline: ClassVar[bool] = False
    finishes: ClassVar[bool] = False
    asks: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tool_name = cls.__dict__.get("tool_name") or cls.__name__.lower()
        cls.description = cls.__dict__.get("description") or inspect.cleandoc(cls.__doc__ or "")

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
            asks=cls.asks,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a call and what the tool wrote to its context."""

    outcome: Outcome
    writes: dict[str, Any] = field(default_factory=dict)


class Toolbox:
    """The tools that this process can run, by name."""

    def __init__(self, classes: Iterable[type[BaseTool]]) -> None:
        self._classes = {cls.tool_name: cls for cls in classes}
        self._tools = {name: cls.described() for name, cls in self._classes.items()}

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def check(self, name: str, arguments: str) -> Fault | None:
        """Why a call with these arguments cannot be made, in words that the model can act on."""
        parsed = self._parse(name, arguments)
        return parsed if isinstance(parsed, Fault) else None

    async def perform(self, call: Open, session: Session) -> Result:
        """Runs one call. Whatever the tool does, an outcome comes back."""
        parsed = self._parse(call.tool, call.arguments)
        if isinstance(parsed, Fault):
            return Result(parsed)
        tool, context = self._tools[call.tool], _context(call, session)
        before, deadline = _written(context), asyncio.timeout(tool.timeout)
        try:
            async with deadline:
                output = await _run(parsed, context)
            after = _written(context)
            writes = {name: value for name, value in after.items() if value != before[name]}
            return Result(Output(content=_bounded(clean(str(output)), tool.max_output)), writes)
        except BaseException as error:
            # A raising tool is an outcome for the agent, never a dead run, whatever it raises.
            if _is_ours(error):
                raise
            if isinstance(error, TimeoutError) and deadline.expired():
                late = f"{call.tool} did not answer within {tool.timeout:g} seconds"
                return Result(Fault(code="timeout", message=late))
            log.info("a tool raised", tool=call.tool, session=session.id, call=call.call, error=repr(error))
            return Result(Fault(code="tool_failed", message=clean(f"{type(error).__name__}: {error}")[:2000]))

    def _parse(self, name: str, arguments: str) -> BaseTool | Fault:
        cls = self._classes.get(name)
        if cls is None:
            return Fault(code="unknown_tool", message=f"there is no tool {name!r}; use one of those you are offered")
        if len(arguments) > MAX_ARGUMENTS:
            return Fault(code="bad_arguments", message=f"the arguments are longer than {MAX_ARGUMENTS} characters")
        try:
            return cls.model_validate_json(arguments or "{}")
        except pydantic.ValidationError as error:
            return Fault(code="bad_arguments", message=f"the arguments of {name} do not fit: {_why(error)}")


async def _run(tool: BaseTool, context: ToolContext) -> Any:
    if inspect.iscoroutinefunction(type(tool).__call__):
        return await tool(context, None)
    # A blocking tool gets a thread, so that the event loop and the heartbeat go on.
    output = await asyncio.to_thread(tool, context, None)
    return await output if inspect.isawaitable(output) else output


def _is_ours(error: BaseException) -> bool:
    """Does this end more than the tool? A cancellation that nobody asked for, or an exit, is the tool's own doing."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt | GeneratorExit)


def _context(call: Open, session: Session) -> ToolContext:
    turn = session.turn
    assert turn is not None
    return ToolContext(
        session_id=session.id,
        conversation_id=session.conversation,
        call=call.call,
        key=f"{session.id}:{call.call}",
        iteration=turn.iteration,
        searches_used=turn.searches_used,
        clarifications_used=turn.clarifications_used,
        # Copies: a session is never edited, neither by us nor by a tool.
        searches=msgspec.to_builtins(session.context.get("searches", [])),
        sources=msgspec.to_builtins(session.context.get("sources", {})),
        current_step_reasoning=msgspec.to_builtins(session.context.get("current_step_reasoning")),
    )


def _written(context: ToolContext) -> dict[str, Any]:
    """The context as a journal will give it back."""
    values = {name: getattr(context, name) for name in Written.__struct_fields__}
    plain = msgspec.to_builtins(values, str_keys=True, enc_hook=_plain)
    return msgspec.structs.asdict(msgspec.convert(_cleaned(plain), Written))


def _plain(value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"a tool cannot keep a {type(value).__name__} in its context")


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value


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
