"""Which few of the permitted tools a step is offered, and in which order: values in, names out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from longhouse.journal.events import Selection
from longhouse.journal.session import Session
from longhouse.journal.transcript import Step

NEEDED: Final = 3
"""A full set changes only when one of so many best tools for the step is missing: a change costs the provider's cache,
and what ranks below has rarely been what the step was about."""
BATCH: Final = 4
"""So many leave together: the next steps find room, and the cache is lost once instead of each time."""

MOST_LEFT_OUT: Final = 20
"""Tools that a step is recorded to have left out by name; the others are counted."""
LONGEST_QUERY: Final = 1000
"""Characters of its query that are recorded with a step; the task itself is in the journal already."""


def query_of(session: Session) -> str:
    """What the step is about: what remains to be done first, and the task.

    How far the work is says a word that the descriptions of some tools have too: it must not decide what fits. What
    belongs to a stage is said by rules.
    """
    assert session.turn is not None
    step = next_step(session.context.get("current_step_reasoning"))
    return "\n".join(part for part in (step, session.turn.task) if part)


def next_step(reasoning: Any) -> str:
    """The first of the steps that the agent said remain."""
    remaining = reasoning.get("remaining_steps") if isinstance(reasoning, dict) else None
    first = remaining[0] if isinstance(remaining, list) and remaining else ""
    return first if isinstance(first, str) else ""


def first_few(required: Sequence[str], others: Iterable[str], cap: int) -> list[str]:
    """Required ones first, then the others in their order; never more than the cap."""
    return list(dict.fromkeys((*required, *others)))[:cap]


def selection(
    offered: Sequence[str], line: Iterable[str], scores: Mapping[str, float], query: str = "", stage: str = ""
) -> Selection:
    """How it came to this set, in a size that every step can bear; `line` are all who waited, in their order."""
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
    """A long task says what it is about at its beginning and at its end."""
    half = LONGEST_QUERY // 2
    return query if len(query) <= LONGEST_QUERY else f"{query[:half]}\n[…]\n{query[-half:]}"


def in_line(named: Sequence[str], ranked: Sequence[str], others: Sequence[str]) -> list[str]:
    """Who waits for a place: what a policy names one by one before what it brings in by the dozen, as `<server>.*` or
    as an open list; of each kind the best for the step first.

    `named` is in the policy's order, `ranked` has the best of all kinds first, `others` are known by name alone.
    """
    own = frozenset(named)
    best, rest = [name for name in ranked if name in own], [name for name in ranked if name not in own]
    return list(dict.fromkeys((*best, *named, *rest, *others)))


@dataclass(frozen=True, slots=True)
class Line:
    """Who waits for a place in a set that stays."""

    sure: tuple[str, ...]
    """Who has one whatever the step is about."""
    ranked: tuple[str, ...]
    """Who competes for the others, the best for this step first."""
    filling: tuple[str, ...]
    """Who takes what is left, though the step says nothing of them."""
    is_closed: bool = False
    """Does nobody else have a place?"""


def line_up(
    required: Sequence[str], named: Sequence[str], ranked: Sequence[str], others: Sequence[str], cap: int
) -> Line:
    """As `in_line`: where all that is named has its place, the rest compete for what is left; else the named do."""
    sure, own = tuple(dict.fromkeys((*required, *named))), frozenset(named)
    if len(sure) <= cap:
        return Line(sure, tuple(name for name in ranked if name not in own), tuple(others))
    return Line(tuple(required), tuple(name for name in ranked if name in own), tuple(named), is_closed=True)


def sticky(offered: Sequence[str], line: Line, used: Sequence[str], cap: int) -> list[str]:
    """The set of the last step, grown at its end. When it has no room for what is needed, the longest unused leave.

    `used` has what was used last first.
    """
    sure = line.sure[:cap]
    waiting = (*line.ranked, *line.filling)
    if line.is_closed:
        offered = [name for name in offered if name in {*sure, *waiting}]
    needed = line.ranked[: min(NEEDED, cap - len(sure))]
    too_many = len(offered) + len({*sure, *needed}.difference(offered)) - cap
    leaving: set[str] = set()
    if too_many > 0:
        # Nobody leaves for whom nobody comes.
        count = max(too_many, min(BATCH, len({*sure, *line.ranked}.difference(offered))))
        leaving = _longest_unused([name for name in offered if name not in {*sure, *needed}], waiting, used, count)
    kept = [name for name in offered if name not in leaving]
    # What has just left does not come back in the same breath.
    coming = [name for name in waiting if name not in leaving]
    return first_few((*kept, *sure), coming, cap)


def _longest_unused(names: Sequence[str], ranked: Sequence[str], used: Sequence[str], count: int) -> set[str]:
    """Those never used go first, among them the least fitting."""
    use = {name: place for place, name in enumerate(used)}
    fit = {name: place for place, name in enumerate(ranked)}
    last = sorted(names, key=lambda name: (use.get(name, len(use)), fit.get(name, len(fit))), reverse=True)
    return set(last[:count])


def used_tools(session: Session) -> list[str]:
    """The tools of this session, the one used last first."""
    steps = (entry for entry in reversed(session.transcript) if isinstance(entry, Step))
    return list(dict.fromkeys(use.tool for step in steps for use in reversed(step.uses)))


def pins(session: Session) -> dict[str, int]:
    """The versions that the running turn has been offered: it keeps them to its end."""
    return session.turn.pins if session.turn else {}
