"""What can be done. Those who write tools need three names of it."""

from longhouse.tools.context import ToolContext
from longhouse.tools.decorator import tool
from longhouse.tools.toolbox import BaseTool

__all__ = ["BaseTool", "ToolContext", "tool"]
