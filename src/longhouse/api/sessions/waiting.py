"""Open questions of a session and its sub-agents, and whether anything can proceed before a person answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from longhouse.journal.json_text import value_of
from longhouse.journal.pending_decisions import happened
from longhouse.journal.session import Open, Session, State, own_label
from longhouse.journal.visible_text import readable
from longhouse.store import journals, sessions
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Root

ASKING: Final = (State.WAITING_FOR_CLARIFICATION, State.WAITING_FOR_APPROVAL)


@dataclass(frozen=True, slots=True)
class Question:
    """An open question, and the agent that asks it."""

    session: Session
    call: Open

    @property
    def text(self) -> str:
        if self.call.question:
            return self.call.question
        if self.call.approve_by:
            return f"May {self.call.tool} run?"
        return happened(self.call.tool, readable(self.call.doubt))

    @property
    def spoken(self) -> str:
        """The question as the top session asks it: with the name of the agent."""
        return f"{self.session.agent}: {self.text}"

    def label(self, top: Session) -> str:
        """Its name in the top session: call ids are unique within a session only, so sub-agents add their own name."""
        if self.session.id == top.id:
            return self.call.call
        return f"{asker(self.session.agent, self.session.label)}/{self.call.call}"

    @property
    def of_agent(self) -> str:
        """The same with the agent's name alone, for an agent with one session."""
        return f"{self.session.agent}/{self.call.call}"

    def is_same(self, other: "Question") -> bool:
        """Is it about the same call, whatever its session has done since?"""
        return (self.session.id, self.call.call) == (other.session.id, other.call.call)


@dataclass(frozen=True, slots=True)
class WaitingStatus:
    """What a session waits for in its sub-agents."""

    rests: bool
    """Can nothing proceed before a person acts?"""
    questions: tuple[Question, ...] = ()
    """Oldest first."""

    @property
    def state(self) -> State | None:
        """The state shown for the top session if a sub-agent waits for a person."""
        kinds = {question.call.call_kind for question in self.questions}
        if "ask" in kinds:
            return State.WAITING_FOR_CLARIFICATION
        return State.WAITING_FOR_APPROVAL if kinds else None


def asker(agent: str, label: str) -> str:
    """The agent's name with the label of its session: one agent may have several. Labels: letters, digits, . _ : @ -"""
    label = own_label(label)
    return f"{agent}:{label}" if label else agent


def own(session: Session) -> list[Question]:
    """The session's own open questions."""
    return [Question(session, call) for call in session.open.values() if call.awaits_person]


def named(questions: Sequence[Question], top: Session, name: str | None) -> list[Question]:
    """The questions that a name means: the one with this label, else those of this agent, else those with this id."""
    if name is None:
        return [*questions]
    by_label = [one for one in questions if one.label(top) == name]
    by_agent = [one for one in questions if one.session.id != top.id and one.of_agent == name]
    return by_label or by_agent or [one for one in questions if one.call.call == name]


def collected(session: Session) -> list[str]:
    """The handles of earlier delegations that the current turn collects."""
    uses = (use for step in session.steps for use in step.uses if use.role == "collects")
    return [handle for use in uses for handle in handles_in(use.arguments)]


def handles_in(arguments: str) -> list[str]:
    """The handle in the arguments: at most one, since a model may write anything."""
    given = value_of(arguments)
    handle = given.get("handle") if isinstance(given, dict) else None
    return [handle] if isinstance(handle, str) else []


async def waiting_status(db: Database, session: Session) -> WaitingStatus:
    """The waiting status of a session that waits for sub-agents; a session that waits for none rests by itself."""
    turn = session.turn
    if turn is None or session.can_move or not session.awaits_agents:
        return WaitingStatus(rests=not session.can_move)
    found = await tree.nodes(db, [Root(session.id, session.id, turn.trace)], awaited=True, open_only=True)
    nodes = [node for node in found if node.id != session.id]
    asking = [await journals.load(db, node.id, node.head) for node in nodes if node.state in ASKING]
    questions = [question for one in asking for question in own(one)]
    # Without an open question, an outcome is on its way to the session.
    rests = bool(questions or own(session)) and not any(node.can_move for node in nodes)
    return WaitingStatus(rests, tuple(sorted(questions, key=_age)))


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


def _age(question: Question) -> tuple[Any, int]:
    return question.call.at or question.session.updated_at, question.call.seq
