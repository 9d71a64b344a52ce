"""Which few of the permitted tools a step is offered, and in which order: values in, names out."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from longhouse.journal.session import Session
from longhouse.journal.transcript import Step

NEEDED: Final = 3
"""A full set changes only when one of so many best tools for the step is missing: a change costs the provider's cache,
and what ranks below has rarely been what the step was about."""
BATCH: Final = 4
"""So many leave together: the next steps find room, and the cache is lost once instead of each time."""


def query_of(session: Session, stage: str) -> str:
    """What the step is about: what remains to be done first, the task, how far the work is."""
    assert session.turn is not None
    step = next_step(session.context.get("current_step_reasoning"))
    return "\n".join(part for part in (step, session.turn.task, stage) if part)


def next_step(reasoning: Any) -> str:
    """The first of the steps that the agent said remain."""
    remaining = reasoning.get("remaining_steps") if isinstance(reasoning, dict) else None
    first = remaining[0] if isinstance(remaining, list) and remaining else ""
    return first if isinstance(first, str) else ""


def first_few(required: Sequence[str], others: Iterable[str], cap: int) -> list[str]:
    """Required ones first, then the others in their order; never more than the cap."""
    return list(dict.fromkeys((*required, *others)))[:cap]


def sticky(
    offered: Sequence[str], required: Sequence[str], ranked: Sequence[str], used: Sequence[str], cap: int
) -> list[str]:
    """The set of the last step, grown at its end. When it has no room for what is needed, the longest unused leave.

    `ranked` has the best for this step first, `used` what was used last first.
    """
    required, needed = required[:cap], ranked[:NEEDED]
    new = {*required, *needed}.difference(offered)
    too_many = len(offered) + len(new) - cap
    leaving: set[str] = set()
    if too_many > 0:
        staying = {*required, *needed[: cap - len(required)]}
        leaving = _longest_unused([name for name in offered if name not in staying], ranked, used, max(BATCH, too_many))
    kept = [name for name in offered if name not in leaving]
    # What has just left does not come back in the same breath.
    filling = [name for name in ranked if name not in leaving]
    return list(dict.fromkeys((*kept, *required, *filling)))[:cap]


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
