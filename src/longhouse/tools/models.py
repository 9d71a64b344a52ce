"""`sgr_agent_core.models` under the name that tools find it by when only their imports change."""

from longhouse.tools import AgentContext, AgentStatesEnum, SearchResult, SourceData

__all__ = ["AgentContext", "AgentStatesEnum", "SearchResult", "SourceData"]
