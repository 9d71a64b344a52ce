"""Tool configuration: the `config` that every tool is called with."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from yarl import URL

from longhouse.agents.template import LLMPolicy

USUAL_MODEL: Final = "gpt-4o-mini"


@dataclass(frozen=True, slots=True)
class LLMConfig:
    """Model settings of the calling agent, without its API key or proxy."""

    model: str = USUAL_MODEL
    max_tokens: int | None = 8000
    temperature: float | None = 0.4
    base_url: str | None = None
    """None: the endpoint from the settings."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"tools cannot read the {name!r} of a model")


@dataclass(frozen=True, slots=True)
class SearchConfig:
    tavily_api_key: str = field(default="", repr=False)
    tavily_api_base_url: str = "https://api.tavily.com"
    max_searches: int = 4
    max_results: int = 10
    content_limit: int = 1500
    """Characters of a page that the agent sees; the full text is kept with the source."""


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    reports_dir: str | None = None
    """Folder where reports are also written as files; None: they are artifacts only."""
    mcp_context_limit: int = 15_000
    max_iterations: int = 20
    max_clarifications: int = 3
    logs_dir: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Additional fields for tools; each is also an attribute."""

    def __getattr__(self, name: str) -> Any:
        if name != "extra" and name in self.extra:
            return self.extra[name]
        raise AttributeError(f"there is no {name!r} among the execution settings")


@dataclass(frozen=True, slots=True)
class ToolConfig:
    llm: LLMConfig = field(default_factory=LLMConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Tool -> its settings in the files, which it is called with as keyword arguments."""

    def for_tool(self, name: str) -> "ToolConfig":
        """The configuration that a tool gets: settings of others may hold keys that are not its own."""
        if not self.tools:
            return self
        return replace(self, tools={name: self.tools[name]} if name in self.tools else {})

    def with_model(self, policy: LLMPolicy) -> "ToolConfig":
        """The same with the model of an agent that has this policy."""
        # Some endpoints take their API key in the query.
        base_url = str(URL(policy.base_url).with_query(None).with_fragment(None)) if policy.base_url else None
        llm = LLMConfig(policy.model or USUAL_MODEL, policy.max_tokens, policy.temperature, base_url)
        return replace(self, llm=llm)

    def settings_of(self, name: str) -> Mapping[str, Any]:
        return self.tools.get(name, {})
