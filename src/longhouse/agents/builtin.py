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

_prompts: Final = PromptPack(system_prompt=RESEARCH_PROMPT)
_meta: Final = MultiAgentMeta(
    capabilities="Researches a question on the web, reads and compares sources, and writes cited answers and reports.",
    tags=("research", "web", "report"),
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
    Template(
        name="sgr_agent",
        base_agent_class="SGRAgent",
        tool_policy=ToolPolicy(allowlist=RESEARCH_TOOLS),
        prompt_pack=_prompts,
        multi_agent_meta=_meta,
    ),
    Template(
        name="tool_calling_agent",
        base_agent_class="ToolCallingAgent",
        tool_policy=ToolPolicy(allowlist=RESEARCH_TOOLS),
        prompt_pack=_prompts,
        multi_agent_meta=_meta,
    ),
    Template(
        name="sgr_tool_calling_agent",
        base_agent_class="SGRToolCallingAgent",
        tool_policy=ToolPolicy(allowlist=("reasoningtool", *RESEARCH_TOOLS)),
        prompt_pack=_prompts,
        multi_agent_meta=_meta,
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
