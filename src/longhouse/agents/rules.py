"""Decides which tools are open at a point of a turn: limits, failures and rules close tools, they raise no errors."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from longhouse.agents import conditions
from longhouse.agents.naming import Names
from longhouse.agents.template import Availability, Template
from longhouse.agents.tool import Tool
from longhouse.journal.events import Fault, Recorded, Returned
from longhouse.journal.roles import tools_of
from longhouse.journal.session import Session, Turn
from longhouse.journal.transcript import Use

GRACE: Final = 2
"""Steps that an agent gets to finish after its budget is spent, before the turn is aborted."""
WORKER_LOST: Final = "worker_lost"
"""The code of a call or a turn that was abandoned because several workers in a row were lost with it."""
PATIENCE: Final = 3
"""Failures of the same call after which its tool is closed for the turn."""
UNREADABLE: Final = 3
"""Consecutive replies that cannot be parsed after which the turn ends."""
ASKING: Final = tools_of("asks")
"""A rule that names one of these tools applies to every tool that asks."""
UNTIMELY: Final = frozenset({
    "answered", "delegate_first", "no_more_calls", "no_more_questions", "no_more_searches", "not_offered",
    "reason_first", "too_many_agents", "too_many_calls",
})  # fmt: skip
"""Refusal codes that are not the tool's fault: it did not run, and the same call may be allowed later."""
UNMADE: Final = UNTIMELY | {"bad_arguments"}
"""Codes of calls that were refused as the model wrote them."""
REFUSED: Final = UNMADE | {
    "cycle", "rate_limited", "too_deep", "unknown_agent", "unknown_handle", "unknown_tool",
}  # fmt: skip
"""Codes of calls that a model requested and that were not made."""


class Rule:
    """An availability rule whose condition holds now."""

    def __init__(self, rule: Availability) -> None:
        self.keep_only, self.exclude = rule.keep_only, rule.exclude
        self._kept = None if rule.keep_only is None else Names(rule.keep_only)
        self._excluded = Names(rule.exclude)

    def leaves(self, tool: Tool) -> bool:
        if self._kept is not None and not _is_meant(tool, self._kept):
            return False
        return not _is_meant(tool, self._excluded)


def _is_meant(tool: Tool, names: Names) -> bool:
    return tool.name in names or (tool.asks and _means_asking(names))


def _means_asking(names: Names | tuple[str, ...]) -> bool:
    return any(name in names for name in ASKING)


@dataclass(frozen=True, slots=True)
class Opening:
    """Which tools are open at one point of a turn; tools that finish it always are."""

    is_ending: bool = False
    """A budget is spent: only tools that help to finish are open."""
    shut: frozenset[str] = frozenset()
    """Tools that have failed too often."""
    rules: tuple[Rule, ...] = ()

    @property
    def is_wide(self) -> bool:
        """Whether no tool is closed."""
        return not (self.is_ending or self.shut or self.rules)

    def leaves(self, tool: Tool) -> bool:
        if tool.finishes:
            return True
        if self.is_ending:
            return tool.closing
        return tool.name not in self.shut and all(rule.leaves(tool) for rule in self.rules)

    @property
    def excluded(self) -> tuple[str, ...]:
        """Names of the closed tools, in the notation of policy lists."""
        return (*self.shut, *(name for rule in self.rules for name in rule.exclude))

    @property
    def kept(self) -> list[tuple[str, ...]]:
        """The `keep_only` lists that hold now, except lists that mean every tool that asks: they do not name all."""
        lists = (rule.keep_only for rule in self.rules if rule.keep_only is not None)
        return [names for names in lists if not _means_asking(names)]


def opening_of(session: Session, turn: Turn, template: Template, now: datetime, *, stage: str | None = None) -> Opening:
    """The open tools now; `stage` replaces the session's own stage."""
    if spent(turn, now) or stopped(session, turn, template, now):
        return Opening(is_ending=True)
    facts = facts_of(session, turn, template, now)
    if stage is not None:
        facts = {**facts, conditions.STAGE: stage}
    holding = (rule for rule in template.rules.effective if conditions.parse(rule.when).holds(facts))
    return Opening(shut=closed(session), rules=tuple(Rule(rule) for rule in holding))


def stopped(session: Session, turn: Turn, template: Template, now: datetime) -> str | None:
    """The first stop condition of the template that holds, or None."""
    stops = template.execution_policy.stop_conditions
    facts = facts_of(session, turn, template, now) if stops else {}
    return next((stop for stop in stops if conditions.parse(stop).holds(facts)), None)


def stage(session: Session, turn: Turn, template: Template, now: datetime | None = None) -> str:
    """The stage of the work by the template's rules; `now` defaults to the time of the last event."""
    now = now or session.updated_at or turn.started_at
    facts = {**_facts(session, turn), "seconds": worked(turn, now)}
    for rule in template.rules.stages:
        if rule.when is None or conditions.parse(rule.when).holds(facts):
            return rule.stage
    return session.stage


