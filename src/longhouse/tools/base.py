"""BaseTool: the contract of a tool, and the registry of all tool classes."""

import inspect
from collections.abc import Coroutine
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import pydantic

from longhouse.agents.registry import Registry
from longhouse.agents.tool import Isolation, Remembers, Tool, ToolType
from longhouse.agents.tool_descriptor import REMEMBERS_READS, RuntimeBinding, ToolDescriptor
from longhouse.errors import SetupError
from longhouse.journal.events import Effect
from longhouse.journal.roles import Role
from longhouse.tools.context import ToolContext


class ToolRegistry(Registry[type["BaseTool"]]):
    """All tool classes; a class is added when it is defined."""

    _modules = (
        "longhouse.tools.bindings.agent",
        "longhouse.tools.builtin.clock",
        "longhouse.tools.builtin.dialogue",
        "longhouse.tools.builtin.documents",
        "longhouse.tools.builtin.find_tools",
        "longhouse.tools.builtin.letter",
        "longhouse.tools.builtin.memory_files",
        "longhouse.tools.builtin.planning",
        "longhouse.tools.builtin.report",
        "longhouse.tools.builtin.research",
    )


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
    tool_type: ClassVar[ToolType] = "domain"
    tool_tags: ClassVar[tuple[str, ...]] = ()
    tool_role: ClassVar[Role] = ""
    needs_approval: ClassVar[bool] = False
    remembers: ClassVar[Remembers] = ""
    probe: ClassVar[str] = ""
    isolation: ClassVar[Isolation | None] = None
    serve_over_mcp: ClassVar[bool] = False
    isSystemTool: ClassVar[bool] = False  # noqa: N815 - tools of SGR-Agent Core set it, and the next one
    config_model: ClassVar[type[pydantic.BaseModel] | None] = None

    def __init_subclass__(cls, *, is_base: bool = False, **kwargs: Any) -> None:
        """`is_base`: a class that others are derived from, and no tool itself."""
        super().__init_subclass__(**kwargs)
        if is_base:
            return
        cls.tool_name = cls.__dict__.get("tool_name") or cls.__name__.lower()
        # Not inherited: a subclass with another name may use its arguments differently.
        cls.tool_role = cls.__dict__.get("tool_role", "")
        cls.description = cls.__dict__.get("description") or inspect.cleandoc(cls.__doc__ or "")
        if cls.remembers and cls.effect != "read":
            raise SetupError(f"{cls.__name__} says effect {cls.effect!r}: {REMEMBERS_READS}.")
        ToolRegistry.register(cls, name=cls.tool_name)

    def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> Coroutine[Any, Any, str] | str:
        """Overridden with `async def`, or with a blocking `def`, which runs in a thread."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it does: define `async def __call__`")

    async def revision(self, context: ToolContext) -> str:
        """The state of what the tool reads: when it changes, a remembered result is not given again."""
        return ""

    @classmethod
    def described(cls, descriptor: ToolDescriptor | None = None) -> Tool:
        """The tool as agents see it; a catalog descriptor may override it, but never make it less careful."""
        own = cls.descriptor()
        tool = (descriptor or own).bound_to(own)
        role = tool.role or cls.tool_role
        return replace(tool, inline=cls.inline, finishes=cls.finishes, closing=cls.closing, asks=cls.asks, role=role)

    @classmethod
    def descriptor(cls) -> ToolDescriptor:
        """The catalog descriptor of the class."""
        return ToolDescriptor(
            name=cls.tool_name,
            type=cls.tool_type,
            tags=cls.tool_tags,
            description_short=cls.description,
            input_schema=_schema_of(cls),
            runtime_binding=RuntimeBinding(python_entrypoint=entrypoint_of(cls)),
            effect=cls.effect,
            timeout=cls.timeout,
            max_output=cls.max_output,
            needs_approval=cls.needs_approval,
            remembers=cls.remembers,
            probe=cls.probe,
            isolation=cls.isolation,
            serve_over_mcp=cls.serve_over_mcp or None,
        )


class SystemBaseTool(BaseTool, is_base=True):
    """The base of tools of SGR-Agent Core that belong to the agent itself, such as asking and answering."""

    tool_type: ClassVar[ToolType] = "system"
    isSystemTool: ClassVar[bool] = True  # noqa: N815


@cache
def _schema_of(cls: type[BaseTool]) -> dict[str, Any]:
    """Cached: the fields of a class do not change."""
    schema: dict[str, Any] = _without_titles(cls.model_json_schema())
    schema.pop("description", None)
    return schema


def entrypoint_of(cls: type[BaseTool]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _without_titles(schema: Any) -> Any:
    """Pydantic's generated titles only repeat the names, and cost tokens in every request."""
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
