"""One reader for delegation trees: what is new in the journals beneath a session, causes before effects.

The chat, the tree's server-sent events and the terminal show what it finds.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longhouse.api.sessions.tail import Seen, dated
from longhouse.api.sessions.waiting import handles_in
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.session import Session
from longhouse.journal.transcript import Step
from longhouse.runtime.bus import Fragment
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Node, Root
from longhouse.store.journals import PAGE


@dataclass(frozen=True, slots=True)
class News:
    """One event of one session; for an agent beneath, as it is shown, or None where nothing is shown."""

    session: str
    record: Recorded
    shown: dict[str, Any] | None = None


@dataclass(slots=True)
class TreeReader:
    """Reads what is new in a tree; the top session's own events come from its tail and are merged with the rest."""

    db: Database
    top: str
    head: int
    """Up to where the events of the top session are known."""
    conversation: str
    roots: list[Root]
    seen_heads: dict[str | None, dict[str, int]]
    """Trace -> session -> up to where its journal was read; None: in every other trace."""
    polls: bool = False
    """Is it asked again and again, mostly while nothing has happened? Then much is read page by page."""
    held: list[Seen] = field(default_factory=list)
    """Events of the top session that wait, since it is not known for sure that their causes beneath were read."""
    is_cut: bool = False
    """Was there more to read than a page?"""
    _mark: int | None = None
    _tools: dict[str, dict[str, str]] = field(default_factory=dict)
    """Session -> call -> its tool; empty for a question, whose answer is no result of a tool."""

    @classmethod
    def of_turn(cls, db: Database, session: Session, trace: str, seen_heads: Mapping[str, int]) -> "TreeReader":
        """Reads what one turn has begun; nothing that is in `seen_heads` already."""
        seen: dict[str | None, dict[str, int]] = {None: dict(seen_heads), trace: dict(seen_heads)}
        roots = [Root(session.id, session.id, trace)]
        return cls(db, session.id, session.head, session.conversation, roots, seen)

    @classmethod
    def of_session(cls, db: Database, top: str, conversation: str, seen_heads: Mapping[str, int]) -> "TreeReader":
        """Reads all that was ever done for a session, after `seen_heads`."""
        head, seen = seen_heads.get(top, 0), dict(seen_heads)
        return cls(db, top, head, conversation, [Root(top, top, None)], {None: seen}, polls=True)

    @property
    def is_whole(self) -> bool:
        """Did the last look show everybody up to then?"""
        return not self.is_cut and not self.held

    async def collect(self, session: Session, trace: str, handle: str) -> None:
        """Also reads what an earlier turn has begun by this call, from where the streams of such turns have ended."""
        uses = (use for entry in session.transcript if isinstance(entry, Step) for use in entry.uses)
        calls = [use.call for use in uses if use.role == "collects" and handle in handles_in(use.arguments)]
        begun = await tree.begun(self.db, session, trace, handle, calls)
        if begun is None:
            return
        self.roots.append(Root(self.top, begun.child, begun.trace, 1))
        if begun.trace not in self.seen_heads:
            heads = await tree.heads(self.db, session, begun.seen_until) if begun.seen_until else {}
            before = self.seen_heads[None]
            self.seen_heads[begun.trace] = {one: max(heads.get(one, 0), before.get(one, 0)) for one in heads | before}

    async def so_far(self) -> list[Seen | News]:
        """All that is not read yet, with the events of the top session, at most a page."""
        return merged((), await self._look(with_top=True) or ())

    async def since(self, batch: Sequence[Seen]) -> Sequence[Seen | News]:
        """What is new at the top, and with it what is new beneath; nothing, and it is held, while causes are missing.

        Fragments alone are worth no look; an empty batch says that a while has passed.
        """
        self.held += batch
        self.head = next((item.seq for item in reversed(self.held) if isinstance(item, Recorded)), self.head)
        is_worth_a_look = not self.held or not all(isinstance(item, Fragment) for item in self.held)
        lives = await self._look() if is_worth_a_look and await self._has_changed() else []
        if lives is None:
            return []
        held, self.held = self.held, []
        return merged(held, lives)

    async def _has_changed(self) -> bool:
        """False where no journal of the conversation has grown since the last look, and that one was whole."""
        if not self.polls:
            return True
        before, self._mark = self._mark, await tree.mark(self.db, self.top)
        return before != self._mark or self.is_cut

    async def _look(self, *, with_top: bool = False) -> list[list[News]] | None:
        """The new events of each session; None where the top session itself has gone further than `head`."""
        seen = self.seen_heads[None] if self.polls else {}
        nodes = await tree.nodes(self.db, self.roots, seen_heads={**seen, self.top: self.head})
        if not with_top and any(node.id == self.top for node in nodes):
            self._mark = None
            return None
        spans = {node.id: (self._after(node), node.head) for node in nodes}
        unread = {one: (after, upto) for one, (after, upto) in spans.items() if after < upto}
        found = await tree.read(self.db, unread, PAGE if self.polls else None)
        ends = {one: records[-1].seq for one, records in found.items()}
        self.is_cut = bool(ends) and any(ends.get(one, 0) < upto for one, (_, upto) in unread.items())
        lives = [await self._life(node, found[node.id]) for node in nodes if node.id in found]
        for node in nodes:
            self._move(node, ends.get(node.id, 0) if self.is_cut else node.head)
        return lives

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

    async def _life(self, node: Node, records: Sequence[Recorded]) -> list[News]:
        if node.id == self.top:
            return [News(node.id, record) for record in records]
        seen = {trace: self._heads(trace).get(node.id, 0) for trace in node.depths}
        agent = TreeAgent(node.id, node.agent, self.conversation, node.depths, seen)
        tools = self._tools.setdefault(node.id, {})
        ours = [record.event for record in records if agent.is_concerned_by(record)]
        made = {event.call for event in ours if isinstance(event, events.Called)}
        returned = {event.call for event in ours if isinstance(event, events.Returned)}
        if made_before := returned - made - tools.keys():
            tools.update(await tree.tools(self.db, node.id, sorted(made_before)))
        return [News(node.id, record, shown) for record, shown in subagent_events(records, tools, agent)]


