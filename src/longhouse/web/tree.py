"""The agents beneath a session: what they do, what they ask, and whether anything in their trace can still move."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from longhouse.journal import events
from longhouse.journal.asking import happened
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.plain import SILENT
from longhouse.journal.readable import readable
from longhouse.journal.session import Open, Session, State, own_label
from longhouse.journal.sound import value_of
from longhouse.journal.transcript import Step
from longhouse.store import journals, lineage, trees, views
from longhouse.store.database import Database
from longhouse.store.lineage import Node, Reached, Root, Span

ASKING: Final = (State.WAITING_FOR_CLARIFICATION, State.WAITING_FOR_APPROVAL)
COLLECTS: Final = "collecttool"


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
        """As a question is asked at the top: with who asks."""
        return f"{self.session.agent}: {self.text}"

    def label(self, top: Session) -> str:
        """What a person calls it by in the session at the top: ids are a session's own, so others are named with it."""
        if self.session.id == top.id:
            return self.call.call
        return f"{asker(self.session.agent, self.session.label)}/{self.call.call}"

    @property
    def of_agent(self) -> str:
        """The same by the agent alone, where there is one session of it."""
        return f"{self.session.agent}/{self.call.call}"

    def is_same(self, other: "Question") -> bool:
        """Is it about the same call, however far its session has gone since?"""
        return (self.session.id, self.call.call) == (other.session.id, other.call.call)


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


def asker(agent: str, label: str) -> str:
    """One agent may have several sessions, under labels of letters, digits and . _ : @ -"""
    label = own_label(label)
    return f"{agent}:{label}" if label else agent


def own(session: Session) -> list[Question]:
    """What the session itself asks a person."""
    return [Question(session, call) for call in session.open.values() if call.awaits_person]


def named(questions: Sequence[Question], top: Session, name: str | None) -> list[Question]:
    """Those that a person means by a name: the one with this label, else any of this agent, else any with this id."""
    if name is None:
        return [*questions]
    by_label = [one for one in questions if one.label(top) == name]
    by_agent = [one for one in questions if one.session.id != top.id and one.of_agent == name]
    return by_label or by_agent or [one for one in questions if one.call.call == name]


def collected(session: Session) -> list[str]:
    """The handles that the present turn collects what earlier calls have begun by."""
    uses = (use for step in session.steps for use in step.uses if use.tool == COLLECTS)
    return [handle for use in uses for handle in _handle(use.arguments)]


async def standing(db: Database, session: Session) -> Standing:
    """How things stand beneath a session that waits for others; one that waits for nobody rests by itself."""
    turn = session.turn
    if turn is None or session.can_move or not session.awaits_agents:
        return Standing(rests=not session.can_move)
    nodes = await lineage.beneath(db, session.id, turn.trace)
    asking = [await journals.load(db, node.id, node.head) for node in nodes if node.state in ASKING]
    questions = [Question(one, call) for one in asking for call in one.open.values() if call.awaits_person]
    # Where nobody asks, an outcome is on its way to us.
    rests = bool(questions or own(session)) and all(_rests(node) for node in nodes)
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
    return question.call.at or question.session.updated_at, question.call.seq


def _rests(node: Node) -> bool:
    if node.due or node.holder:
        return False
    # A provider that is waited out wakes by itself; a question with a deadline is a question all the same.
    return node.wake_at is None or node.state == State.WAITING_FOR_APPROVAL


@dataclass(slots=True)
class Branch:
    """One agent beneath, as far as it was followed."""

    seen: dict[str, int] = field(default_factory=dict)
    """Trace -> up to where in its journal."""
    tools: dict[str, str] = field(default_factory=dict)
    """Call -> its tool; empty for a question, whose answer is no result of a tool."""


@dataclass(slots=True)
class Tree:
    """Follows those whom one turn of a session has asked, or collects from, and tells what they do."""

    db: Database
    session: Session
    """As it was when it was first looked at."""
    trace: str
    told: Mapping[str, int] = field(default_factory=dict)
    """Session -> how much of its journal was there before, and is not told again."""
    _handles: list[str] = field(default_factory=list)
    _begun: list[Root] = field(default_factory=list)
    """What earlier turns have begun, and this one collects."""
    _before: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Trace of an earlier turn -> what its own stream has told, as in `told`."""
    _branches: dict[str, Branch] = field(default_factory=dict)

    def collect(self, arguments: str) -> None:
        """The turn collects what a call has begun, perhaps in an earlier turn."""
        self._handles += _handle(arguments)

    async def news(self, head: int) -> list[tuple[Recorded, dict[str, Any]]] | None:
        """What happened beneath since the last look; None where the session itself has gone further than `head`."""
        while self._handles:
            await self._find(self._handles.pop())
        nodes = await lineage.reached(self.db, [Root(self.session.id, self.trace), *self._begun])
        if any(node.id == self.session.id and node.head > head for node in nodes):
            return None
        beneath = [node for node in nodes if node.id != self.session.id]
        spans = [Span(node.id, node.trace, self._seen(node), node.head) for node in beneath]
        found = await lineage.read(self.db, [span for span in spans if span.after < span.upto])
        for node in beneath:
            self._branch(node.id).seen[node.trace] = node.head
        lives = [await self._life(records, [n for n in beneath if n.id == one]) for one, records in found.items()]
        # Merged and not sorted: whatever the clocks say, the events of one agent stay in their order.
        return list(heapq.merge(*lives, key=lambda pair: pair[0].at))

    async def _find(self, handle: str) -> None:
        uses = (use for entry in self.session.transcript if isinstance(entry, Step) for use in entry.uses)
        calls = [use.call for use in uses if use.tool == COLLECTS and handle in _handle(use.arguments)]
        begun = await lineage.begun(self.db, self.session, self.trace, handle, calls)
        if begun is None:
            return
        self._begun.append(Root(begun.child, begun.trace, 1))
        if begun.told and begun.trace not in self._before:
            self._before[begun.trace] = await lineage.heads(self.db, self.session, begun.told)

    def _seen(self, node: Reached) -> int:
        before = self._before.get(node.trace, {}).get(node.id, 0)
        return self._branch(node.id).seen.get(node.trace, max(before, self.told.get(node.id, 0)))

    async def _life(
        self, records: Sequence[Recorded], nodes: Sequence[Reached]
    ) -> list[tuple[Recorded, dict[str, Any]]]:
        node, branch = nodes[0], self._branch(nodes[0].id)
        returned = {record.event.call for record in records if isinstance(record.event, events.Returned)}
        made = {record.event.call for record in records if isinstance(record.event, events.Called)}
        if told_before := returned - made - branch.tools.keys():
            branch.tools.update(await trees.tools(self.db, node.id, sorted(told_before)))
        agent = Agent(node.id, node.agent, self.session.conversation, {one.trace: one.depth for one in nodes})
        return [(record, one) for record, one in told(records, branch, agent) if one]

    def _branch(self, session_id: str) -> Branch:
        return self._branches.setdefault(session_id, Branch())


def _handle(arguments: str) -> list[str]:
    """One at most: a model writes whatever it likes."""
    given = value_of(arguments)
    handle = given.get("handle") if isinstance(given, dict) else None
    return [handle] if isinstance(handle, str) else []


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
        case events.Prompted(aside=False):
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
