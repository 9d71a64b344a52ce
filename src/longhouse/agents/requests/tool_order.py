"""Selects and orders the tools that a step is offered from the permitted ones; pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from longhouse.agents.naming import NamePatterns
from longhouse.agents.requests import tokens
from longhouse.agents.template import MOST_OFFERED, ToolPolicy
from longhouse.agents.tool import Tool
from longhouse.journal.events import Selection
from longhouse.journal.session import Session, Turn
from longhouse.journal.transcript import Step

NEEDED: Final = 3
"""A full set changes only if one of the best NEEDED tools for the step is missing: a change invalidates the provider's
prompt cache, and lower-ranked tools are rarely what the step needs."""
BATCH: Final = 4
"""How many tools are removed together: the next steps find room, and the cache is invalidated once, not each time."""

BY_DOZEN: Final = 12
"""Of the tools that a policy with `auto` admits as a group, this many are offered, where not all can be."""

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


def auto_cap(whole: int) -> int:
    """The cap of `auto` where not all can be offered: these, and a dozen others."""
    return min(whole + BY_DOZEN, MOST_OFFERED)


def tokens_of(tools: Iterable[Tool]) -> int:
    """The tokens of their definitions, estimated."""
    return sum(-(-len(bytes(tool.spec(tool.name))) // tokens.BYTES) for tool in tools)


def capped(names: Iterable[str], policy: ToolPolicy) -> list[str]:
    """The first of these tools that the policy has places for; those that come first stay so."""
    every, cap = list(names), policy.cap
    if cap and len(every) <= cap:
        return every
    first = NamePatterns(policy.required if cap else policy.whole)
    sure = [name for name in every if name in first]
    return first_few(sure, every, cap or auto_cap(len(sure)))


def selection(
    offered: Sequence[str], candidates: Iterable[str], scores: Mapping[str, float], query: str = "", stage: str = ""
) -> Selection:
    """The record of how the set was selected, bounded in size; `candidates` are all tools in order."""
    chosen = frozenset(offered)
    left = [name for name in dict.fromkeys(candidates) if name not in chosen]
    left_out = left[:MOST_LEFT_OUT]
    if len(query) > LONGEST_QUERY:
        # The beginning and the end say most about the task.
        query = f"{query[: LONGEST_QUERY // 2]}\n[…]\n{query[-LONGEST_QUERY // 2 :]}"
    return Selection(
        query=query,
        stage=stage,
        scores={name: round(scores[name], 4) for name in (*offered, *left_out) if name in scores},
        left_out=tuple(left_out),
        more=len(left) - len(left_out),
    )


class Candidates(msgspec.Struct, frozen=True):
    """The tools that may be offered, in groups that each have their own order."""

    required: Sequence[str]
    named: Sequence[str]
    """Tools that the policy names one by one, in its order."""
    ranked: Sequence[str]
    """Tools that the search found, the best for this step first."""
    others: Sequence[str]
    """Tools that the policy names by a `<server>.*` pattern and the search did not find."""

    @property
    def auto_cap(self) -> int:
        return auto_cap(len({*self.required, *self.named}))

    @property
    def in_order(self) -> list[str]:
        """Tools that a policy names one by one before those it admits as a group, by `<server>.*` or an open list;
        within each kind the best for the step first."""
        named = frozenset(self.named)
        best = [name for name in self.ranked if name in named]
        return list(dict.fromkeys((*best, *self.named, *self.ranked, *self.others)))


def sticky(offered: Sequence[str], candidates: Candidates, used: Sequence[str], cap: int) -> list[str]:
    """The set of the last step, extended at its end. If it has no room for needed tools, the least recently used go.

    If all named tools fit, they are always in the set, and the others compete for the remaining places. If not, the
    named tools compete, and no others are in the set. `used` has the most recently used first.
    """
    named = frozenset(candidates.named)
    sure = list(dict.fromkeys((*candidates.required, *candidates.named)))
    if len(sure) <= cap:
        ranked = [name for name in candidates.ranked if name not in named]
        waiting = (*ranked, *candidates.others)
    else:
        sure = list(candidates.required[:cap])
        ranked = [name for name in candidates.ranked if name in named]
        waiting = (*ranked, *candidates.named)
        offered = [name for name in offered if name in {*sure, *waiting}]
    needed = ranked[: min(NEEDED, cap - len(sure))]
    too_many = len(offered) + len({*sure, *needed}.difference(offered)) - cap
    leaving: set[str] = set()
    if too_many > 0:
        # Remove no more tools than there are new ones to add.
        count = max(too_many, min(BATCH, len({*sure, *ranked}.difference(offered))))
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
