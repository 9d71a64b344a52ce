"""Agents: templates, strategies, tool selection and rules. Exports the two names that a custom strategy needs."""

from longhouse.agents.strategies.base import AgentRegistry, BaseAgent

__all__ = ["AgentRegistry", "BaseAgent"]
