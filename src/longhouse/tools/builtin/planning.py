"""Reasoning and planning tools. They write only to the context."""

from typing import Any, ClassVar

from pydantic import Field

from longhouse.journal.roles import Role
from longhouse.tools.base import SystemBaseTool
from longhouse.tools.context import ToolContext


class ReasoningTool(SystemBaseTool):
    """Think before acting: say where the work stands and what comes next. Keep every text short."""

    tool_role: ClassVar[Role] = "reasons"
    inline: ClassVar[bool] = True
    closing: ClassVar[bool] = True

    reasoning_steps: list[str] = Field(description="Step-by-step thinking, two or three short sentences")
    current_situation: str = Field(description="What is known and what is missing now, in two or three sentences")
    plan_status: str = Field(description="How far the plan is, in one sentence")
    enough_data: bool = Field(default=False, description="Is there enough data to answer?")
    remaining_steps: list[str] = Field(description="The next one to three steps, each a short action")
    task_completed: bool = Field(description="Is the task done?")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        context.current_step_reasoning = self.model_dump(mode="json")
        return self.model_dump_json()


class GeneratePlanTool(SystemBaseTool):
    """Make a plan: split a complex request into steps that can be done one by one."""

    tool_role: ClassVar[Role] = "plans"
    inline: ClassVar[bool] = True

    reasoning: str = Field(default="", description="Why this approach")
    research_goal: str = Field(description="What is to be found out")
    planned_steps: list[str] = Field(min_length=1, description="Three or four steps, in order")
    search_strategies: list[str] = Field(default_factory=list, description="Two or three ways to look for information")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return self.model_dump_json(exclude={"reasoning"})


class AdaptPlanTool(SystemBaseTool):
    """Change the plan when what was found does not fit it."""

    inline: ClassVar[bool] = True

    reasoning: str = Field(default="", description="What was found that changes the plan")
    original_goal: str = Field(description="What was to be found out at first")
    new_goal: str = Field(description="What is to be found out now")
    plan_changes: list[str] = Field(min_length=1, description="One to three changes of the plan")
    next_steps: list[str] = Field(min_length=1, description="The steps that remain, in order")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return self.model_dump_json(exclude={"reasoning"})
