"""A task is a turn of a session: its id names both, and its state is read from the journal."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import msgspec

from longhouse.api.caller import Caller
from longhouse.api.openai import waiting_words
from longhouse.api.openai.request import text_of
from longhouse.api.sessions.waiting import waiting_status
from longhouse.api.turns import TurnEnd, Turns, ended
from longhouse.errors import CallerError
from longhouse.journal import events
from longhouse.journal.events import Output, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.session import Session
from longhouse.store import journals

TaskState = Literal["submitted", "working", "input-required", "completed", "failed", "canceled"]
TERMINAL: Final = ("completed", "failed", "canceled")


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """A message of a task's history."""

    by: Literal["user", "agent"]
    text: str


class Task(msgspec.Struct, frozen=True):
    """One turn, as A2A tells of it."""

    session: Session
    trace: str
    state: TaskState
    text: str = ""
    """What the agent asks, or why it failed."""
    answer: str | None = None
    asks: str = ""
    """The name of the question that is open."""

    @property
    def id(self) -> str:
        return f"{self.session.id}:{self.trace}"

    @property
    def at(self) -> datetime | None:
        return self.session.updated_at

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL

    @property
    def history(self) -> list[HistoryMessage]:
        """The messages of the turn: the prompt, then questions and their answers."""
        session, turn = self.session, self.session.turn
        if turn is None or turn.trace != self.trace:
            queued = next((one.prompt for one in session.queue if one.prompt.trace == self.trace), None)
            return [HistoryMessage("user", text_of(queued.content))] if queued else []
        said = [HistoryMessage("user", turn.task)]
        for use in (use for step in reversed(session.steps) for use in step.uses if use.question):
            said.append(HistoryMessage("agent", use.question))
            if isinstance(use.outcome, Output):
                said.append(HistoryMessage("user", use.outcome.content))
        return said


async def task_of(turns: Turns, session: Session, trace: str, error: CallerError | None = None) -> Task:
    """A turn as a task; `error`: why following it has ended early."""
    turn = session.turn
    if any(one.prompt.trace == trace for one in session.queue):
        return Task(session, trace, "submitted", str(error or ""))
    if turn is None or turn.trace != trace:
        return Task(session, trace, "canceled", "the turn was cancelled")  # while it was queued
    if turn.ended:
        return _ended(ended(session), trace)
    status = await waiting_status(turns.db, session)
    if not status.rests or error:
        return Task(session, trace, "working", str(error or ""))
    asked = waiting_words.asked(session, status)
    asks = asked.question or status.questions[0]
    return Task(session, trace, "input-required", asked.text, asks=asks.label(session))


def _ended(end: TurnEnd, trace: str) -> Task:
    if end.error:
        state: TaskState = "canceled" if end.error.code == "cancelled" else "failed"
        return Task(end.session, trace, state, str(end.error))
    if end.has_failed:
        return Task(end.session, trace, "failed", end.text)
    return Task(end.session, trace, "completed", answer=end.text)


async def find(turns: Turns, caller: Caller, agent: str, named: str) -> Task | None:
    """The caller's task of this id with this agent, from any turn of its session."""
    session_id, _, trace = named.rpartition(":")
    session = await turns.owned(caller, session_id, agent) if session_id else None
    if session is None or not trace:
        return None
    is_queued = any(one.prompt.trace == trace for one in session.queue)
    if is_queued or session.trace == trace:
        return await task_of(turns, session, trace)
    records = await _up_to_end(turns, session_id, trace)
    return await task_of(turns, fold(records, blank(session_id)), trace) if records else None


async def _up_to_end(turns: Turns, session_id: str, trace: str) -> Sequence[Recorded]:
    """The journal up to the end of an earlier turn; nothing if it has no such turn."""
    records: list[Recorded] = []
    async for record in journals.every(turns.db, session_id):
        records.append(record)
        if record.trace == trace and isinstance(record.event, events.ENDS):
            return records
    return []
