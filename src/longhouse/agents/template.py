"""Agent templates: the versioned configuration of an agent with prompts, model, limits, tools and rules."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from pydantic import AfterValidator, Field, ValidationError, WrapValidator

from longhouse.agents import conditions
from longhouse.agents.tool import RiskLevel, ToolType
from longhouse.agents.versioned import Owner, SecretName, Strict, Versioned
from longhouse.journal.events import Cleanable, Collected, Limits
from longhouse.journal.json_text import DEEPEST, is_deep

SYSTEM_PROMPT: Final = """\
You are a careful assistant that works step by step with tools.
In every step call one or more of the tools you are offered; never invent what a tool could tell you.
If the request cannot be understood without the user, ask with clarificationtool, once and to the point.
When you know enough, end with finalanswertool, in the language of the user.
Today is {current_date}."""

TASK: Final = "{task}"
CLARIFICATIONS: Final = "{clarifications}"
DATE: Final = "{current_date}"
AVAILABLE_TOOLS: Final = "{available_tools}"

OWN_PARAMETERS: Final = re.compile(
    "messages|model|stream|stream_options|tools|tool_choice|parallel_tool_calls|response_format|temperature|top_p"
    "|max_tokens|seed|stop|reasoning_effort|n|functions|function_call"
)
"""Parameters of a request that `llm_policy.extra` may not have."""
LARGEST_EXTRA: Final = 8_192
"""Bytes of it as JSON."""

MemoryScope = Literal["conversation", "agent", "owner"]
SelectionStrategy = Literal["static", "retrieval_per_step", "retrieval_sticky"]

AUTO: Final = "auto"
MOST_OFFERED: Final = 128
"""Tools that a template may require and name one by one, where all of them are offered."""

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")

Address = Annotated[str, Field(pattern=r"^https?://[^\s@\\]+$", max_length=2000)]
_Proxy = Annotated[str, Field(pattern=r"^(https?|socks5h?)://[^\s@\\]+$", max_length=2000)]
_Prompt = Annotated[str, Field(max_length=100_000)]
_Name = Annotated[str, Field(min_length=1, max_length=160)]


def _condition(text: str) -> str:
    conditions.parse(text)
    return text


def _cap(value: Any, validated: Callable[[Any], Any]) -> Any:
    try:
        return validated(value)
    except ValidationError:
        raise ValueError(f"should be {AUTO}, or a whole number from 1 to {MOST_OFFERED}") from None


_Cap = Annotated[Annotated[int, Field(ge=1, le=MOST_OFFERED)] | Literal["auto"], WrapValidator(_cap)]
When = Annotated[str, AfterValidator(_condition)]


def _beside(extra: dict[str, Any]) -> dict[str, Any]:
    if taken := ", ".join(filter(OWN_PARAMETERS.fullmatch, extra)):
        raise ValueError(f"cannot set {taken}: Longhouse sends that itself, or cannot read what it changes")
    if is_deep(extra) or len(msgspec.json.encode(extra)) > LARGEST_EXTRA:
        raise ValueError(f"should have {LARGEST_EXTRA:,} bytes of JSON at most, in {DEEPEST} levels")
    return extra


@dataclass(frozen=True, slots=True)
class PromptPack(Strict):
    """The texts that a request begins with."""

    system_prompt: _Prompt = SYSTEM_PROMPT
    initial_user_request: _Prompt = TASK
    clarification_response: _Prompt = CLARIFICATIONS

    @property
    def gaps(self) -> dict[str, str]:
        """Prompts that lack their required placeholder, each with that placeholder."""
        needed = {"initial_user_request": TASK, "clarification_response": CLARIFICATIONS}
        return {field: placeholder for field, placeholder in needed.items() if placeholder not in getattr(self, field)}

    @property
    def names_the_date(self) -> bool:
        return DATE in self.system_prompt or DATE in self.initial_user_request or DATE in self.clarification_response


@dataclass(frozen=True, slots=True)
class Abilities(Strict):
    """The capabilities of the endpoint; without one, a strategy falls back to the next best form."""

    forced_tool_choice: bool = True
    parallel_tool_calls: bool = True
    json_schema: bool = True


@dataclass(frozen=True, slots=True)
class Streaming(Strict):
    """What a client sees beside the answer."""

    reasoning: bool = True
    tool_activity: Literal["x_agent", "content", "tool_calls"] = "x_agent"
    """`content` and `tool_calls` are as in SGR-Agent Core; some clients refuse tool calls that are not theirs."""


@dataclass(frozen=True, slots=True)
class LLMPolicy(Strict):
    """Which model is asked, where, and how."""

    base_url: Address | None = None
    """None: the endpoint from the settings."""
    api_key_ref: SecretName | None = None
    """Without it, an endpoint other than that of the settings gets no key."""
    proxy: _Proxy | None = None
    model: _Name | None = None
    """None: the model from the settings."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 0.4
    max_tokens: Annotated[int, Field(ge=1)] | None = 8000
    effort: Annotated[str, Field(pattern=r"^\w+$", max_length=32)] | None = None
    """How much a model that thinks should think: `reasoning_effort` of the request."""
    extra: Annotated[dict[str, Any], AfterValidator(_beside)] = field(default_factory=dict)
    """Other parameters of the endpoint, which stand in the request beside those of Longhouse."""
    context_tokens: Annotated[int, Field(ge=500)] = 120_000
    """Maximum estimated tokens of the messages of a request."""
    can: Abilities = field(default_factory=Abilities)
    streaming: Streaming = field(default_factory=Streaming)


