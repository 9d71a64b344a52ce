"""The reader of delegation trees: new events in the journals of a session's sub-agents, causes before effects.

The chat, the tree's server-sent events and `longhouse sessions tail` render its result.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Literal, NotRequired, TypedDict, cast

import msgspec

from longhouse.api.sessions.tail import Seen
from longhouse.api.sessions.waiting import handles_in
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.session import Session
from longhouse.runtime.bus.items import Fragment
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Node, Root
from longhouse.store.journals import PAGE


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ShownCall(TypedDict):
    """A call of a tool as OpenAI's protocol writes it."""

    index: NotRequired[int]
    id: str
    type: Literal["function"]
    function: CalledFunction


class _AnyActivity(TypedDict):
    event: str
    agent: str
    session_id: str
    conversation_id: str
    trace_id: str
    depth: int


class Activity(_AnyActivity, total=False):
    """What an agent does, as clients see it: `x_agent` of a chat, and the events of sub-agents. What else it has
    depends on `event`."""

    state: str
    call_id: str
    tool: str
    arguments: str
    status: str
    content: str
    by: str
    reason: str
    waiting_for: Literal["clarification", "approval", "client"]
    name: str
    asked_by: str
    asked_in: str
    ignored: Sequence[str]
    routed: dict[str, Any]
    subagent_name: str
    role: str
    chat_id: str
    timestamp: float
    task: str
    tool_calls: list[ShownCall]
    tool_call_id: str
    response: str


SubagentEventName = Literal[
    "subagent_delegation",
    "subagent_assistant_with_tools",
    "subagent_tool",
    "subagent_tool_result",
    "subagent_completion",
]


class SubagentEvent(msgspec.Struct, frozen=True):
    """One event of a sub-agent, with the event that clients see, or None if they see nothing."""

    node: Node
    record: Recorded
    shown: Activity | None

    @property
    def session(self) -> str:
        return self.node.id


