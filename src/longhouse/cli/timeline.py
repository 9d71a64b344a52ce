"""A session's journal as a timeline: turns, steps, calls, and their durations."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from longhouse.journal import events
from longhouse.journal.events import Outcome, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.messages import text_of
from longhouse.journal.session import Session
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Root

END: Final = 2**62
"""Larger than any seq."""


@dataclass(slots=True)
class TimelineUse:
    """One call, from its intent to its outcome."""

    called: events.Called
    began_at: datetime
    outcome: Outcome | None = None
    ended_at: datetime | None = None
    is_remembered: bool = False
    """Answered from memory: the tool did not run."""


@dataclass(slots=True)
class TimelineStep:
    """One reply of the model, and its calls."""

    replied: events.Replied
    began_at: datetime
    ended_at: datetime
    uses: list[TimelineUse] = field(default_factory=list)


@dataclass(slots=True)
class TimelineTurn:
    """One prompt and its events in this session."""

    prompt: int
    trace: str
    task: str
    began_at: datetime
    steps: list[TimelineStep] = field(default_factory=list)
    ended: str = ""
    """Empty while the turn runs."""
    ended_at: datetime | None = None
    words: str = ""
    """The final text."""


@dataclass(frozen=True, slots=True)
class SessionTimeline:
    """One session with all its turns."""

    session: Session
    turns: list[TimelineTurn]
    tasks: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Call -> the task that it delegated: the sub-agent's session, and the seq of the prompt there."""


def turns_of(records: Iterable[Recorded]) -> list[TimelineTurn]:
    """The turns of these events, oldest first."""
    prompts: dict[int, str] = {}
    turns: list[TimelineTurn] = []
    uses: dict[str, TimelineUse] = {}
    before: datetime | None = None
    for record in records:
        event, at = record.event, record.at
        turn = turns[-1] if turns and not turns[-1].ended else None
        match event:
            case events.Prompted():
                prompts[record.seq] = task_of(event)
            case events.Started():
                turns.append(TimelineTurn(event.prompt, record.trace, prompts.get(event.prompt, ""), at))
            case events.Replied() if turn:
                turn.steps.append(TimelineStep(event, before or at, at))
            case events.Called() if turn and turn.steps:
                uses[event.call] = TimelineUse(event, at)
                turn.steps[-1].uses.append(uses[event.call])
            case events.Returned() if event.call in uses:
                uses[event.call].outcome, uses[event.call].ended_at = event.outcome, at
                uses[event.call].is_remembered = event.by == events.BY_MEMORY
            case events.Finished() if turn:
                turn.ended, turn.ended_at, turn.words = "COMPLETED", at, event.answer
            case events.Failed() if turn:
                turn.ended, turn.ended_at, turn.words = "FAILED", at, event.reason
            case events.Cancelled() if turn:
                turn.ended, turn.ended_at = "CANCELLED", at
        before = at
    return turns


def task_of(prompt: events.Prompted) -> str:
    return "\n".join(text_of(content) for content in prompt.content)


async def timelines_of(db: Database, session_id: str, last: int) -> dict[str, SessionTimeline]:
    """The session and every sub-agent that its `last` turns called, directly or not; empty if there is no session."""
    journals = await tree.read(db, {session_id: (0, END)})
    turns = turns_of(journals.get(session_id, ()))[-last:]
    nodes = await tree.nodes(db, [Root(session_id, session_id, turn.trace) for turn in turns])
    journals |= await tree.read(db, {node.id: (0, node.head) for node in nodes if node.id != session_id})
    timelines = {
        one: SessionTimeline(fold(records, blank(one)), turns_of(records)) for one, records in journals.items()
    }
    for child, record in ((child, record) for child, records in journals.items() for record in records):
        asked = record.event.reply_to if isinstance(record.event, events.Prompted) else None
        if asked and asked.session in timelines:
            timelines[asked.session].tasks[asked.call] = (child, record.seq)
    return timelines
