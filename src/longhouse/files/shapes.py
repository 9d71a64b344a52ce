"""The sections of a file that are not part of a template: what each may hold."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import ConfigDict, Field

_STRICT: Final = ConfigDict(extra="forbid")

Address = Annotated[str, Field(pattern=r"^https?://[^\s@\\]+$", max_length=2000)]
_Text = Annotated[str, Field(min_length=1, max_length=4000)]
_Count = Annotated[int, Field(ge=1, le=10_000_000)]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The model that thinks for every agent without one of its own."""

    __pydantic_config__ = _STRICT

    base_url: Address | None = None
    api_key: _Text | None = field(default=None, repr=False)
    api_key_ref: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")] | None = None
    model: Annotated[str, Field(min_length=1, max_length=160)] | None = None
    proxy: Address | None = None


@dataclass(frozen=True, slots=True)
class Searching:
    """The service that searches for all agents."""

    __pydantic_config__ = _STRICT

    tavily_api_key: _Text | None = field(default=None, repr=False)
    tavily_api_base_url: Address | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """How much of what is found an agent gets."""

    __pydantic_config__ = _STRICT

    max_results: Annotated[int, Field(ge=1, le=100)] | None = None
    content_limit: _Count | None = None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the work of an agent leaves its traces; fields that are not known here go to tools as they are."""

    __pydantic_config__ = _STRICT

    mcp_context_limit: _Count | None = None
    logs_dir: _Text | None = None
    reports_dir: _Text | None = None
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prompts:
    __pydantic_config__ = _STRICT

    system_prompt_str: str | None = None
    system_prompt_file: _Text | None = None
    initial_user_request_str: str | None = None
    initial_user_request_file: _Text | None = None
    clarification_response_str: str | None = None
    clarification_response_file: _Text | None = None


@dataclass(frozen=True, slots=True)
class McpSection:
    __pydantic_config__ = _STRICT

    mcpServers: dict[str, dict[str, Any]] = field(default_factory=dict)  # noqa: N815 - the name that all MCP clients use
