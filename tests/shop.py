"""A shop whose agent asks, weighs and has others asked: what drafts are tried on."""

from dataclasses import replace
from typing import Any, ClassVar

from delegating_server import agent, answer, ask, name_of, question, results, task_of
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import PromptPack, Template
from longhouse.journal.messages import System
from longhouse.models.scripted import Say, call, calls
from longhouse.tools import BaseTool, ToolContext


class WeighTool(BaseTool):
    """Weigh something."""

    tool_name: ClassVar[str] = "weigh"
    what: str
    weighed: ClassVar[list[str]] = []

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.weighed.append(self.what)
        return f"{self.what} weighs {len(self.weighed)} kg"


TOOLS = ("weigh", "clocktool", "clarificationtool", "finalanswertool")
SHOP = (agent("shop", calls=["ann"], tools=TOOLS), agent("ann", calls=[], tools=TOOLS))


def drafted(words: str) -> Template:
    """Another version of the shop, with these words in its prompt."""
    return replace(SHOP[0], prompt_pack=PromptPack(system_prompt=f"I am shop.\n{words}"))


def play(body: Body) -> Say:
    if name_of(body) == "ann":
        return answer("from ann")
    system, told = body.messages[0], results(body)
    assert isinstance(system, System)
    words = str(system.content)
    if "How many?" not in str(body.messages):
        return question("How many?")
    if not told:
        return calls(call("weigh", what="pears" if "pears" in words else "apples"), ask("ann", "price"))
    if "longer" in words and len(told) == 2:
        return call("weigh", what="apples")
    known = "the same" if "longer" in words else " ".join(told)
    return answer(f"{'Dear customer: ' if 'polite' in words else ''}{task_of(body)[-3:]} {known}")