def _reach(policy: LLMPolicy) -> LLMPolicy:
    if policy.base_url is None and (policy.api_key_ref or policy.proxy):
        raise ValueError("api_key_ref and proxy belong to a base_url; the endpoint of the settings has its own")
    return policy


@dataclass(frozen=True, slots=True)
class ExecutionPolicy(Strict):
    """How long a turn may go on, and what ends it."""

    max_iterations: Annotated[int, Field(ge=1, le=10_000)] = 20
    max_clarifications: Annotated[int, Field(ge=0, le=1000)] = 3
    max_searches: Annotated[int, Field(ge=0, le=10_000)] = 4
    time_budget: Annotated[float, Field(gt=0)] = 1800.0
    tool_budget: Annotated[int, Field(ge=0)] | None = None
    token_budget: Annotated[int, Field(ge=0)] | None = None
    stop_conditions: tuple[When, ...] = ()
    """If one of them holds, only tools that finish the turn are open."""
    max_depth: Annotated[int, Field(ge=0, le=32)] = 8
    """This agent may delegate only at a depth below this, counted from the user (the root agent has depth 0)."""
    must_delegate: bool = False
    """An answer without a delegation to another agent is rejected, once."""
    approve_in_chat: bool = True
    """Whether the session's user may approve or deny a waiting call by a clear yes or no in the chat."""
    unknown: Literal["ask", "tell"] = "ask"
    """If it is unknown whether a call took effect: ask a person, or tell the agent."""
    max_running: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Sessions of this template that run at once in all processes; the others wait. None: any number."""

    @property
    def limits(self) -> Limits:
        return msgspec.convert(self, Limits, from_attributes=True)


@dataclass(frozen=True, slots=True)
class ToolPolicy(Strict):
    """Which tools the agent may use, and how the offered ones are selected."""

    required: tuple[_Name, ...] = ()
    """Offered in every step."""
    allowlist: tuple[_Name, ...] | None = None
    """The only other permitted tools; `<server>.*` matches all tools of a server. None: every tool of the catalog."""
    denylist: tuple[_Name, ...] = ()
    tool_types: tuple[ToolType, ...] = ()
    """Empty: every type."""
    tags: tuple[_Name, ...] = ()
    """Only tools with any of these tags; empty: all tools."""
    max_risk_level: RiskLevel = "high"
    max_tools_in_prompt: _Cap = AUTO
    """`auto`: all permitted tools, where they are few; else those named one by one, and the best of the others."""
    selection_strategy: SelectionStrategy = "retrieval_sticky"

    @property
    def named(self) -> tuple[str, ...]:
        """The tools that the policy names, the required ones first."""
        return tuple(dict.fromkeys((*self.required, *(self.allowlist or ()))))

    @property
    def whole(self) -> tuple[str, ...]:
        """Those that `auto` offers all together: required ones, and those named one by one."""
        return tuple([name for name in self.named if name in self.required or not name.endswith(".*")])

    @property
    def names_each(self) -> bool:
        """Whether it names all its tools one by one."""
        return self.allowlist is not None and not any(name.endswith(".*") for name in self.named)

    @property
    def cap(self) -> int | None:
        """The number of offered tools that the policy sets; None with `auto`."""
        return self.max_tools_in_prompt if isinstance(self.max_tools_in_prompt, int) else None


@dataclass(frozen=True, slots=True)
class Availability(Strict):
    """The only open tools, or closed tools, while a condition holds. Tools that finish a turn are never closed."""

    when: When
    keep_only: tuple[_Name, ...] | None = None
    exclude: tuple[_Name, ...] = ()


@dataclass(frozen=True, slots=True)
class StageRule(Strict):
    """The stage of a turn while a condition holds."""

    # Not `{1,64}`: the expression for 64 letters of all scripts takes 7 MB.
    stage: Annotated[str, Field(pattern=r"^\w+$", max_length=64)]
    when: When | None = None
    """None: always."""


DEFAULT_AVAILABILITY: Final = (
    Availability(
        when="iteration >= max_iterations",
        keep_only=("finalanswertool", "createreporttool", "reasoningtool"),
    ),
    Availability(when="searches_used >= max_searches", exclude=("websearchtool", "extractpagecontenttool")),
    Availability(when="clarifications_used >= max_clarifications", exclude=("clarificationtool",)),
)


@dataclass(frozen=True, slots=True)
class Rules(Strict):
    """Which tools are open, and which stage a turn is in."""

    availability: tuple[Availability, ...] = DEFAULT_AVAILABILITY
    """Added to the default rules: a template that adds a rule does not intend to remove the limits."""
    replace: bool = False
    """Only the rules listed here apply, without the default rules."""
    stages: tuple[StageRule, ...] = (
        StageRule(stage="synthesize", when="enough_data"),
        StageRule(stage="research", when="plan_made or sources_found > 0"),
        StageRule(stage="plan"),
    )
    """The first rule that holds sets the stage."""

    def __post_init__(self) -> None:
        if self.availability == DEFAULT_AVAILABILITY:  # compared once, and not in each step
            object.__setattr__(self, "availability", DEFAULT_AVAILABILITY)

    @property
    def effective(self) -> tuple[Availability, ...]:
        if self.replace or self.availability is DEFAULT_AVAILABILITY:
            return self.availability
        return (*DEFAULT_AVAILABILITY, *(rule for rule in self.availability if rule not in DEFAULT_AVAILABILITY))


@dataclass(frozen=True, slots=True)
class ResetPolicy(Strict):
    """The parts of a session that are reset at a new turn: those in `clean`, and those not in `keep`."""

    clean: tuple[Cleanable, ...] = ()
    keep: tuple[Cleanable | Literal["long_term_memory"], ...] | None = None
    """None: everything that is not cleaned. Long-term memory is always kept; outlines in working memory are, unless
    `clean` names it. To keep `working_memory` is to keep its chunks, the `query_context`, too."""

    @property
    def cleaned(self) -> tuple[Cleanable, ...]:
        parts: tuple[Cleanable, ...] = get_args(Cleanable)
        return tuple(part for part in parts if part in self.clean or not self._keeps(part))

    def _keeps(self, part: Cleanable) -> bool:
        # Templates of earlier releases list what they keep without naming working memory: they keep its outlines.
        if self.keep is None or part in self.keep or part == "working_memory":
            return True
        return part == "query_context" and "working_memory" in self.keep


@dataclass(frozen=True, slots=True)
class MemoryPolicy(Strict):
    """What an agent remembers, and how much of it a request shows."""

    scope: MemoryScope = "agent"
    """The files that memory tools see: this conversation's, this agent's with this user, or all of the owner's."""
    context_window: Annotated[int, Field(ge=0)] | None = None
    """Messages of earlier turns in a request. None: as many as fit the token budget; 50 for a sub-agent."""
    max_history: Annotated[int, Field(ge=1)] = 100
    """Maximum messages that the mirror keeps."""
    share_context: Annotated[int, Field(ge=0)] = 0
    """How many of the last messages with the user this agent shares with its sub-agents."""
    enabled: bool = True
    """Whether results of reading tools are remembered in the session: shown, and given again for the same call."""
    max_chunks: Annotated[int, Field(ge=0, le=100)] | None = None
    """Chunks of working memory that a request shows. None, here and below: as the settings say."""
    min_relevance: Annotated[float, Field(ge=0, le=1)] | None = None
    """Less relevant chunks are not remembered."""
    max_tokens: Annotated[int, Field(ge=0, le=100_000)] = 2000
    """Estimated tokens of everything remembered that a request shows."""
    recall: Annotated[int, Field(ge=0, le=50)] = 0
    """Items from other conversations with the same person that each turn is shown."""
    show: tuple[Annotated[str, Field(min_length=1, max_length=1000)], ...] = ()
    """Memory files of the scope whose content every request shows."""
    collect: tuple[Collected, ...] = get_args(Collected)
    """What the ledger collects of the agent's turns."""


