"""What to do next. Those who write a way of thinking need two names of it."""

from longhouse.agents.strategies.base import AgentRegistry, BaseAgent

__all__ = ["AgentRegistry", "BaseAgent"]
