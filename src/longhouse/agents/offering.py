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
    """The set of the last step, grown at its end. When it is full and lacks what is needed, the longest unused leave.

    `ranked` has the best for this step first, `used` what was used last first.
    """
    required = required[:cap]
    kept = _fitting(offered, required, ranked, used, cap)
    needed = ranked[:NEEDED]
    room = cap - len({*kept, *required})
    missing = [name for name in needed if name not in kept and name not in required]
    if len(missing) > room:
        kept = _without_longest_unused(kept, {*required, *needed}, ranked, used, max(BATCH, len(missing) - room))
    return list(dict.fromkeys((*kept, *required, *ranked)))[:cap]


def _fitting(
    kept: Sequence[str], required: Sequence[str], ranked: Sequence[str], used: Sequence[str], cap: int
) -> list[str]:
    """Room for what is required, whatever was offered before."""
    too_many = len({*kept, *required}) - cap
    return _without_longest_unused(kept, {*required}, ranked, used, too_many) if too_many > 0 else list(kept)


def _without_longest_unused(
    names: Sequence[str], staying: set[str], ranked: Sequence[str], used: Sequence[str], count: int
) -> list[str]:
    """Those never used go first, among them the least fitting."""
    use = {name: place for place, name in enumerate(used)}
    fit = {name: place for place, name in enumerate(ranked)}
    free = [name for name in names if name not in staying]
    free.sort(key=lambda name: (use.get(name, len(use)), fit.get(name, len(fit))), reverse=True)
    leaving = set(free[:count])
    return [name for name in names if name not in leaving]


def used_tools(session: Session) -> list[str]:
    """The tools of this session, the one used last first."""
    steps = (entry for entry in reversed(session.transcript) if isinstance(entry, Step))
    return list(dict.fromkeys(use.tool for step in steps for use in reversed(step.uses)))


def pins(session: Session) -> dict[str, int]:
    """The versions that the running turn has been offered: it keeps them to its end."""
    return session.turn.pins if session.turn else {}
