"""Working memory for agents of PydanticAI: `Agent(model, capabilities=[PydanticAIMemory()])`."""

from typing import Any

from longhouse.memory.tool_results import remember_call
from longhouse.memory.working import AgentMemory

try:
    from pydantic_ai import RunContext, ToolReturn
    from pydantic_ai.capabilities import AbstractCapability, ValidatedToolArgs
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.tools import AgentDepsT, ToolDefinition
except ImportError as error:
    raise ImportError(
        "The memory adapter for PydanticAI needs its package: pip install 'pydantic-ai-slim>=2.66'."
    ) from error


class PydanticAIMemory(AbstractCapability[AgentDepsT]):  # type: ignore[misc]  # its base is not read, see pyproject.toml
    """The memory of one conversation: fed by the tools of a run, shown to the model in its instructions.

    The instructions are made anew for every request to the model, so a later step sees what an earlier one read.
    """

    def __init__(self, memory: AgentMemory | None = None) -> None:
        self.memory = AgentMemory() if memory is None else memory

    def get_instructions(self) -> Any:
        # A function: a text would be read once, when the agent is built.
        return self._instructions

    async def before_run(self, ctx: RunContext[AgentDepsT]) -> None:
        prompt = [ctx.prompt] if isinstance(ctx.prompt, str) else ctx.prompt or []
        self.memory.current_query = "\n".join(part for part in prompt if isinstance(part, str))

    async def after_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        result: Any,
    ) -> Any:
        returned = result.return_value if isinstance(result, ToolReturn) else result
        remember_call(self.memory, call.tool_name, args, returned)
        return result

    def reset(self) -> None:
        """Forgets the query and its chunks; outlines stay."""
        self.memory.clear_query_context()

    def reset_all(self) -> None:
        """Forgets everything."""
        self.memory.reset()

    def _instructions(self) -> str | None:
        parts = [self.memory.outlines_hint(), self.memory.get_memory_context()]
        return "\n\n".join(part for part in parts if part) or None
