"""The events of a session and its sub-agents, line by line, as they are recorded."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from longhouse.api.sessions.tail import Seen
from longhouse.api.sessions.tree_reader import SubagentEvent, TreeReader
from longhouse.api.sessions.waiting import is_over
from longhouse.cli.one_line import plain
from longhouse.journal import events
from longhouse.journal.events import Fault, Recorded
from longhouse.journal.session import Session
from longhouse.journal.timeline import task_of
from longhouse.store import journals
from longhouse.store.database import Database

POLL_EVERY: Final = 0.5


async def event_lines(db: Database, session_id: str, last: int) -> AsyncIterator[str]:
    """The last events so far, then new ones, until nobody can go on without a person."""
    session = await journals.load(db, session_id)
    reader = TreeReader.of_session(db, session.id, session.conversation, {}, in_pages=False)
    lines_of, is_first = _EventLines(session), True
    while True:
        # Read first: what is recorded before the rest is shown after it was seen.
        is_last_read = await is_over(db, await journals.load(db, session_id), has_subagents=True)
        lines = list(filter(None, map(lines_of.line, await reader.so_far())))
        for line in lines[max(0, len(lines) - last) :] if is_first else lines:
            yield line
        if is_last_read:
            return
        is_first = False
        await asyncio.sleep(POLL_EVERY)


class _EventLines:
    """Events as lines; a call that is an answer or a thought has one, with its words."""

    def __init__(self, top: Session) -> None:
        self._top = top
        self._silent: set[tuple[str, str]] = set()

    def line(self, item: Seen | SubagentEvent) -> str:
        """Empty: nothing is shown."""
        match item:
            case SubagentEvent(node=node, record=record):
                return self._line(node.id, node.agent, node.depths.get(record.trace, 0), record)
            case Recorded():
                return self._line(self._top.id, self._top.agent, 0, item)
        return ""

    def _line(self, session: str, agent: str, depth: int, record: Recorded) -> str:
        event = record.event
        if isinstance(event, events.Called) and not event.is_work and not event.question:
            self._silent.add((session, event.call))
            return ""
        if isinstance(event, events.Returned) and (session, event.call) in self._silent:
            return ""
        words = WORDS[type(event)](event) if type(event) in WORDS else ""
        return f"{record.at:%H:%M:%S}  {'  ' * depth}{plain(agent)}  {words}".rstrip() if words else ""


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
"""Type of event -> its line; events of other types are not shown."""