def merged(held: Iterable[Seen], lives: Iterable[Sequence[News]]) -> list[Seen | News]:
    """Journals in one order: merged by time and not sorted, so that the events of one session stay in theirs."""
    others = ([(one.record.at, one) for one in life] for life in lives)
    return [item for _, item in heapq.merge(dated(held), *others, key=lambda pair: pair[0])]


@dataclass(frozen=True, slots=True)
class TreeAgent:
    """The agent beneath whose events are shown."""

    id: str
    name: str
    conversation: str
    depths: Mapping[str, int]
    """Trace -> how far beneath it stands there; its other traces are nobody's business here."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """Trace -> up to where its journal was read for it."""

    def is_concerned_by(self, record: Recorded) -> bool:
        return record.trace in self.depths and record.seq > self.seen.get(record.trace, 0)


def subagent_events(
    records: Sequence[Recorded], tools: dict[str, str], agent: TreeAgent
) -> Iterator[tuple[Recorded, dict[str, Any] | None]]:
    """Each record with the event that a client sees, by the names that people know; None where it sees nothing."""
    ours = [record for record in records if agent.is_concerned_by(record)]
    nth = 0
    for record in records:
        found = None
        if agent.is_concerned_by(record):
            nth += 1
            found = next(_event(record.event, map(ours.__getitem__, range(nth, len(ours))), tools), None)
        yield record, _dressed(record, agent, *found) if found else None


def _dressed(record: Recorded, agent: TreeAgent, event: str, detail: dict[str, Any]) -> dict[str, Any]:
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


def _event(
    event: events.Event, rest: Iterable[Recorded], tools: dict[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """At most one."""
    match event:
        case events.Prompted(aside=False):
            yield "subagent_delegation", {"task": "\n".join(one for one in event.content if isinstance(one, str))}
        case events.Replied():
            if calls := _calls(rest):
                said = {"content": "" if event.thought else event.text, "tool_calls": [_call(call) for call in calls]}
                yield "subagent_assistant_with_tools", said
        case events.Called():
            tools[event.call] = event.tool if event.is_work else ""
            if event.is_work:
                yield "subagent_tool", {"tool": event.tool, "arguments": event.arguments, "call_id": event.call}
        case events.Returned():
            if tool := tools.get(event.call, ""):
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
        if isinstance(record.event, events.Called) and record.event.is_work:
            found.append(record.event)
    return found


def _call(called: events.Called) -> dict[str, Any]:
    function = {"name": called.tool, "arguments": called.arguments}
    return {"id": called.call, "type": "function", "function": function}


def _words(returned: events.Returned) -> str:
    outcome = returned.outcome
    return f"Error: {outcome.message}" if isinstance(outcome, Fault) else outcome.content
