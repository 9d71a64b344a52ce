"""The agents beneath a session: what they do, what they ask, and whether anything in their trace can still move."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.plain import SILENT
from longhouse.journal.session import Open, Session, State
from longhouse.store import journals, lineage, trees, views
from longhouse.store.database import Database
from longhouse.store.lineage import Node

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
    nodes = await lineage.beneath(db, session.id, turn.trace)
    asking = [await journals.load(db, node.id, node.head) for node in nodes if node.state in ASKING]
    questions = [Question(one, call) for one in asking for call in one.open.values() if call.awaits_person]
    # Where nobody asks, an outcome is on its way to us.
    rests = (own or bool(questions)) and all(_rests(node) for node in nodes)
    return Standing(rests, tuple(sorted(questions, key=_age)))


async def shown(db: Database, rows: Sequence[views.Row]) -> list[views.Row]:
    """Sessions as lists show them: one that waits for others is in the state of those who wait for a person."""
    waiting = {row.id: row.trace_id for row in rows if row.state == State.WAITING_FOR_AGENT and row.trace_id}
    asked = await trees.asked(db, waiting)
    return [replace(row, state=_first(asked[row.id])) if row.id in asked else row for row in rows]


def _first(states: Sequence[str]) -> str:
    """As `Standing` has it: a question comes before an approval."""
    asks = State.WAITING_FOR_CLARIFICATION in states
    return State.WAITING_FOR_CLARIFICATION if asks else State.WAITING_FOR_APPROVAL


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
    """Call -> its tool; empty for a question, whose answer is no result of a tool."""


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
        nodes = {node.id: node for node in await lineage.tree(self.db, self.root, self.trace) if node.depth}
        if not nodes:
            return []
        cursors = {session_id: self._branch(session_id).seen for session_id in nodes}
        found = []
        for session_id, records in (await journals.read_trace(self.db, cursors, self.trace)).items():
            branch, node = self._branch(session_id), nodes[session_id]
            branch.seen = records[-1].seq
            agent = Agent(node.id, node.agent, self.conversation, {self.trace: node.depth})
            found.append([(record, one) for record, one in told(records, branch, agent) if one])
        # Merged and not sorted: whatever the clocks say, the events of one agent stay in their order.
        return [one for _, one in heapq.merge(*found, key=lambda pair: pair[0].at) if one]

    def _branch(self, session_id: str) -> Branch:
        return self.branches.setdefault(session_id, Branch())


@dataclass(frozen=True, slots=True)
class Agent:
    """Whom events are told of."""

    id: str
    name: str
    conversation: str
    depths: Mapping[str, int]
    """Trace -> how far beneath it stands there; its other traces are nobody's business here."""


def told(records: Sequence[Recorded], branch: Branch, agent: Agent) -> Iterator[tuple[Recorded, dict[str, Any] | None]]:
    """Each record as it is told by the name that people know; None where there is nothing to tell."""
    ours = [record for record in records if record.trace in agent.depths]
    place = -1
    for record in records:
        if record.trace not in agent.depths:
            yield record, None
            continue
        place += 1
        rest = map(ours.__getitem__, range(place + 1, len(ours)))
        found = next(_event(record.event, rest, branch), None)
        yield record, _dressed(record, agent, *found) if found else None


def _dressed(record: Recorded, agent: Agent, event: str, detail: dict[str, Any]) -> dict[str, Any]:
    return {
        "event": event,
        "agent": agent.name,
        "subagent_name": agent.name,
        "session_id": agent.id,
        "depth": agent.depths[record.trace],
        **detail,
        "role": event,
        "conversation_id": agent.conversation,
        "chat_id": agent.conversation,
        "trace_id": record.trace,
        "timestamp": record.at.timestamp(),
    }


def _event(event: events.Event, rest: Iterable[Recorded], branch: Branch) -> Iterator[tuple[str, dict[str, Any]]]:
    """At most one."""
    match event:
        case events.Prompted():
            yield "subagent_delegation", {"task": "\n".join(one for one in event.content if isinstance(one, str))}
        case events.Replied():
            if calls := _calls(rest):
                said = {"content": "" if event.thought else event.text, "tool_calls": [_call(call) for call in calls]}
                yield "subagent_assistant_with_tools", said
        case events.Called():
            branch.tools[event.call] = "" if event.question else event.tool
            if event.tool not in SILENT and not event.question:
                yield "subagent_tool", {"tool": event.tool, "arguments": event.arguments, "call_id": event.call}
        case events.Returned():
            tool = branch.tools.get(event.call, "")
            if tool and tool not in SILENT:
                yield "subagent_tool_result", {"tool_call_id": event.call, "name": tool, "content": _words(event)}
        case events.Finished():
            yield "subagent_completion", {"response": event.answer, "status": "completed"}
        case events.Failed():
            yield "subagent_completion", {"response": event.reason, "status": "failed"}
        case events.Cancelled():
            yield "subagent_completion", {"response": "", "status": "cancelled"}


def _calls(rest: Iterable[Recorded]) -> list[events.Called]:
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
