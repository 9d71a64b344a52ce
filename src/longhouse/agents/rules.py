"""Which tools are open at this point of a turn. A limit ends a turn in words: it closes tools, it raises nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from longhouse.agents import conditions
from longhouse.agents.template import Availability, Template
from longhouse.agents.tool import Tool
from longhouse.journal.events import Fault
from longhouse.journal.session import Session, Turn
from longhouse.journal.transcript import Use

GRACE: Final = 2
"""Steps that an agent gets to finish after its budget is spent, before the turn is ended for it."""
PATIENCE: Final = 3
"""So often may the same call fail before its tool is closed for the turn."""
UNREADABLE: Final = 3
"""So many replies in a row that cannot be read end the turn."""
ASKING: Final = "clarificationtool"
"""A rule that names it means every tool that asks."""


def open_tools(session: Session, template: Template, tools: Sequence[Tool], now: datetime) -> list[Tool]:
    """Those of `tools` that the template's rules, the turn's budgets and the agent's own failures leave open."""
    turn = session.turn
    assert turn is not None
    if spent(turn, now) or stopped(session, template, now):
        return [tool for tool in tools if tool.finishes or tool.closing]
    facts, shut = facts_of(session, template, now), closed(session)
    rules = [rule for rule in template.rules.availability if conditions.parse(rule.when).holds(facts)]
    return [tool for tool in tools if tool.name not in shut and all(_leaves_open(rule, tool) for rule in rules)]


def _leaves_open(rule: Availability, tool: Tool) -> bool:
    if tool.finishes:
        return True
    if rule.keep_only is not None and not _names(rule.keep_only, tool):
        return False
    return not _names(rule.exclude, tool)


def _names(names: Sequence[str], tool: Tool) -> bool:
    return tool.name in names or (tool.asks and ASKING in names)


def stopped(session: Session, template: Template, now: datetime) -> str | None:
    """The stop condition of the template that holds, if any."""
    stops = template.execution_policy.stop_conditions
    facts = facts_of(session, template, now) if stops else {}
    return next((stop for stop in stops if conditions.parse(stop).holds(facts)), None)


def stage(session: Session, template: Template, now: datetime | None = None) -> str:
    """How far the work is, by the template's own rules; without `now`, when something last happened."""
    assert session.turn is not None
    now = now or session.updated_at or session.turn.started_at
    facts = {**_facts(session), "seconds": worked(session.turn, now)}
    for rule in template.rules.stages:
        if rule.when is None or conditions.parse(rule.when).holds(facts):
            return rule.stage
    return session.stage


def facts_of(session: Session, template: Template, now: datetime) -> conditions.Facts:
    """What conditions may ask about, and the limits that they compare with."""
    assert session.turn is not None
    facts = _facts(session)
    return {**facts, "seconds": worked(session.turn, now), "stage": stage(session, template, now)}


def _facts(session: Session) -> dict[str, Any]:
    turn = session.turn
    assert turn is not None
    return {
        **{name: getattr(turn.limits, name) for name in conditions.LIMITS},
        "iteration": taken(turn),
        "searches_used": turn.searches_used,
        "clarifications_used": turn.clarifications_used,
        "calls": turn.calls,
        "tokens": turn.tokens,
        "seconds": 0.0,
        "sources_found": len(session.context.get("sources") or ()),
        "plan_made": session.plan_made,
        "enough_data": session.enough_data,
        "stage": session.stage,
    }


def closed(session: Session) -> frozenset[str]:
    """Tools of which the same call has failed too often in this turn."""
    failed = Counter((use.tool, use.arguments) for use in _uses(session) if isinstance(use.outcome, Fault))
    return frozenset(tool for (tool, _), times in failed.items() if times >= PATIENCE)


def is_last_failure(session: Session, tool: str, arguments: str) -> bool:
    """Would one more failure of this call close its tool?"""
    times = sum(
        1 for use in _uses(session) if (use.tool, use.arguments) == (tool, arguments) and isinstance(use.outcome, Fault)
    )
    return times == PATIENCE - 1


def told(session: Session, tool: str, arguments: str, fault: Fault) -> Fault:
    """The fault; with the news that the tool is closed now, where this failure was one too many."""
    if not is_last_failure(session, tool, arguments):
        return fault
    news = f"This call has failed {PATIENCE} times: {tool} is closed for the rest of this turn; go another way."
    return Fault(code=fault.code, message=f"{fault.message}. {news}")


def _uses(session: Session) -> Iterator[Use]:
    for step in session.steps:
        yield from step.uses


def spent(turn: Turn, now: datetime) -> str | None:
    """Which budget of the turn is used up, in words."""
    limits = turn.limits
    if taken(turn) >= limits.max_iterations:
        return f"its limit of {limits.max_iterations} steps"
    if worked(turn, now) >= limits.time_budget:
        return f"its limit of {limits.time_budget:g} seconds"
    if limits.tool_budget is not None and turn.calls >= limits.tool_budget:
        return f"its limit of {limits.tool_budget} tool calls"
    if limits.token_budget is not None and turn.tokens >= limits.token_budget:
        return f"its limit of {limits.token_budget} tokens"
    return None


def overdue(turn: Turn, now: datetime) -> tuple[str, str] | None:
    """Why the turn must be ended now, as (code, reason): the agent had its chances to finish and did not."""
    limits = turn.limits
    if turn.unreadable >= UNREADABLE:
        return "unreadable_reply", f"the model's replies could not be read, {turn.unreadable} times in a row"
    if taken(turn) >= limits.max_iterations + GRACE:
        return "limit_reached", f"the agent did not finish within its limit of {limits.max_iterations} steps"
    if worked(turn, now) >= 2 * limits.time_budget:
        return "limit_reached", f"the agent did not finish within its limit of {limits.time_budget:g} seconds"
    if limits.tool_budget is not None and turn.calls >= limits.tool_budget + GRACE + turn.limits.max_iterations:
        return "limit_reached", f"the agent did not finish within its limit of {limits.tool_budget} tool calls"
    if limits.token_budget is not None and turn.tokens >= 2 * limits.token_budget:
        return "limit_reached", f"the agent did not finish within its limit of {limits.token_budget} tokens"
    return None


def taken(turn: Turn) -> int:
    """Steps that were taken to their end: a thought does not close the tools to the action that follows from it."""
    return turn.iteration - turn.is_thinking


def worked(turn: Turn, now: datetime) -> float:
    """Seconds that the turn has been worked on; waiting for people is not work."""
    return (now - turn.started_at).total_seconds() - turn.waited
