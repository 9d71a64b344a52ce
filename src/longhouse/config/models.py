"""Pydantic models of config.yaml and agents.yaml.

Most sections extend the policies of a template, so that files and the catalog have the same fields.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from longhouse.agents.template import Address, ExecutionPolicy, LLMPolicy, Template
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor, one_binding

_STRICT: Final = ConfigDict(extra="forbid")

_Text = Annotated[str, Field(min_length=1, max_length=4000)]
_Count = Annotated[int, Field(ge=1, le=10_000_000)]


def _refuse(given: Any) -> Any:
    raise ValueError("is set by the catalog")


_CATALOG: Final = BeforeValidator(_refuse)


@dataclass(frozen=True, slots=True)
class LLM(LLMPolicy):
    """The model endpoint; its key stays in this process."""

    api_key: _Text | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SearchSection:
    """The search service of all agents, or of one, and how much of its results an agent gets."""

    __pydantic_config__ = _STRICT

    tavily_api_key: _Text | None = field(default=None, repr=False)
    tavily_api_base_url: Address | None = None
    max_searches: Annotated[int, Field(ge=0, le=10_000)] = 4
    max_results: Annotated[int, Field(ge=1, le=100)] | None = None
    content_limit: _Count | None = None


@dataclass(frozen=True, slots=True)
class Execution(ExecutionPolicy):
    """Budgets and output folders of an agent; unknown fields are passed to tools."""

    __pydantic_config__ = ConfigDict(extra="ignore")

    mcp_context_limit: _Count | None = None
    logs_dir: _Text | None = None
    reports_dir: _Text | None = None


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts as inline text or as files next to the YAML file; the text wins."""

    __pydantic_config__ = _STRICT

    system_prompt_str: str | None = None
    system_prompt_file: _Text | None = None
    initial_user_request_str: str | None = None
    initial_user_request_file: _Text | None = None
    clarification_response_str: str | None = None
    clarification_response_file: _Text | None = None


@dataclass(frozen=True, slots=True)
class Mcp:
    __pydantic_config__ = _STRICT

    mcpServers: dict[str, dict[str, Any]] = field(default_factory=dict)  # noqa: N815 - the name that all MCP clients use


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSection(Template):
    """One agent: the fields of a template, and the sections of config.yaml for this agent alone."""

    name: str = ""
    version: Annotated[int, _CATALOG] = 1
    base_agent_class: str = ""
    llm_policy: LLMPolicy = field(default_factory=LLMPolicy)
    base_class: _Text | None = None
    llm: LLM | None = None
    search: SearchSection | None = None
    execution: Execution | None = None
    prompts: Prompts | None = None
    mcp: Mcp | None = None
    tools: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSection(ToolDescriptor):
    """One tool: the fields of its descriptor, without what its name, its class or its MCP server says."""

    name: str = ""
    version: Annotated[int, _CATALOG] = 1
    description_short: Annotated[str, Field(max_length=4000)] = ""
    runtime_binding: Annotated[RuntimeBinding, AfterValidator(one_binding)] | None = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class AgentsFile:
    __pydantic_config__ = _STRICT

    agents: dict[str, AgentSection | None] | None = None
    tools: dict[str, ToolSection | None] | None = None
    tool_packages: list[_Text] | None = None
    """The packages that tools and agent classes may come from; the folder of the file is searched for them, too."""
    mcp: Mcp | None = None


@dataclass(frozen=True, slots=True)
class ConfigFile(AgentsFile):
    llm: LLM | None = None
    search: SearchSection | None = None
    execution: Execution | None = None
    prompts: Prompts | None = None
