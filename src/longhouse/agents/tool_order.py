"""Selects and orders the tools that a step is offered from the permitted ones; pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longhouse.journal.events import Selection
from longhouse.journal.session import Session, Turn
from longhouse.journal.transcript import Step

NEEDED: Final = 3
"""A full set changes only if one of the best NEEDED tools for the step is missing: a change invalidates the provider's
prompt cache, and lower-ranked tools are rarely what the step needs."""
BATCH: Final = 4
"""How many tools are removed together: the next steps find room, and the cache is invalidated once, not each time."""

MOST_LEFT_OUT: Final = 20
"""Left-out tools that are recorded by name with a step; the others are only counted."""
LONGEST_QUERY: Final = 1000
"""Characters of the query that are recorded with a step; the task itself is already in the journal."""


def query_of(session: Session, turn: Turn) -> str:
    """The search query of the step: the next remaining step, and the task.

    The name of the stage is not part of it: some tool descriptions contain that word, and it must not decide the
    ranking. Rules say which tools belong to a stage.
    """
    step = next_step(session.context.get("current_step_reasoning"))
    return "\n".join(part for part in (step, turn.task) if part)


def next_step(reasoning: Any) -> str:
    """The first of the remaining steps in the agent's reasoning."""
    remaining = reasoning.get("remaining_steps") if isinstance(reasoning, dict) else None
    first = remaining[0] if isinstance(remaining, list) and remaining else ""
    return first if isinstance(first, str) else ""


def first_few(required: Sequence[str], others: Iterable[str], cap: int) -> list[str]:
    """Required tools first, then the others in their order; at most `cap`."""
    return list(dict.fromkeys((*required, *others)))[:cap]


def selection(
    offered: Sequence[str], line: Iterable[str], scores: Mapping[str, float], query: str = "", stage: str = ""
) -> Selection:
    """The record of how the set was selected, bounded in size; `line` holds all candidates in order."""
    chosen = frozenset(offered)
    left = [name for name in dict.fromkeys(line) if name not in chosen]
    told = left[:MOST_LEFT_OUT]
    return Selection(
        query=_short(query),
        stage=stage,
        scores={name: round(scores[name], 4) for name in (*offered, *told) if name in scores},
        left_out=tuple(told),
        more=len(left) - len(told),
    )


def _short(query: str) -> str:
    """A long query shortened to its beginning and its end, which say most about the task."""
    half = LONGEST_QUERY // 2
    return query if len(query) <= LONGEST_QUERY else f"{query[:half]}\n[…]\n{query[-half:]}"


def in_line(named: Sequence[str], ranked: Sequence[str], others: Sequence[str]) -> list[str]:
    """The candidates in order: tools that a policy names one by one before those it admits as a group, by `<server>.*`
    or an open list; within each kind the best for the step first.

    `named` is in the policy's order, `ranked` has the best of all kinds first, `others` have no rank.
    """
    own = frozenset(named)
    best, rest = [name for name in ranked if name in own], [name for name in ranked if name not in own]
    return list(dict.fromkeys((*best, *named, *rest, *others)))


@dataclass(frozen=True, slots=True)
class Line:
    """The candidates for a sticky set of tools."""

    sure: tuple[str, ...]
    """Tools that are always in the set, whatever the step is about."""
    ranked: tuple[str, ...]
    """Tools that compete for the remaining places, the best for this step first."""
    filling: tuple[str, ...]
    """Tools that fill the places left over, even if the search for this step did not find them."""
    is_closed: bool = False
    """Whether all other tools are excluded from the set."""


def line_up(
    required: Sequence[str], named: Sequence[str], ranked: Sequence[str], others: Sequence[str], cap: int
) -> Line:
    """As `in_line`: if all named tools fit, the rest compete for the remaining places; else the named ones compete."""
    sure, own = tuple(dict.fromkeys((*required, *named))), frozenset(named)
    if len(sure) <= cap:
        return Line(sure, tuple(name for name in ranked if name not in own), tuple(others))
    return Line(tuple(required), tuple(name for name in ranked if name in own), tuple(named), is_closed=True)


def sticky(offered: Sequence[str], line: Line, used: Sequence[str], cap: int) -> list[str]:
    """The set of the last step, extended at its end. If it has no room for needed tools, the least recently used go.

    `used` has the most recently used first.
    """
    sure = line.sure[:cap]
    waiting = (*line.ranked, *line.filling)
    if line.is_closed:
        offered = [name for name in offered if name in {*sure, *waiting}]
    needed = line.ranked[: min(NEEDED, cap - len(sure))]
    too_many = len(offered) + len({*sure, *needed}.difference(offered)) - cap
    leaving: set[str] = set()
    if too_many > 0:
        # Remove no more tools than there are new ones to add.
        count = max(too_many, min(BATCH, len({*sure, *line.ranked}.difference(offered))))
        leaving = _longest_unused([name for name in offered if name not in {*sure, *needed}], waiting, used, count)
    kept = [name for name in offered if name not in leaving]
    # A tool that was just removed is not added again in the same step.
    coming = [name for name in waiting if name not in leaving]
    return first_few((*kept, *sure), coming, cap)


def _longest_unused(names: Sequence[str], ranked: Sequence[str], used: Sequence[str], count: int) -> set[str]:
    """The least recently used tools: those never used first, among them the lowest ranked."""
    use = {name: place for place, name in enumerate(used)}
    fit = {name: place for place, name in enumerate(ranked)}
    last = sorted(names, key=lambda name: (use.get(name, len(use)), fit.get(name, len(fit))), reverse=True)
    return set(last[:count])


def used_tools(session: Session) -> list[str]:
    """The tools used in this session, the most recently used first."""
    steps = (entry for entry in reversed(session.transcript) if isinstance(entry, Step))
    return list(dict.fromkeys(use.tool for step in steps for use in reversed(step.uses)))


def pins(session: Session) -> dict[str, int]:
    """The tool versions that the running turn has been offered: it keeps them until it ends."""
    return session.turn.pins if session.turn else {}
