"""Delegation to sub-agents: an agent as a tool of another, its task, and the budget and rights it inherits. No I/O."""

import copy
import functools
import json
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import pydantic
from msgspec.structs import replace
from pydantic import Field

from longhouse.agents import rules
from longhouse.agents.naming import AGENT_PREFIX
from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import RISKS, RuntimeBinding, ToolDescriptor, smallest
from longhouse.journal import conversation
from longhouse.journal.events import Limits, Prompted, ReplyTo, Rights, SharedBudget
from longhouse.journal.messages import Message
from longhouse.journal.roles import role_of
from longhouse.journal.session import Session, Turn

MAX_OPEN_TASKS: Final = 100
"""Maximum open delegated tasks of one trace, waited for or not."""
LABEL: Final = r"^[A-Za-z0-9._:@-]{0,64}$"
"""The pattern of session labels: mirror keys and log file names contain them."""


class AgentTask(pydantic.BaseModel):
    """What an agent may ask of another."""

    model_config = pydantic.ConfigDict(extra="forbid")

    task: str = Field(min_length=1, max_length=100_000, description="What is to be done, complete in itself")
    constraints: dict[str, Any] | None = Field(default=None, description="Conditions that the result must meet")
    label: str = Field(default="", pattern=LABEL, description="Another label is another agent, without memories")
    wait: bool = Field(default=True, description="false: go on at once with a handle, and collect the result later")

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        """Drops nulls: models write null for fields that they leave out."""
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given

    @property
    def text(self) -> str:
        """The task as the sub-agent reads it."""
        if not self.constraints:
            return self.task
        # As JSON: lists stay lists, and text of every language stays unescaped.
        return f"{self.task}\nConstraints:\n{json.dumps(self.constraints, ensure_ascii=False)}"


def as_tool(template: Template) -> ToolDescriptor:
    """A template as the tool `agent.<name>`."""
    meta = template.multi_agent_meta
    can = meta.capabilities or "Does what it is asked."
    return ToolDescriptor(
        name=f"{AGENT_PREFIX}{template.name}",
        type="meta",
        tags=meta.tags,
        description_short=f"The agent {template.name}, which remembers what it was told before. {can}"[:4000],
        input_schema={"type": "object", "properties": copy.deepcopy(_properties()), "required": ["task"]},
        runtime_binding=RuntimeBinding(agent=template.name),
        effect="idempotent",
        owner=template.owner,
    )


@functools.cache
def _properties() -> dict[str, Any]:
    """The fields of a task, as a model is told of them: the same for all agents."""
    properties: dict[str, Any] = AgentTask.model_json_schema()["properties"]
    for one in properties.values():
        one.pop("title", None)
    return properties


class Delegation(msgspec.Struct, frozen=True):
    """One task for a sub-agent, ready to be sent."""

    call: str
    agent: str
    label: str
    version: int
    awaited: bool
    prompted: Prompted
    brings_history: bool = False
    """Whether the client sent the sub-agent's history."""

    def with_prior(self, prior: tuple[Message, ...]) -> "Delegation":
        return replace(self, prompted=replace(self.prompted, prior=prior))


def delegation_of(
    session: Session, turn: Turn, template: Template, task: AgentTask, *, call: str, agent: str, version: int
) -> Delegation:
    """The sub-agent's task and what it inherits: trace, depth, rights, remaining budget."""
    named, ephemeral = turn.prompted.named or tuple(turn.prompted.contexts), turn.prompted.ephemeral or session.label
    label = f"{ephemeral}/{task.label}".strip("/") if agent in named else task.label
    prompted = Prompted(
        trace=turn.trace,
        content=(task.text,),
        sender=session.agent,
        # Always named: a sub-agent's session may belong to another user of the conversation.
        user=session.user or "" if turn.user is None else turn.user,
        reply_to=ReplyTo(session=session.id, call=call),
        depth=turn.prompted.depth + 1,
        root=turn.prompted.root or session.id,
        rights=turn.rights,
        budget=remaining(turn),
        shared_budget=shared_budget(turn),
        shared=shared_messages(session, template.memory_policy.share_context),
        named=named,
        ephemeral=ephemeral if named else "",
        prior=turn.prompted.contexts.get(agent, ()),
        traceparent=turn.prompted.traceparent,
    )
    return Delegation(call, agent, label, version, task.wait, prompted, brings_history=agent in named)


