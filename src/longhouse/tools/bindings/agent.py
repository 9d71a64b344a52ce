"""Agents as tools: `agent.<template>`, and the tool that collects the result of a call with wait=false."""

from typing import Any, ClassVar

import pydantic
from pydantic import Field

from longhouse.agents.delegation import AgentTask
from longhouse.agents.tool import Tool, ToolType
from longhouse.journal.events import Fault
from longhouse.journal.roles import Role
from longhouse.tools.base import BaseTool
from longhouse.tools.bindings.base import Binding, Work, arguments_fault
from longhouse.tools.context import ToolContext


def agent_binding(tool: Tool) -> Binding:
    """An agent as a tool. The call does not run here: it opens a session, and the end of its turn is the outcome."""

    def bind(arguments: str) -> Work | Fault:
        try:
            AgentTask.model_validate_json(arguments)
        except pydantic.ValidationError as error:
            return arguments_fault(tool.name, error)
        return _not_performed

    return Binding(tool, bind)


async def _not_performed(context: ToolContext, config: Any) -> Any:
    raise RuntimeError("an agent's call is answered by the agent's session")


class CollectTool(BaseTool):
    """Wait for the result of an agent that was called with wait=false."""

    tool_role: ClassVar[Role] = "collects"
    tool_type: ClassVar[ToolType] = "meta"

    handle: str = Field(description="The handle that the call returned")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        raise RuntimeError("a collected result comes from the agent's session")
