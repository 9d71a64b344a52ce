"""The tool with which an agent searches for more tools."""

from typing import Any, ClassVar, Final

from pydantic import Field

from longhouse.agents.tool import ToolType
from longhouse.tools.base import BaseTool
from longhouse.tools.context import ToolContext

FOUND: Final = 5


class FindToolsTool(BaseTool):
    """Find more tools when those you have do not fit. What is found can be called from the next step on."""

    tool_type: ClassVar[ToolType] = "meta"

    query: str = Field(min_length=1, max_length=2000, description="What the tool should do, in a few words")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        if context.services.find_tools is None or context.session is None:
            return "Error: there is no search for tools here"
        found = await context.services.find_tools(context.session, self.query, FOUND)
        context.found_tools = [*context.found_tools, *(tool.name for tool in found)]
        return "\n".join(f"{tool.name}: {tool.description_short}" for tool in found) or "No tool fits; go another way."
