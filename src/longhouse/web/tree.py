"""The agents beneath a session: what they do, what they ask, and whether anything in their trace can still move."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.plain import SILENT
from longhouse.journal.session import Open, Session, State
from longhouse.store import delegations, journals
from longhouse.store.database import Database
from longhouse.store.delegations import Node

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
        return f"Did {self.call.tool} happen?"

    @property
    def spoken(self) -> str:
        """As it is asked at the top: with who asks, and what is to be approved."""
        detail = "" if self.call.question else f" Its arguments: {self.call.arguments}"
        return f"{self.session.agent}: {self.text}{detail}"


@dataclass(frozen=True, slots=True)
class Standing:
    """How things stand beneath a session."""

    rests: bool
    """Can nothing move before a person does something?"""
    questions: tuple[Question, ...] = ()
    """The oldest first."""

    @property
    def state(self) -> State | None:
        """What the session at the top is shown as, where somebody beneath it waits for a person."""
        kinds = {question.call.kind for question in self.questions}
        if "ask" in kinds:
            return State.WAITING_FOR_CLARIFICATION
        return State.WAITING_FOR_APPROVAL if kinds else None


async def standing(db: Database, session: Session) -> Standing:
    """How things stand beneath a session that waits for others; one that waits for nobody rests by itself."""
    turn, own = session.turn, any(call.awaits_person for call in session.open.values())
    if turn is None or session.can_move or not any(call.kind == "agent" for call in session.open.values()):
        return Standing(rests=not session.can_move)
    nodes = await delegations.beneath(db, session.id, turn.trace)
    asking = [await journals.load(db, node.id, node.head) for node in nodes if node.state in ASKING]
    questions = [Question(one, call) for one in asking for call in one.open.values() if call.awaits_person]
    # Where nobody asks, an outcome is on its way to us.
    rests = (own or bool(questions)) and all(_rests(node) for node in nodes)
    return Standing(rests, tuple(sorted(questions, key=_age)))


def _age(question: Question) -> tuple[Any, int]:
    return question.session.updated_at, question.call.seq


def _rests(node: Node) -> bool:
    if node.due or node.holder:
        return False
    # A provider that is waited out wakes by itself; a question with a deadline is a question all the same.
    return node.wake_at is None or node.state == State.WAITING_FOR_APPROVAL


@dataclass(slots=True)
class Branch:
    """One agent beneath, as far as it was followed."""

    seen: int = 0
    tools: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Tree:
    """Follows the agents of one trace beneath a session, and tells what they do by the names that people know."""

    db: Database
    root: str
    trace: str
    conversation: str
    branches: dict[str, Branch] = field(default_factory=dict)

    async def news(self) -> list[dict[str, Any]]:
        """What happened beneath since the last look."""
        nodes = {node.id: node for node in await delegations.tree(self.db, self.root, self.trace) if node.depth}
        if not nodes:
            return []
        cursors = {session_id: self._branch(session_id).seen for session_id in nodes}
        found: list[dict[str, Any]] = []
        for session_id, records in (await journals.read_trace(self.db, cursors, self.trace)).items():
            branch = self._branch(session_id)
            branch.seen = records[-1].seq
            found += [{**told, "at": record.at} for record, told in _told(records, branch, nodes[session_id])]
        found.sort(key=lambda told: told["at"])
        return [self._dressed(told) for told in found]

    def _branch(self, session_id: str) -> Branch:
        return self.branches.setdefault(session_id, Branch())

    def _dressed(self, told: dict[str, Any]) -> dict[str, Any]:
        at = told.pop("at")
        return {
            **told,
            "role": told["event"],
            "conversation_id": self.conversation,
            "chat_id": self.conversation,
            "trace_id": self.trace,
            "timestamp": at.timestamp(),
        }


def _told(records: Sequence[Recorded], branch: Branch, node: Node) -> Iterator[tuple[Recorded, dict[str, Any]]]:
    about = {"agent": node.agent, "subagent_name": node.agent, "session_id": node.id, "depth": node.depth}
    for place, record in enumerate(records):
        for event, detail in _event(record.event, records[place + 1 :], branch):
            yield record, {"event": event, **about, **detail}


def _event(event: events.Event, rest: Sequence[Recorded], branch: Branch) -> Iterator[tuple[str, dict[str, Any]]]:
    match event:
        case events.Prompted():
            yield "subagent_delegation", {"task": "\n".join(one for one in event.content if isinstance(one, str))}
        case events.Replied():
            if calls := _calls(rest):
                said = {"content": "" if event.thought else event.text, "tool_calls": [_call(call) for call in calls]}
                yield "subagent_assistant_with_tools", said
        case events.Called():
            branch.tools[event.call] = event.tool
            if event.tool not in SILENT and not event.question:
                yield "subagent_tool", {"tool": event.tool, "arguments": event.arguments, "call_id": event.call}
        case events.Returned():
            tool = branch.tools.get(event.call, "")
            if tool not in SILENT and event.by != "user":
                yield "subagent_tool_result", {"tool_call_id": event.call, "name": tool, "content": _words(event)}
        case events.Finished():
            yield "subagent_completion", {"response": event.answer, "status": "completed"}
        case events.Failed():
            yield "subagent_completion", {"response": event.reason, "status": "failed"}
        case events.Cancelled():
            yield "subagent_completion", {"response": "", "status": "cancelled"}


def _calls(rest: Sequence[Recorded]) -> list[events.Called]:
    """The calls of a reply, which were recorded together with it."""
    found = []
    for record in rest:
        if isinstance(record.event, events.Replied):
            break
        if isinstance(record.event, events.Called) and record.event.tool not in SILENT and not record.event.question:
            found.append(record.event)
    return found


def _call(called: events.Called) -> dict[str, Any]:
    function = {"name": called.tool, "arguments": called.arguments}
    return {"id": called.call, "type": "function", "function": function}


def _words(returned: events.Returned) -> str:
    outcome = returned.outcome
    return f"Error: {outcome.message}" if isinstance(outcome, Fault) else outcome.content
