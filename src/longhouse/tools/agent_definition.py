"""`sgr_agent_core.agent_definition` under the name that tools find it by when only their imports change."""

from longhouse.tools import AgentConfig, ExecutionConfig, LLMConfig

__all__ = ["AgentConfig", "ExecutionConfig", "LLMConfig"]
