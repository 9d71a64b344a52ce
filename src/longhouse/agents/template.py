"""A versioned description of an agent: its prompts, its model, its limits, its tools."""

import re
from dataclasses import dataclass, field
from typing import Final

from longhouse.journal.events import Limits

SYSTEM_PROMPT: Final = """\
You are a careful assistant that works step by step with tools.
In every step call one or more of the tools you are offered; never invent what a tool could tell you.
If the request cannot be understood without the user, ask with clarificationtool, once and to the point.
When you know enough, end with finalanswertool, in the language of the user.
Today is {current_date}."""

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class PromptPack:
    system_prompt: str = SYSTEM_PROMPT
    initial_user_request: str = "{task}"
    clarification_response: str = "{clarifications}"


@dataclass(frozen=True, slots=True)
class LLMPolicy:
    model: str | None = None
    """None: the model of the settings."""
    temperature: float | None = 0.4
    max_tokens: int | None = 8000


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    max_iterations: int = 20
    max_clarifications: int = 3
    time_budget: float = 1800.0

    @property
    def limits(self) -> Limits:
        return Limits(
            max_iterations=self.max_iterations,
            max_clarifications=self.max_clarifications,
            time_budget=self.time_budget,
        )


@dataclass(frozen=True, slots=True)
class Template:
    name: str
    tools: tuple[str, ...]
    version: int = 1
    base_agent_class: str = "ToolCallingAgent"
    prompt_pack: PromptPack = field(default_factory=PromptPack)
    llm_policy: LLMPolicy = field(default_factory=LLMPolicy)
    execution_policy: ExecutionPolicy = field(default_factory=ExecutionPolicy)
    allow_client_system: bool = True
    """May a client add its own system text to a turn?"""

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"


def render(text: str, **values: str) -> str:
    """`text` with its known placeholders filled in one pass: what is filled in is never read as a template itself."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
