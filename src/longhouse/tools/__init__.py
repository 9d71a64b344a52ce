"""Public names for tool authors (BaseTool, ToolContext, tool), and the names that tools of SGR-Agent Core import.

The tools that come with Longhouse, and its client of a search service, are loaded when they are first asked for: who
writes a tool rarely needs them.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from longhouse.tools.base import BaseTool, SystemBaseTool, ToolRegistry
from longhouse.tools.config import ExecutionConfig, LLMConfig, SearchConfig
from longhouse.tools.config import ToolConfig as AgentConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.context import ToolContext as AgentContext
from longhouse.tools.context import ToolContext as ResearchContext
from longhouse.tools.decorator import tool
from longhouse.tools.sgr.sources import SearchResult, SourceData
from longhouse.tools.sgr.states import AgentStatesEnum

if TYPE_CHECKING:
    from longhouse.tools.builtin.dialogue import ClarificationTool, FinalAnswerTool
    from longhouse.tools.builtin.planning import AdaptPlanTool, GeneratePlanTool, ReasoningTool
    from longhouse.tools.builtin.report import CreateReportTool
    from longhouse.tools.builtin.research import ExtractPageContentTool, WebSearchTool
    from longhouse.tools.sgr.tavily_service import TavilySearchService

__all__ = [
    "AdaptPlanTool",
    "AgentConfig",
    "AgentContext",
    "AgentStatesEnum",
    "BaseTool",
    "ClarificationTool",
    "CreateReportTool",
    "ExecutionConfig",
    "ExtractPageContentTool",
    "FinalAnswerTool",
    "GeneratePlanTool",
    "LLMConfig",
    "ReasoningTool",
    "ResearchContext",
    "SearchConfig",
    "SearchResult",
    "SourceData",
    "SystemBaseTool",
    "TavilySearchService",
    "ToolContext",
    "ToolRegistry",
    "WebSearchTool",
    "tool",
]

_BUILT_IN: Final = {
    "builtin.dialogue": ("ClarificationTool", "FinalAnswerTool"),
    "builtin.planning": ("AdaptPlanTool", "GeneratePlanTool", "ReasoningTool"),
    "builtin.report": ("CreateReportTool",),
    "builtin.research": ("ExtractPageContentTool", "WebSearchTool"),
    "sgr.tavily_service": ("TavilySearchService",),
}
"""The modules that define them."""


def __getattr__(name: str) -> Any:
    for module, names in _BUILT_IN.items():
        if name in names:
            return getattr(importlib.import_module(f"longhouse.tools.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
