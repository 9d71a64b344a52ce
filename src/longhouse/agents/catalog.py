"""The templates that this process knows, each in its versions."""

from collections.abc import Iterable
from typing import Final

from longhouse.agents.template import PromptPack, Template

RESEARCH_PROMPT: Final = """\
You are a careful researcher who works step by step with tools.
Plan first when the request is not simple, then search, read what you found, and answer from it; never invent a source.
If the request cannot be understood without the user, ask with clarificationtool, once and to the point.
Cite sources by their numbers, as [1]. Long results belong in a report (createreporttool).
When you know enough, end with finalanswertool, in the language of the user.
Today is {current_date}."""

RESEARCH_TOOLS: Final = (
    "clarificationtool",
    "generateplantool",
    "adaptplantool",
    "websearchtool",
    "extractpagecontenttool",
    "createreporttool",
    "clocktool",
    "finalanswertool",
)

_research: Final = PromptPack(system_prompt=RESEARCH_PROMPT)

BUILT_IN: Final = (
    Template(name="sgr_agent", base_agent_class="SGRAgent", tools=RESEARCH_TOOLS, prompt_pack=_research),
    Template(
        name="tool_calling_agent", base_agent_class="ToolCallingAgent", tools=RESEARCH_TOOLS, prompt_pack=_research
    ),
    Template(
        name="sgr_tool_calling_agent",
        base_agent_class="SGRToolCallingAgent",
        tools=("reasoningtool", *RESEARCH_TOOLS),
        prompt_pack=_research,
    ),
)


class Catalog:
    def __init__(self, templates: Iterable[Template] = BUILT_IN) -> None:
        self._versions = {(template.name, template.version): template for template in templates}
        self._active: dict[str, Template] = {}
        for template in self._versions.values():
            if template.version >= self._active.get(template.name, template).version:
                self._active[template.name] = template

    def templates(self) -> list[Template]:
        return list(self._versions.values())

    def names(self) -> list[str]:
        return list(self._active)

    def active(self, name: str) -> Template | None:
        return self._active.get(name)

    def find(self, name: str, version: int | None = None) -> Template | None:
        """The named version, or the active one."""
        return self.active(name) if version is None else self._versions.get((name, version))
