"""Open questions of a session and its sub-agents: their names, and whether anything can proceed before an answer.

Call ids are unique within a session only, and sub-agents may use the same ids.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from longhouse import clock
from longhouse.errors import CallerError
from longhouse.journal.json_text import value_of
from longhouse.journal.session import Open, Session, State
from longhouse.journal.words.question_words import asker, subagent_label, text_of
from longhouse.journal.words.visible_text import readable
from longhouse.store import journals, sessions
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Node, Root

HOW: Final = "name the call with its agent, as in analytic/1-action-0, or answer at the session that asks."
ASKING: Final = (State.WAITING_FOR_CLARIFICATION, State.WAITING_FOR_APPROVAL)
MAX_TEXT: Final = 200_000
"""Characters of an answer, of a comment, of the result of a call."""


class Question(msgspec.Struct, frozen=True):
    """An open question, and the agent that asks it."""

    session: Session
    call: Open

    @property
    def text(self) -> str:
        call = self.call
        return text_of(call.question_kind, call.tool, call.question, doubt=call.doubt)

    @property
    def text_with_agent(self) -> str:
        """The question as the top session asks it: with the name of the agent."""
        return f"{self.session.agent}: {self.text}"

    def label(self, top: Session) -> str:
        """Its name in the top session: call ids are unique within a session only, so sub-agents add their own name."""
        if self.session.id == top.id:
            return self.call.call
        return subagent_label(self.session.agent, self.session.label, self.call.call)

    def is_same(self, other: "Question") -> bool:
        """Is it about the same call, whatever its session has done since?"""
        return (self.session.id, self.call.call) == (other.session.id, other.call.call)


class WaitingStatus(msgspec.Struct, frozen=True):
    """What a session and its sub-agents wait for."""

    rests: bool
    """Can nothing proceed before a person acts?"""
    own: Sequence[Question] = ()
    subagents: Sequence[Question] = ()
    """Oldest first."""
    can_move: bool = False
    """Can the session itself proceed meanwhile?"""

    @property
    def questions(self) -> list[Question]:
        """All open questions, the session's own first."""
        return [*self.own, *self.subagents]

    @property
    def state(self) -> State | None:
        """The state shown for the top session if it waits for a sub-agent that waits for a person."""
        kinds = set() if self.can_move else {question.call.call_kind for question in self.subagents}
        if "ask" in kinds:
            return State.WAITING_FOR_CLARIFICATION
        return State.WAITING_FOR_APPROVAL if kinds else None


def _own(session: Session) -> list[Question]:
    return [Question(session, call) for call in session.open.values() if call.awaits_person]


def named(questions: Sequence[Question], top: Session, name: str | None) -> list[Question]:
    """The questions that a name means: the one with this label, else those of this agent, else those with this id."""
    if name is None:
        return [*questions]
    by_label = [one for one in questions if one.label(top) == name]
    subagents = [one for one in questions if one.session.id != top.id]
    by_agent = [one for one in subagents if f"{one.session.agent}/{one.call.call}" == name]
    return by_label or by_agent or [one for one in questions if one.call.call == name]


async def find_questions(
    db: Database,
    session: Session,
    name: str | None,
    fits: Callable[[Question], bool] = lambda one: True,
) -> list[Question]:
    """The waiting call that this name means: at most one, the session's own before those of sub-agents, and these
    before those of sub-agents that the session does not wait for.

    Without a name, all waiting calls. A message about a finished call never reaches another call with the same id: that
    is a 409, and so is an ambiguous name. A name with agent and label, as the API returns it, is always unique.
    """
    # Read first: a call that is finished by now cannot be among the waiting calls that are read next.
    over = await _over(db, session, name) if name is not None else set()
    waiting = named((await waiting_status(db, session)).questions, session, name)
    if name is not None and not waiting:
        waiting = named(await _of_subagents(db, session), session, name)
    found = [one for one in waiting if fits(one)]
    if name is None:
        return found
    is_exact = bool(waiting) and waiting[0].label(session) == name
    is_late_one = len(waiting) > 1 and any(is_late(one.call, clock.now()) for one in waiting)
    if not is_exact and (is_late_one or over.difference(one.session.id for one in waiting)):
        if not waiting:
            raise settled(f"{shortened(name)} was answered or decided already.")
        raise settled(f"A call of this name was answered or decided already: {HOW}")
    if len(found) > 1:
        raise settled(f"Several agents wait with a call of this name: {HOW}")
    return found


