"""The events of a session and its sub-agents, line by line, as they are recorded."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from longhouse.api.sessions.waiting import waiting_status
from longhouse.cli.one_line import plain
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.timeline import task_of
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Node, Root

POLL_EVERY: Final = 0.5


async def event_lines(db: Database, session_id: str, last: int) -> AsyncIterator[str]:
    """The last events so far, then new ones, until nobody can go on without a person."""
    seen: dict[str, int] = {}
    lines_of = _EventLines()
    is_first = True
    while True:
        # Read first: what is recorded before the rest is shown after it was seen.
        is_last_read = await _rests(db, session_id)
        nodes = await tree.nodes(db, [Root(session_id, session_id, None)], seen_heads=seen)
        spans = {node.id: (max(seen.get(node.id, 0), node.first - 1), node.head) for node in nodes}
        journal = await tree.read(db, spans)
        lines = list(filter(None, (lines_of.line(*one) for one in _merged(nodes, journal))))
        for line in lines[max(0, len(lines) - last) :] if is_first else lines:
            yield line
        seen |= {node.id: node.head for node in nodes}
        if is_last_read:
            return
        is_first = False
        await asyncio.sleep(POLL_EVERY)


async def _rests(db: Database, session_id: str) -> bool:
    session = await journals.load(db, session_id)
    if session.can_move or not (await waiting_status(db, session)).rests:
        return False
    nodes = await tree.nodes(db, [Root(session_id, session_id, None)], open_only=True)
    return not any(node.can_move for node in nodes if node.id != session_id)


def _merged(nodes: list[Node], journal: dict[str, list[Recorded]]) -> list[tuple[Node, Recorded]]:
    """By time; the events of each session keep their order."""
    streams = [[(node, record) for record in journal.get(node.id, ())] for node in nodes]
    return list(heapq.merge(*streams, key=lambda one: one[1].at))


class _EventLines:
    """Events as lines; a call that is an answer or a thought has one, with its words."""

    def __init__(self) -> None:
        self._silent: set[tuple[str, str]] = set()

    def line(self, node: Node, record: Recorded) -> str:
        """Empty: nothing is shown."""
        event = record.event
        if isinstance(event, events.Called) and not event.is_work and not event.question:
            self._silent.add((node.id, event.call))
            return ""
        if isinstance(event, events.Returned) and (node.id, event.call) in self._silent:
            return ""
        words = WORDS[type(event)](event) if type(event) in WORDS else ""
        return _line(node, record, words) if words else ""


def _line(node: Node, record: Recorded, words: str) -> str:
    depth = node.depths.get(record.trace, 0)
    return f"{record.at:%H:%M:%S}  {'  ' * depth}{plain(node.agent)}  {words}".rstrip()


def _called(event: events.Called) -> str:
    if event.question:
        return f"asks: {plain(event.question)} ({event.call})"
    waits = f", waits for approval ({event.call})" if event.approve_by else ""
    return f"calls {plain(event.tool)} {plain(event.arguments)}{waits}"


def _returned(event: events.Returned) -> str:
    outcome = event.outcome
    return f"failed: {plain(outcome.message)}" if isinstance(outcome, Fault) else f"gets: {plain(outcome.content)}"


def _decided(event: events.Decided) -> str:
    comment = f": {plain(event.comment)}" if event.comment else ""
    named = f" for {plain(event.user)}" if event.user else ""
    return f"{event.decision} by {plain(event.by)}{named}{comment} ({event.call})"


def _spent(event: events.Spent) -> str:
    if event.waited:
        return f"goes on: it {plain(event.reason)}"
    if event.title is None:
        return f"tries again: {plain(event.reason)}"
    return f"is titled: {plain(event.title)}" if event.title else ""


WORDS: Final[dict[type, Callable[[Any], str]]] = {
    events.Prompted: lambda event: f"is told: {plain(task_of(event))}",
    events.Started: lambda event: "begins a turn",
    events.Replied: lambda event: f"says: {plain(event.text)}" if event.text.strip() else "has thought",
    events.Called: _called,
    events.Returned: _returned,
    events.Decided: _decided,
    events.Resumed: lambda event: f"is taken over by another worker ({plain(event.worker)})",
    events.Spent: _spent,
    events.Finished: lambda event: f"answers: {plain(event.answer)}",
    events.Failed: lambda event: f"fails: {plain(event.reason)}",
    events.Cancelled: lambda event: "is cancelled",
}
"""What is shown of an event; of other kinds nothing, which say nothing of the talk."""
