"""Decides which tools are open at a point of a turn: limits, failures and rules close tools, they raise no errors."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from msgspec.structs import asdict

from longhouse.agents import conditions
from longhouse.agents.naming import NamePatterns
from longhouse.agents.template import Availability, Template
from longhouse.agents.tool import Tool
from longhouse.journal.events import Fault, Output, Recorded, Returned
from longhouse.journal.refusals import BLAMELESS, REFUSED, UNMADE
from longhouse.journal.roles import tools_of
from longhouse.journal.session import Session, Turn
from longhouse.journal.transcript import Use

GRACE: Final = 2
"""Steps that an agent gets to finish after its budget is spent, before the turn is aborted."""
WORKER_LOST: Final = "worker_lost"
"""The code of a call or a turn that was abandoned because several workers in a row were lost with it."""
MAX_FAILURES: Final = 3
"""Failures of the same call after which its tool is closed for the turn."""
NO_MORE_CALLS: Final = "no_more_calls"
"""The code of a call for which neither the turn nor the request that it belongs to has any budget left."""
UNREADABLE: Final = 3
"""Consecutive replies that cannot be parsed after which the turn ends."""
ASKING: Final = tools_of("asks")
"""A rule that names one of these tools applies to every tool that asks."""


def _is_meant(tool: Tool, names: NamePatterns) -> bool:
    return tool.name in names or (tool.asks and _means_asking(names))


def _means_asking(names: NamePatterns | tuple[str, ...]) -> bool:
    return any(name in names for name in ASKING)


class OpenTools:
    """Which tools are open at one point of a turn; tools that finish it always are.

    `is_ending`: a budget is spent, so that only tools that help to finish are open. `closed_tools` are those that have
    failed too often, `rules` those whose condition holds now.
    """

    def __init__(
        self, *, is_ending: bool = False, closed_tools: frozenset[str] = frozenset(), rules: Sequence[Availability] = ()
    ) -> None:
        self.is_all_open = not (is_ending or closed_tools or rules)
        """Whether no tool is closed."""
        kept = [rule.keep_only for rule in rules if rule.keep_only is not None]
        self.kept = [names for names in kept if not _means_asking(names)]
        """The `keep_only` lists that hold now, except lists that mean every tool that asks: they do not name all."""
        excluded = [name for rule in rules for name in rule.exclude]
        self.excluded = (*closed_tools, *excluded)
        """Names of the closed tools, in the notation of policy lists."""
        self._is_ending, self._closed = is_ending, closed_tools
        self._kept, self._excluded = [NamePatterns(names) for names in kept], NamePatterns(excluded)

    def includes(self, tool: Tool) -> bool:
        if tool.finishes:
            return True
        if self._is_ending:
            return tool.closing
        if tool.name in self._closed or _is_meant(tool, self._excluded):
            return False
        return all(_is_meant(tool, names) for names in self._kept)

    def among(self, tools: Sequence[Tool]) -> Sequence[Tool]:
        """Those of these tools that are open."""
        return tools if self.is_all_open else [tool for tool in tools if self.includes(tool)]


ALL_OPEN: Final = OpenTools()
ENDING: Final = OpenTools(is_ending=True)


def open_tools(session: Session, turn: Turn, template: Template, *, stage: str | None = None) -> OpenTools:
    """The open tools now; `stage` replaces the session's own stage."""
    faulty = _faulty(session)
    if spent(turn) or any(fault.code == NO_MORE_CALLS for _, fault in faulty):
        return ENDING
    facts = TurnFacts(session, turn, template)
    stops = template.execution_policy.stop_conditions
    if stops and any(conditions.holds(stop, facts) for stop in stops):
        return ENDING
    if stage is not None:
        facts[conditions.STAGE] = stage
    rules = [rule for rule in template.rules.effective if conditions.holds(rule.when, facts)]
    closed_tools = closed(faulty)
    return OpenTools(closed_tools=closed_tools, rules=rules) if rules or closed_tools else ALL_OPEN


def stage(session: Session, turn: Turn, template: Template) -> str:
    """The stage of the work by the template's rules."""
    return str(TurnFacts(session, turn, template)[conditions.STAGE])


class TurnFacts(dict[str, Any]):
    """The facts that conditions can use, and the limits that they compare with; what must be looked for is found when
    it is asked for."""

    def __init__(self, session: Session, turn: Turn, template: Template) -> None:
        super().__init__(
            asdict(turn.limits),
            iteration=steps_taken(turn),
            searches_used=turn.searches_used,
            clarifications_used=turn.clarifications_used,
            calls=turn.calls,
            tokens=turn.usage.total_tokens,
        )
        self._session, self._turn, self._template = session, turn, template

    def __missing__(self, name: str) -> Any:
        if name == conditions.STAGE:
            found: Any = self._stage()
        else:
            found = _FOUND[name](self._session, self._turn)
        self[name] = found
        return found

    def _stage(self) -> str:
        """By the first of the template's rules that holds; they compare with the stage of the session itself."""
        self[conditions.STAGE] = own = self._session.stage
        holding = (
            rule.stage for rule in self._template.rules.stages if rule.when is None or conditions.holds(rule.when, self)
        )
        return next(holding, own)