async def _over(db: Database, session: Session, name: str) -> set[str]:
    """The sessions whose call of this name is finished, in this turn or an earlier one."""
    agent, _, call = name.rpartition("/")
    found = await tree.closed_questions(db, session, call)
    if agent:
        found = [one for one in found if one.id != session.id and agent in (one.agent, asker(one.agent, one.label))]
    return {one.id for one in found}


def is_late(call: Open, now: datetime) -> bool:
    """Is it past the deadline of its approval?"""
    return call.approve_by is not None and call.approve_by <= now


def shortened(name: str) -> str:
    """A name of a call as the caller gave it, which may be anything."""
    return readable(name[:100])


def settled(message: str) -> CallerError:
    """The error for a call that is already answered or decided."""
    return CallerError(message, status=409, code="already_settled")


def handles_in(arguments: str) -> list[str]:
    """The handle in the arguments: at most one, since a model may write anything."""
    given = value_of(arguments)
    handle = given.get("handle") if isinstance(given, dict) else None
    return [handle] if isinstance(handle, str) else []


async def waiting_status(db: Database, session: Session) -> WaitingStatus:
    """Sub-agents are read only if the session awaits them; a session that awaits none rests by itself."""
    turn, own, can_move = session.turn, _own(session), session.can_move
    if turn is None or not session.awaits_agents:
        return WaitingStatus(not can_move, own)
    found = await tree.nodes(db, [Root(session.id, session.id, turn.trace)], awaited=True, open_only=True)
    nodes = [node for node in found if node.id != session.id]
    questions = await _asked_by(db, nodes)
    # Without an open question, an outcome is on its way to the session.
    rests = not can_move and bool(questions or own) and not any(node.can_move for node in nodes)
    return WaitingStatus(rests, own, questions, can_move)


async def is_over(db: Database, session: Session, *, has_subagents: bool) -> bool:
    """Whether the session rests, and no sub-agent can proceed without a person: none that it waits for, or, where
    `has_subagents` are shown too, none at all."""
    if session.can_move or not (await waiting_status(db, session)).rests:
        return False
    return not has_subagents or not any(node.can_move for node in await _below(db, session.id))


async def background_questions(db: Database, session: Session, known: Sequence[Question] = ()) -> list[Question]:
    """What sub-agents ask that the session does not wait for (`wait: false`), also after its turn has ended; without
    those that are known."""
    questions = await _asked_by(db, await _below(db, session.id))
    return [one for one in questions if not any(map(one.is_same, known))]


async def _asked_by(db: Database, nodes: Sequence[Node]) -> list[Question]:
    """The open questions of these sessions, oldest first."""
    asking = [await journals.load(db, node.id, node.head) for node in nodes if node.state in ASKING]
    questions = [question for one in asking for question in _own(one)]
    return sorted(questions, key=lambda one: (one.call.at or one.session.updated_at, one.call.seq))


async def tree_ids(db: Database, session_id: str) -> list[str]:
    """The session and the sub-agents that work for it, whether it waits for them or not."""
    return list(dict.fromkeys([session_id, *(node.id for node in await _below(db, session_id))]))


async def _below(db: Database, session_id: str) -> list[Node]:
    """The sub-agents that work for a session, whether it waits for them or not."""
    found = await tree.nodes(db, [Root(session_id, session_id, None)], open_only=True)
    return [node for node in found if node.id != session_id]


async def _of_subagents(db: Database, session: Session) -> list[Question]:
    """The open questions of all sub-agents that work for the session, whether it waits for them or not."""
    below = [await journals.load(db, one) for one in await tree_ids(db, session.id) if one != session.id]
    return [question for one in below for question in _own(one)]


async def shown(db: Database, rows: Sequence[sessions.SessionRow]) -> list[sessions.SessionRow]:
    """Rows of a list: a session that waits for sub-agents has the state of the one that waits for a person."""
    waiting = [Root(row.id, row.id, row.trace_id) for row in rows if row.state == State.WAITING_FOR_AGENT]
    nodes = await tree.nodes(db, [root for root in waiting if root.trace], awaited=True, open_only=True)
    # As in `WaitingStatus`: a question comes before an approval.
    states = {
        node.top: node.state
        for kind in reversed(ASKING)
        for node in nodes
        if node.state == kind and node.id != node.top
    }
    return [replace(row, state=states.get(row.id, row.state)) for row in rows]
