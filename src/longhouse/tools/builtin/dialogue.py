"""Dialogue tools: ask the user a question, give the final answer."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from longhouse.journal.roles import Role
from longhouse.tools.base import SystemBaseTool
from longhouse.tools.context import ToolContext


class ClarificationTool(SystemBaseTool):
    """Ask the user when the request cannot be understood or done without an answer from them."""

    tool_role: ClassVar[Role] = "asks"
    inline: ClassVar[bool] = True
    asks: ClassVar[bool] = True

    reasoning: str = Field(default="", description="Why the answer is needed")
    unclear_terms: list[str] = Field(default_factory=list, description="Words of the request that are unclear")
    assumptions: list[str] = Field(default_factory=list, description="What you would assume without an answer")
    questions: list[str] = Field(min_length=1, description="The questions, each short and specific")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "\n".join(self.questions)


def _read_steps(given: Any) -> list[str]:
    steps = [given] if isinstance(given, str) else given
    return [step for step in steps if isinstance(step, str)] if isinstance(steps, list) else []


# The answer may already be streaming to the client: the other fields are parsed leniently.
_Reasoning = Annotated[str, BeforeValidator(lambda given: given if isinstance(given, str) else "")]
_Steps = Annotated[list[str], BeforeValidator(_read_steps)]
_Status = Annotated[
    Literal["completed", "failed"],
    BeforeValidator(lambda given: "failed" if str(given).strip().lower().startswith("fail") else "completed"),
]


class FinalAnswerTool(SystemBaseTool):
    """Give the final answer to the user's request and end the work on it."""

    tool_role: ClassVar[Role] = "finishes"
    inline: ClassVar[bool] = True
    finishes: ClassVar[bool] = True

    reasoning: _Reasoning = Field(default="", description="Why the work is done")
    completed_steps: _Steps = Field(default_factory=list, description="What was done")
    answer: str = Field(description="The complete answer, in the language of the user")
    status: _Status = Field(default="completed", description="Was the request fulfilled?")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        context.state = self.status.upper()
        context.execution_result = self.answer
        return self.answer