_FOUND: Final[dict[str, Callable[[Session, Turn], Any]]] = {
    "seconds": lambda session, turn: worked_seconds(turn),
    "sources_found": lambda session, turn: len(session.context.get("sources") or ()),
    "plan_made": lambda session, turn: session.plan_made,
    "enough_data": lambda session, turn: session.enough_data,
}


def closed(faulty: Sequence[tuple[Use, Fault]]) -> frozenset[str]:
    """Tools whose same call failed too often in this turn, or with which several workers in a row were lost."""
    if not faulty:
        return frozenset()
    lost = (use.tool for use, fault in faulty if fault.code == WORKER_LOST)
    return frozenset((*lost, *(tool for (tool, _), times in _failures(faulty).items() if times >= MAX_FAILURES)))


def explained(session: Session, tool: str, arguments: str, fault: Fault, *, finishes: bool = False) -> Fault:
    """The fault; its message says that the tool is closed now, if this failure closes it."""
    if finishes or fault.code in BLAMELESS or _failures(_faulty(session))[tool, arguments] != MAX_FAILURES - 1:
        return fault
    news = f"This call has failed {MAX_FAILURES} times: {tool} is closed for the rest of this turn; go another way."
    return Fault(code=fault.code, message=f"{fault.message}. {news}")


def refusals(recorded: Iterable[Recorded]) -> list[str]:
    """The error codes of refused calls."""
    codes = []
    for record in recorded:
        event = record.event
        if type(event) is Returned and type(event.outcome) is Fault and event.outcome.code in REFUSED:
            codes.append(event.outcome.code)
    return codes


def _faulty(session: Session) -> list[tuple[Use, Fault]]:
    """The calls of the turn that returned a fault."""
    return [(use, use.outcome) for step in session.steps for use in step.uses if type(use.outcome) is Fault]


def _failures(faulty: Sequence[tuple[Use, Fault]]) -> Counter[tuple[str, str]]:
    """How often each call failed, by tool and arguments. A call that was not made, or that a person did not allow, has
    not failed."""
    return Counter((use.tool, use.arguments) for use, fault in faulty if fault.code not in BLAMELESS)


def is_unmade(use: Use) -> bool:
    """Whether a call was refused: at the wrong time, or with wrong arguments."""
    return isinstance(use.outcome, Fault) and use.outcome.code in UNMADE


def denied(session: Session) -> list[Use]:
    """The calls of the turn that were not approved, since a person last wrote to it: they stand as long as nobody says
    anything new."""
    denials: list[Use] = []
    for step in session.steps:
        has_answer = False
        for use in step.uses:
            if isinstance(use.outcome, Output):
                has_answer = has_answer or bool(use.question)
            elif use.outcome and use.outcome.code == "denied":
                denials.append(use)
        if has_answer or step.asides:
            break
    return denials


def uses(session: Session) -> Iterator[Use]:
    """The calls of the running turn, step by step, the newest step first."""
    return chain.from_iterable(step.uses for step in session.steps)


def spent(turn: Turn) -> str | None:
    """The budget of the turn that is used up, in words, or None."""
    limits = turn.limits
    return _reached(
        (steps_taken(turn), limits.max_iterations, "steps"),
        (worked_seconds(turn), limits.time_budget, "seconds"),
        (turn.calls, limits.tool_budget, "tool calls"),
        (turn.usage.total_tokens, limits.token_budget, "tokens"),
    )


def overdue(turn: Turn) -> tuple[str, str] | None:
    """Why the turn must be aborted now, as (code, reason): the agent had its grace steps to finish and did not."""
    if turn.unreadable >= UNREADABLE:
        return "unreadable_reply", f"the model's replies could not be read, {turn.unreadable} times in a row"
    limits, subagents = turn.limits, turn.subagents
    # What sub-agents used counts against the budget that closes tools, but not against the grace.
    reached = _reached(
        (steps_taken(turn) - GRACE, limits.max_iterations, "steps"),
        ((worked_seconds(turn) - subagents.seconds) / 2, limits.time_budget, "seconds"),
        ((turn.usage.total_tokens - subagents.tokens) / 2, limits.token_budget, "tokens"),
    )
    return ("limit_reached", f"the agent did not finish within {reached}") if reached else None


def _reached(*budgets: tuple[float, float | None, str]) -> str | None:
    """The first of these limits (used, limit, unit) that is reached, in words."""
    for used, most, unit in budgets:
        if most is not None and used >= most:
            return f"its limit of {most if isinstance(most, int) else f'{most:g}'} {unit}"
    return None


def steps_taken(turn: Turn) -> int:
    """Completed steps: reasoning does not count before its action, so it does not close tools for that action."""
    return turn.iteration - turn.is_thinking


def worked_seconds(turn: Turn) -> float:
    """Working seconds of the turn, as its runs have measured them up to its last event."""
    return (turn.worked_at - turn.started_at).total_seconds() - turn.waited
