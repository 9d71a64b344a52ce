"""Requests of turns that an older release has started are composed again as that release sent them, byte for byte.

`golden/old_requests.json` holds the sessions and journals of such turns as the release before wrote them, which told no
dates and no bounds of arguments: for each agent below a task, a look, a question with its answer, and an end.
"""

import json
from typing import Any, ClassVar

from pydantic import Field

from longhouse.agents.template import LLMPolicy, PromptPack, Template, ToolPolicy
from longhouse.tools import BaseTool, ToolContext
from old_database import OLD_JOURNALS, brought
from server_helpers import Serving


class OldLookTool(BaseTool):
    """Looks."""

    inline: ClassVar[bool] = True

    limit: int | None = Field(default=None, ge=1, le=20, description="How many")
    words: list[str] = Field(default_factory=list, max_length=3)

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "looked"


class OldAskTool(BaseTool):
    """Asks."""

    inline: ClassVar[bool] = True
    asks: ClassVar[bool] = True

    question: str = Field(min_length=1, description="What")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return self.question


class OldEndTool(BaseTool):
    """Ends."""

    inline: ClassVar[bool] = True
    finishes: ClassVar[bool] = True

    answer: str

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        context.state, context.execution_result = "COMPLETED", self.answer
        return self.answer


TOOLS = (OldLookTool, OldAskTool, OldEndTool)


def template(name: str, agent_class: str, **prompts: str) -> Template:
    return Template(
        name=name,
        base_agent_class=agent_class,
        prompt_pack=PromptPack(system_prompt="Be brief.", **prompts),
        tool_policy=ToolPolicy(required=("oldlooktool", "oldasktool", "oldendtool"), allowlist=()),
        llm_policy=LLMPolicy(model="m"),
    )


CAST = [
    template("old_words", "ToolCallingAgent", clarification_response="On {current_date}: {clarifications}"),
    template("old_deaf", "ToolCallingAgent", initial_user_request="Work.", clarification_response="Answered."),
    template("old_structure", "SGRAgent"),
]


async def test_what_an_older_release_has_sent_is_composed_again_exactly(serving: Serving) -> None:
    kept = json.loads(OLD_JOURNALS.read_text())
    assert "form" not in "".join(row["body"] for row in kept["journal"] if row["kind"] == "Started")
    async with serving(templates=(), tools=TOOLS) as house:
        await house.app.catalog.templates.publish(CAST, by="somebody")
        await brought(house.db, kept)
        for row in kept["sessions"]:
            for step in (1, 2, 3):
                async with house.http.get(f"/v1/sessions/{row['id']}/steps/{step}/request") as response:
                    answer = await response.json()
                assert (response.status, answer["matches"]) == (200, True), (row["agent"], step, answer["request"])