def remaining(turn: Turn) -> Limits:
    """The remaining budgets of a turn; steps and questions are not shared, each agent has its own."""
    limits = turn.limits
    return replace(
        limits,
        max_searches=None,
        time_budget=max(0.0, limits.time_budget - rules.worked_seconds(turn)),
        tool_budget=_less(limits.tool_budget, turn.calls),
        token_budget=_less(limits.token_budget, turn.usage.total_tokens),
    )


def shared_budget(turn: Turn) -> SharedBudget | None:
    """The shared budget of all sub-agents: what the root agent does not use itself."""
    limits = turn.limits
    if turn.prompted.root:
        return turn.prompted.shared_budget
    if limits.tool_budget is None and limits.token_budget is None:
        return None
    root_calls = turn.calls - turn.subagents.calls
    return SharedBudget(
        tool_budget=_less(limits.tool_budget, root_calls),
        token_budget=_less(limits.token_budget, turn.usage.total_tokens - turn.subagents.tokens),
        root_calls=0 if limits.tool_budget is None else root_calls,
    )


def tree_budget(turn: Turn) -> int | None:
    """The calls that the root agent and all below it may make together; None: any number."""
    if not turn.prompted.root:
        return turn.limits.tool_budget
    shared = turn.prompted.shared_budget
    if shared is None or shared.tool_budget is None:
        return None
    return shared.tool_budget + shared.root_calls


def capped_by_shared(budget: Limits, shared: SharedBudget, *, calls: int, tokens: int) -> Limits:
    """A budget capped by what remains of the shared budget after `calls` and `tokens` were used."""
    return replace(
        budget,
        tool_budget=smallest(budget.tool_budget, _less(shared.tool_budget, calls)),
        token_budget=smallest(budget.token_budget, _less(shared.token_budget, tokens)),
    )


def capped_by_caller(own: Limits, budget: Limits | None) -> Limits:
    """A template's own limits, each capped by the calling agent's remaining budget."""
    if budget is None:
        return own
    return replace(
        own,
        time_budget=min(own.time_budget, budget.time_budget),
        tool_budget=smallest(own.tool_budget, budget.tool_budget),
        token_budget=smallest(own.token_budget, budget.token_budget),
    )


def narrowed(rights: Rights | None, template: Template) -> Rights | None:
    """The rights of a turn, which sub-agents inherit: what the calling agent must not use, this one must not either.

    How a turn ends is each agent's own matter: without the tool for it, its model would be asked until a limit ends it.
    """
    above, policy = rights or Rights(), template.tool_policy
    denied = dict.fromkeys(name for name in (*above.denied, *policy.denylist) if role_of(name) != "finishes")
    own = Rights(denied=tuple(denied), max_risk=min(above.max_risk, policy.max_risk_level, key=RISKS.index))
    return None if own == Rights() else own


def shared_messages(session: Session, last: int) -> tuple[Message, ...]:
    """The last messages between the user and this agent."""
    messages = (message for entry in conversation.shown(session) for message in conversation.dialogue_messages(entry))
    return tuple(deque(messages, last))


def waits_for(edges: Iterable[tuple[str, str]], start: str, target: str) -> bool:
    """Whether `start` waits for `target`, directly or through others. An edge is (waiting, waited for)."""
    awaited_by: dict[str, set[str]] = defaultdict(set)
    for waiting, awaited in edges:
        awaited_by[waiting].add(awaited)
    reached, ahead = {start}, {start}
    while ahead:
        ahead = {awaited for waiting in ahead for awaited in awaited_by[waiting]} - reached
        reached |= ahead
    return target in reached


def has_delegated(session: Session) -> bool:
    """Whether the running turn has delegated to another agent. A refused call does not count."""
    return any(use.tool.startswith(AGENT_PREFIX) and not rules.is_unmade(use) for use in rules.uses(session))


def _less(budget: int | None, used: int) -> int | None:
    return None if budget is None else max(0, budget - used)
