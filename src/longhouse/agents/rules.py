"""Which tools are open at this point of a turn. A limit ends a turn in words: it closes tools, it raises nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

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
SEARCHING: Final = frozenset({"websearchtool", "extractpagecontenttool"})


def open_tools(session: Session, tools: Sequence[Tool], now: datetime) -> list[Tool]:
    turn = session.turn
    assert turn is not None
    if spent(turn, now):
        return [tool for tool in tools if tool.finishes or tool.closing]
    shut = closed(session)
    if turn.limits.max_searches is not None and turn.searches_used >= turn.limits.max_searches:
        shut |= SEARCHING
    asks = turn.clarifications_used < turn.limits.max_clarifications
    return [tool for tool in tools if tool.name not in shut and (asks or not tool.asks)]


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