@dataclass(frozen=True, slots=True)
class MultiAgentMeta(Strict):
    """Metadata by which other agents find this one."""

    capabilities: Annotated[str, Field(max_length=10_000)] = ""
    tags: tuple[_Name, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template(Versioned):
    """A version of an agent."""

    base_agent_class: _Name = "ToolCallingAgent"
    prompt_pack: PromptPack = field(default_factory=PromptPack)
    llm_policy: Annotated[LLMPolicy, AfterValidator(_reach)] = field(default_factory=LLMPolicy)
    execution_policy: ExecutionPolicy = field(default_factory=ExecutionPolicy)
    tool_policy: ToolPolicy = field(default_factory=ToolPolicy)
    rules: Rules = field(default_factory=Rules)
    reset_policy: ResetPolicy = field(default_factory=ResetPolicy)
    memory_policy: MemoryPolicy = field(default_factory=MemoryPolicy)
    multi_agent_meta: MultiAgentMeta = field(default_factory=MultiAgentMeta)
    follow: Literal["active", "pinned"] = "active"
    """The version that a new turn uses: the active one, or the one that the session was opened with."""
    allow_client_system: bool = True
    """Whether a client may add its own system message to a turn."""
    allow_client_tools: bool = True
    """Whether the agent is offered the functions that a client sends in `tools`, which the client runs itself."""
    title: Literal["first_words", "model"] = "first_words"
    """The title of a session: the first words of its first prompt, or what the model is asked for after its first
    answer, by a call of its own without tools."""
    owner: Owner | None = None
    """The only owner who sees it; None: everybody."""


def tools_named_in(template: Template) -> set[str]:
    """The tools that the template's policy and its rules name."""
    rules = (name for one in template.rules.availability for name in (*(one.keep_only or ()), *one.exclude))
    return {*template.tool_policy.named, *template.tool_policy.denylist, *rules}


def with_tool_names(template: Template, name_of: Callable[[str], str]) -> Template:
    """The template with the name that `name_of` gives to each of these tools."""

    def named(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(map(name_of, names))

    def rule(one: Availability) -> Availability:
        return replace(
            one, keep_only=None if one.keep_only is None else named(one.keep_only), exclude=named(one.exclude)
        )

    policy, allowed = template.tool_policy, template.tool_policy.allowlist
    return replace(
        template,
        tool_policy=replace(
            policy,
            required=named(policy.required),
            allowlist=None if allowed is None else named(allowed),
            denylist=named(policy.denylist),
        ),
        rules=replace(template.rules, availability=tuple(map(rule, template.rules.availability))),
    )


def render(text: str, **values: str) -> str:
    """`text` with known placeholders filled in one pass: placeholders in the values are not expanded."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
