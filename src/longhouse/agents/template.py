"""A versioned description of an agent: its prompts, its model, its limits, its tools."""

import re
from dataclasses import dataclass, field
from typing import Final, Literal

from longhouse.journal.events import Limits

SYSTEM_PROMPT: Final = """\
You are a careful assistant that works step by step with tools.
In every step call one or more of the tools you are offered; never invent what a tool could tell you.
If the request cannot be understood without the user, ask with clarificationtool, once and to the point.
When you know enough, end with finalanswertool, in the language of the user.
Today is {current_date}."""

MemoryScope = Literal["conversation", "agent", "owner"]

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class PromptPack:
    system_prompt: str = SYSTEM_PROMPT
    initial_user_request: str = "{task}"
    clarification_response: str = "{clarifications}"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What the endpoint can do; where it can less, a strategy falls back to the next best form."""

    forced_tool_choice: bool = True
    parallel_tool_calls: bool = True
    json_schema: bool = True


@dataclass(frozen=True, slots=True)
class Streaming:
    """What a client sees beside the answer."""

    reasoning: bool = True
    tool_activity: Literal["x_agent", "content", "tool_calls"] = "x_agent"
    """`content` and `tool_calls` are what SGR-Agent Core did; some clients refuse tool calls that are not theirs."""


@dataclass(frozen=True, slots=True)
class LLMPolicy:
    model: str | None = None
    """None: the model of the settings."""
    temperature: float | None = 0.4
    max_tokens: int | None = 8000
    context_tokens: int = 120_000
    """Estimated tokens of messages that a request shows at most."""
    can: Abilities = field(default_factory=Abilities)
    streaming: Streaming = field(default_factory=Streaming)


@dataclass(frozen=True, slots=True)
class ExecutionPolicy:
    max_iterations: int = 20
    max_clarifications: int = 3
    max_searches: int = 4
    time_budget: float = 1800.0
    tool_budget: int | None = None
    token_budget: int | None = None

    @property
    def limits(self) -> Limits:
        return Limits(
            max_iterations=self.max_iterations,
            max_clarifications=self.max_clarifications,
            time_budget=self.time_budget,
            max_searches=self.max_searches,
            tool_budget=self.tool_budget,
            token_budget=self.token_budget,
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
    memory_scope: MemoryScope = "agent"
    """Whose files the memory tools see: this conversation's, this agent's with this user, or all of the owner's."""
    allow_client_system: bool = True
    """May a client add its own system text to a turn?"""

    @property
    def ref(self) -> str:
        return f"{self.name}@{self.version}"


def render(text: str, **values: str) -> str:
    """`text` with its known placeholders filled in one pass: what is filled in is never read as a template itself."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