def facts_of(session: Session, turn: Turn, template: Template, now: datetime) -> conditions.Facts:
    """The facts that conditions can use, and the limits that they compare with."""
    facts = _facts(session, turn)
    return {**facts, "seconds": worked(turn, now), "stage": stage(session, turn, template, now)}


def _facts(session: Session, turn: Turn) -> dict[str, Any]:
    return {
        **{name: getattr(turn.limits, name) for name in conditions.LIMITS},
        "iteration": taken(turn),
        "searches_used": turn.searches_used,
        "clarifications_used": turn.clarifications_used,
        "calls": turn.calls,
        "tokens": turn.usage.total_tokens,
        "seconds": 0.0,
        "sources_found": len(session.context.get("sources") or ()),
        "plan_made": session.plan_made,
        "enough_data": session.enough_data,
        "stage": session.stage,
    }


def closed(session: Session) -> frozenset[str]:
    """Tools whose same call failed too often in this turn, or with which several workers in a row were lost."""
    failed = Counter((use.tool, use.arguments) for use in _uses(session) if _has_failed(use))
    deadly = (use.tool for use in _uses(session) if isinstance(use.outcome, Fault) and use.outcome.code == WORKER_LOST)
    return frozenset((*deadly, *(tool for (tool, _), times in failed.items() if times >= PATIENCE)))


def is_last_failure(session: Session, tool: str, arguments: str) -> bool:
    """Whether one more failure of this call closes its tool."""
    times = sum(1 for use in _uses(session) if (use.tool, use.arguments) == (tool, arguments) and _has_failed(use))
    return times == PATIENCE - 1


def told(session: Session, tool: str, arguments: str, fault: Fault, *, finishes: bool = False) -> Fault:
    """The fault; its message says that the tool is closed now, if this failure closes it."""
    if finishes or fault.code in UNMADE or not is_last_failure(session, tool, arguments):
        return fault
    news = f"This call has failed {PATIENCE} times: {tool} is closed for the rest of this turn; go another way."
    return Fault(code=fault.code, message=f"{fault.message}. {news}")


def refusals(recorded: Iterable[Recorded]) -> Iterator[str]:
    """The error codes of refused calls."""
    for record in recorded:
        outcome = record.event.outcome if isinstance(record.event, Returned) else None
        if isinstance(outcome, Fault) and outcome.code in REFUSED:
            yield outcome.code


def _has_failed(use: Use) -> bool:
    """Whether the tool itself failed; a call at the wrong time or with wrong arguments is not the tool's failure."""
    return isinstance(use.outcome, Fault) and use.outcome.code not in UNMADE


def _uses(session: Session) -> Iterator[Use]:
    for step in session.steps:
        yield from step.uses


def spent(turn: Turn, now: datetime) -> str | None:
    """The budget of the turn that is used up, in words, or None."""
    limits = turn.limits
    if taken(turn) >= limits.max_iterations:
        return f"its limit of {limits.max_iterations} steps"
    if worked(turn, now) >= limits.time_budget:
        return f"its limit of {limits.time_budget:g} seconds"
    if limits.tool_budget is not None and turn.calls >= limits.tool_budget:
        return f"its limit of {limits.tool_budget} tool calls"
    if limits.token_budget is not None and turn.usage.total_tokens >= limits.token_budget:
        return f"its limit of {limits.token_budget} tokens"
    return None


def overdue(turn: Turn, now: datetime) -> tuple[str, str] | None:
    """Why the turn must be aborted now, as (code, reason): the agent had its grace steps to finish and did not."""
    limits = turn.limits
    if turn.unreadable >= UNREADABLE:
        return "unreadable_reply", f"the model's replies could not be read, {turn.unreadable} times in a row"
    if taken(turn) >= limits.max_iterations + GRACE:
        return "limit_reached", f"the agent did not finish within its limit of {limits.max_iterations} steps"
    # What sub-agents used counts against the budget that closes tools, but not against the grace.
    if worked(turn, now) - turn.subagents.seconds >= 2 * limits.time_budget:
        return "limit_reached", f"the agent did not finish within its limit of {limits.time_budget:g} seconds"
    if limits.token_budget is not None and turn.usage.total_tokens - turn.subagents.tokens >= 2 * limits.token_budget:
        return "limit_reached", f"the agent did not finish within its limit of {limits.token_budget} tokens"
    return None


def taken(turn: Turn) -> int:
    """Completed steps: reasoning does not count before its action, so it does not close tools for that action."""
    return turn.iteration - turn.is_thinking


def worked(turn: Turn, now: datetime) -> float:
    """Working seconds of the turn, without the time spent waiting for people."""
    return (now - turn.started_at).total_seconds() - turn.waited