class TreeReader(msgspec.Struct):
    """Reads new events of a tree; the top session's own events come from its tail and are merged with the rest."""

    db: Database
    top: str
    head: int
    """The seq up to which the events of the top session are known."""
    conversation: str
    roots: list[Root]
    seen_heads: dict[str | None, dict[str, int]]
    """Trace -> session -> the seq up to which its journal was read; None: in every other trace."""
    polls: bool = False
    """Is the reader polled, mostly with nothing new?"""
    page: int | None = None
    """How many events are read at once; items are in the order of their times within a page. None: all."""
    held: list[Seen] = msgspec.field(default_factory=list)
    """Events of the top session that are held back until their causes in sub-agents are certainly read."""
    is_cut: bool = False
    """Was there more than one page to read?"""
    _mark: int | None = None
    _tools: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """Session -> call -> its tool; empty for a question, since its answer is no tool result."""

    @classmethod
    def of_turn(cls, db: Database, session: Session, trace: str, seen_heads: Mapping[str, int]) -> "TreeReader":
        """Reads what one turn has delegated, after `seen_heads`."""
        seen: dict[str | None, dict[str, int]] = {None: dict(seen_heads), trace: dict(seen_heads)}
        roots = [Root(session.id, session.id, trace)]
        return cls(db, session.id, session.head, session.conversation, roots, seen)

    @classmethod
    def of_session(
        cls, db: Database, top: str, conversation: str, seen_heads: Mapping[str, int], *, in_pages: bool = True
    ) -> "TreeReader":
        """Reads all delegations of a session, after `seen_heads`; long journals page by page, or at once."""
        head, seen, page = seen_heads.get(top, 0), dict(seen_heads), PAGE if in_pages else None
        return cls(db, top, head, conversation, [Root(top, top, None)], {None: seen}, polls=True, page=page)

    @property
    def is_whole(self) -> bool:
        """Did the last read cover all journals completely?"""
        return not self.is_cut and not self.held

    async def collect(self, session: Session, trace: str, handle: str) -> None:
        """Also reads what an earlier turn delegated with this call, from where the streams of those turns ended."""
        calls = [use.call for use in session.uses if use.role == "collects" and handle in handles_in(use.arguments)]
        begun = await tree.open_delegation(self.db, session, trace, handle, calls)
        if begun is None:
            return
        self.roots.append(Root(self.top, begun.child, begun.trace, 1))
        if begun.trace not in self.seen_heads:
            heads = await tree.heads(self.db, session, begun.seen_until) if begun.seen_until else {}
            before = self.seen_heads[None]
            self.seen_heads[begun.trace] = {one: max(heads.get(one, 0), before.get(one, 0)) for one in heads | before}

    async def so_far(self) -> list[Seen | SubagentEvent]:
        """All unread events, including those of the top session, at most one page."""
        return _merged(await self._read(with_top=True) or ())

    async def since(self, batch: Sequence[Seen]) -> list[Seen | SubagentEvent]:
        """New events of the top session and its sub-agents; while causes are missing, the batch is held back.

        Fragments alone trigger no query; an empty batch is a heartbeat.
        """
        self.held += batch
        self.head = next((item.seq for item in reversed(self.held) if isinstance(item, Recorded)), self.head)
        are_fragments = bool(self.held) and all(isinstance(item, Fragment) for item in self.held)
        journals = await self._read() if not are_fragments and await self._has_changed() else []
        if journals is None:
            return []
        held, self.held = self.held, []
        return _merged([held, *journals])

    async def _has_changed(self) -> bool:
        """False if the last read was complete and no journal of the conversation has grown since."""
        if not self.polls:
            return True
        before, self._mark = self._mark, await tree.mark(self.db, self.top)
        return before != self._mark or self.is_cut

    async def _read(self, *, with_top: bool = False) -> list[Sequence[Recorded | SubagentEvent]] | None:
        """The new events of each session; None if the top session itself has grown beyond `head`."""
        seen = self.seen_heads[None] if self.polls else {}
        nodes = await tree.nodes(self.db, self.roots, seen_heads={**seen, self.top: self.head})
        if not with_top and any(node.id == self.top for node in nodes):
            self._mark = None
            return None
        spans = {node.id: (self._after(node), node.head) for node in nodes}
        unread = {one: (after, upto) for one, (after, upto) in spans.items() if after < upto}
        found = await tree.read(self.db, unread, self.page)
        ends = {one: records[-1].seq for one, records in found.items()}
        self.is_cut = bool(ends) and any(ends.get(one, 0) < upto for one, (_, upto) in unread.items())
        journals = [await self._events(node, found[node.id]) for node in nodes if node.id in found]
        for node in nodes:
            self._move(node, ends.get(node.id, 0) if self.is_cut else node.head)
        return journals

    def _heads(self, trace: str) -> dict[str, int]:
        return self.seen_heads.get(trace, self.seen_heads[None])

    def _after(self, node: Node) -> int:
        if node.id == self.top:
            return self.head
        return max(node.first - 1, min(self._heads(trace).get(node.id, 0) for trace in node.depths))

    def _move(self, node: Node, upto: int) -> None:
        if node.id == self.top:
            self.head = max(self.head, upto)
            return
        for heads in map(self._heads, node.depths):
            heads[node.id] = max(heads.get(node.id, 0), upto)

    async def _events(self, node: Node, records: Sequence[Recorded]) -> Sequence[Recorded | SubagentEvent]:
        if node.id == self.top:
            return records
        seen = {trace: self._heads(trace).get(node.id, 0) for trace in node.depths}
        tools = self._tools.setdefault(node.id, {})
        ours = [record.event for record in records if _is_shown(record, node, seen)]
        made = {event.call for event in ours if isinstance(event, events.Called)}
        returned = {event.call for event in ours if isinstance(event, events.Returned)}
        if made_before := returned - made - tools.keys():
            tools.update(await tree.tools(self.db, node.id, sorted(made_before)))
        return list(subagent_events(records, node, seen, self.conversation, tools))


