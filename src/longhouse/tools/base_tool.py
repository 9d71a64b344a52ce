"""`sgr_agent_core.base_tool` under the name that tools find it by when only their imports change."""

from longhouse.tools.base import BaseTool, SystemBaseTool

__all__ = ["BaseTool", "SystemBaseTool"]
