"""Which tools are open at this point of a turn. A limit ends a turn in words: it closes tools, it raises nothing."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from longhouse.agents.tool import Tool
from longhouse.journal.session import Turn

GRACE: Final = 2
"""Steps that an agent gets to finish after its budget is spent, before the turn is ended for it."""


def open_tools(turn: Turn, tools: Sequence[Tool], now: datetime) -> list[Tool]:
    if spent(turn, now):
        return [tool for tool in tools if tool.finishes]
    if turn.clarifications_used >= turn.limits.max_clarifications:
        return [tool for tool in tools if not tool.asks]
    return list(tools)


def spent(turn: Turn, now: datetime) -> str | None:
    """Which budget of the turn is used up, in words."""
    if turn.iteration >= turn.limits.max_iterations:
        return f"its limit of {turn.limits.max_iterations} steps"
    if worked(turn, now) >= turn.limits.time_budget:
        return f"its limit of {turn.limits.time_budget:g} seconds"
    return None


def overdue(turn: Turn, now: datetime) -> str | None:
    """Why the turn must be ended now: the agent had its chances to finish and did not."""
    if turn.iteration >= turn.limits.max_iterations + GRACE:
        return f"the agent did not finish within its limit of {turn.limits.max_iterations} steps"
    if worked(turn, now) >= 2 * turn.limits.time_budget:
        return f"the agent did not finish within its limit of {turn.limits.time_budget:g} seconds"
    return None


def worked(turn: Turn, now: datetime) -> float:
    """Seconds that the turn has been worked on; waiting for people is not work."""
    return (now - turn.started_at).total_seconds() - turn.waited