def _merged(journals: Iterable[Iterable[Seen | SubagentEvent]]) -> list[Seen | SubagentEvent]:
    """Journals in one order: merged by time, not sorted, so that the events of each session keep their order."""
    return [item for _, item in heapq.merge(*map(_dated, journals), key=itemgetter(0))]


def _dated(items: Iterable[Seen | SubagentEvent]) -> Iterator[tuple[datetime, Seen | SubagentEvent]]:
    """Items with their times; fragments keep their position among the events."""
    at = datetime.min.replace(tzinfo=UTC)
    for item in items:
        if isinstance(item, Recorded | SubagentEvent):
            at = item.at if isinstance(item, Recorded) else item.record.at
        yield at, item


def subagent_events(
    records: Sequence[Recorded], node: Node, seen: Mapping[str, int], conversation: str, tools: dict[str, str]
) -> Iterator[SubagentEvent]:
    """The records of a sub-agent, with the events that a client sees.

    `seen`: trace -> the seq up to which its journal was read. `tools`: call -> its tool; it is added to.
    """
    calls: dict[int, list[events.Called]] = {}
    """The seq of a reply -> its calls, which are recorded together with it."""
    made: list[events.Called] = []
    for record in (one for one in records if _is_shown(one, node, seen)):
        if isinstance(record.event, events.Replied):
            made = calls[record.seq] = []
        elif isinstance(record.event, events.Called) and record.event.is_work:
            made.append(record.event)
    for record in records:
        found = None
        if _is_shown(record, node, seen):
            found = next(_event(record.event, calls.get(record.seq, ()), tools), None)
        yield SubagentEvent(node, record, _shown(record, node, conversation, *found) if found else None)


def _is_shown(record: Recorded, node: Node, seen: Mapping[str, int]) -> bool:
    """Is it new, and of a trace that belongs to the tree?"""
    return record.trace in node.depths and record.seq > seen.get(record.trace, 0)


def _shown(
    record: Recorded, node: Node, conversation: str, event: SubagentEventName, detail: dict[str, Any]
) -> Activity:
    """An event under public names."""
    shown: Any = {
        "event": event,
        "agent": node.agent,
        "subagent_name": node.agent,
        "session_id": node.id,
        "depth": node.depths[record.trace],
        **detail,
        "role": event,
        "conversation_id": conversation,
        "chat_id": conversation,
        "trace_id": record.trace,
        "timestamp": record.at.timestamp(),
    }
    return cast("Activity", shown)


def _event(
    event: events.Event, calls: Sequence[events.Called], tools: dict[str, str]
) -> Iterator[tuple[SubagentEventName, dict[str, Any]]]:
    """The client's event for a record: at most one. `calls` are those of a reply."""
    match event:
        case events.Prompted(aside=False):
            yield "subagent_delegation", {"task": "\n".join(one for one in event.content if isinstance(one, str))}
        case events.Replied() if calls:
            content = "" if event.thought else event.text
            yield "subagent_assistant_with_tools", {"content": content, "tool_calls": [_call(call) for call in calls]}
        case events.Called():
            tools[event.call] = event.tool if event.is_work else ""
            if event.is_work:
                yield "subagent_tool", {"tool": event.tool, "arguments": event.arguments, "call_id": event.call}
        case events.Returned():
            if tool := tools.get(event.call, ""):
                outcome = event.outcome
                content = f"Error: {outcome.message}" if isinstance(outcome, Fault) else outcome.content
                by = {"by": event.by} if event.by == events.BY_MEMORY else {}
                yield "subagent_tool_result", {"tool_call_id": event.call, "name": tool, "content": content, **by}
        case events.Finished():
            yield "subagent_completion", {"response": event.answer, "status": "completed"}
        case events.Failed():
            yield "subagent_completion", {"response": event.reason, "status": "failed"}
        case events.Cancelled():
            yield "subagent_completion", {"response": "", "status": "cancelled"}


def _call(called: events.Called) -> ShownCall:
    function: CalledFunction = {"name": called.tool, "arguments": called.arguments}
    return {"id": called.call, "type": "function", "function": function}
