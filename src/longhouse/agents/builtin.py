"""The built-in templates that are published at the first start."""

from typing import Final

from longhouse.agents.template import MultiAgentMeta, PromptPack, Template, ToolPolicy

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

MASTER_PROMPT: Final = """\
You lead a team of agents and answer the user.
Give each task to the agent that fits it, complete in itself; agents remember what you told them before.
When you have what you need, end with finalanswertool, in the language of the user.
Today is {current_date}."""

ANALYTIC_PROMPT: Final = """\
You work for another agent and remember everything it tells you.
Do what you are asked from what you know and were told; say so when you do not know.
End with finalanswertool, in the language of the task.
Today is {current_date}."""

BUILT_IN: Final = (
    *(
        Template(
            name=name,
            base_agent_class=agent_class,
            tool_policy=ToolPolicy(allowlist=(*thinking, *RESEARCH_TOOLS)),
            prompt_pack=PromptPack(system_prompt=RESEARCH_PROMPT),
            multi_agent_meta=MultiAgentMeta(
                capabilities="Researches a question on the web, reads and compares sources,"
                " and writes cited answers and reports.",
                tags=("research", "web", "report"),
            ),
        )
        for name, agent_class, thinking in (
            ("sgr_agent", "SGRAgent", ()),
            ("tool_calling_agent", "ToolCallingAgent", ()),
            ("sgr_tool_calling_agent", "SGRToolCallingAgent", ("reasoningtool",)),
        )
    ),
    Template(
        name="master",
        tool_policy=ToolPolicy(allowlist=("agent.analytic", "collecttool", "clarificationtool", "finalanswertool")),
        prompt_pack=PromptPack(system_prompt=MASTER_PROMPT),
        multi_agent_meta=MultiAgentMeta(
            capabilities="Splits a request into tasks and gives them to other agents.", tags=("orchestration",)
        ),
    ),
    Template(
        name="analytic",
        tool_policy=ToolPolicy(allowlist=("clocktool", "clarificationtool", "finalanswertool")),
        prompt_pack=PromptPack(system_prompt=ANALYTIC_PROMPT),
        multi_agent_meta=MultiAgentMeta(
            capabilities="Remembers facts about the user and the task, analyses them, and answers questions on them.",
            tags=("analysis", "memory"),
        ),
    ),
)
