"""Public names for tool authors (BaseTool, ToolContext, tool), and the names that tools of SGR-Agent Core import."""

from longhouse.tools.base import BaseTool, ToolRegistry
from longhouse.tools.config import ExecutionConfig, LLMConfig, SearchConfig
from longhouse.tools.config import ToolConfig as AgentConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.context import ToolContext as AgentContext
from longhouse.tools.context import ToolContext as ResearchContext
from longhouse.tools.decorator import tool
from longhouse.tools.sgr.sources import SearchResult, SourceData
from longhouse.tools.sgr.states import AgentStatesEnum
from longhouse.tools.sgr.tavily_service import TavilySearchService

__all__ = [
    "AgentConfig",
    "AgentContext",
    "AgentStatesEnum",
    "BaseTool",
    "ExecutionConfig",
    "LLMConfig",
    "ResearchContext",
    "SearchConfig",
    "SearchResult",
    "SourceData",
    "TavilySearchService",
    "ToolContext",
    "ToolRegistry",
    "tool",
]
