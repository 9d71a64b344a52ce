"""Resolves the name of a call: call ids are unique within a session only, and sub-agents may use the same ids."""

from collections.abc import Callable, Sequence
from typing import Final

from longhouse import clock
from longhouse.api.sessions import decisions
from longhouse.api.sessions.decisions import settled
from longhouse.api.sessions.waiting import Question, asker, collected, named, own, waiting_status
from longhouse.journal.session import Session
from longhouse.store.database import Database
from longhouse.store.delegation import tree

HOW: Final = "name the one that you mean with its agent, as in analytic/1-action-0, or go to the session that asks."


async def meant(
    db: Database, session: Session, name: str | None, fits: Callable[[Question], bool] = lambda one: True
) -> list[Question]:
    """The waiting call that this name means: at most one, the session's own before those of sub-agents.

    Without a name, all waiting calls. A message about a finished call never reaches another call with the same id: that
    is a 409, and so is an ambiguous name. A name with agent and label, as the API returns it, is always unique.
    """
    # Read first: a call that is finished by now cannot be among the waiting calls that are read next.
    over = await _over(db, session, name) if name is not None else set()
    below = await waiting_status(db, session)
    waiting = named([*own(session), *below.questions], session, name)
    found = [one for one in waiting if fits(one)]
    if name is None:
        return found
    is_exact = bool(waiting) and waiting[0].label(session) == name
    if not is_exact and _may_mean_what_is_over(over, waiting):
        raise settled(f"A call of this name was answered or decided already: {HOW}")
    if len(found) > 1:
        raise settled(f"Several agents wait with a call of this name: {HOW}")
    return found


async def _over(db: Database, session: Session, name: str) -> set[str]:
    """The sessions whose call of this name is finished."""
    by, _, call = name.rpartition("/")
    found = await tree.closed_questions(db, session, call, collected(session))
    if by:
        found = [one for one in found if one.id != session.id and by in (one.agent, asker(one.agent, one.label))]
    return {one.id for one in found}


def _may_mean_what_is_over(over: set[str], waiting: Sequence[Question]) -> bool:
    """Is there a finished call, or one past its deadline while others wait?"""
    now = clock.now()
    is_late = len(waiting) > 1 and any(decisions.is_late(one.call, now) for one in waiting)
    return is_late or bool(over.difference(one.session.id for one in waiting))
