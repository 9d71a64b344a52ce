"""What tools are set up with: the `config` that every tool is called with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class SearchConfig:
    tavily_api_key: str = field(default="", repr=False)
    tavily_api_base_url: str = "https://api.tavily.com"
    max_searches: int = 4
    max_results: int = 10
    content_limit: int = 1500
    """Characters of a page that reach the agent; the whole is kept with the source."""


@dataclass(frozen=True, slots=True)
class ExecutionConfig:
    reports_dir: str | None = None
    """Where reports are also written as files; None: they are artifacts only."""
    mcp_context_limit: int = 15_000
    max_iterations: int = 20
    max_clarifications: int = 3
    logs_dir: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Fields that only tools know; each is also an attribute."""

    def __getattr__(self, name: str) -> Any:
        if name != "extra" and name in self.extra:
            return self.extra[name]
        raise AttributeError(f"there is no {name!r} among the execution settings")


@dataclass(frozen=True, slots=True)
class ToolConfig:
    search: SearchConfig = field(default_factory=SearchConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
