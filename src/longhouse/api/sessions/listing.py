"""Sessions as rows of lists: with their titles and counters, and with what their sub-agents wait for."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TypedDict

from longhouse import clock
from longhouse.api import wire
from longhouse.api.sessions.waiting import ASKING, shown
from longhouse.journal.counters import Counters
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Root
from longhouse.store.lists import session_counters
from longhouse.store.sessions import SessionRow


class ListedSession(TypedDict):
    """A session as a row of a list."""

    session_id: str
    template_id: str
    template: str
    version: int | None
    conversation_id: str
    label: str
    parent: str | None
    trace_id: str | None
    state: str
    title: str
    task: str | None
    turns: int
    steps: int
    tokens: int
    work_seconds: float
    waiting_seconds: float
    questions: int
    error: str | None
    created_at: datetime
    updated_at: datetime


async def listed(db: Database, rows: Sequence[SessionRow]) -> list[ListedSession]:
    """Sessions as rows of a list; their state and their questions include those of their sub-agents."""
    counters = await session_counters.counted(db, {row.id: row.head for row in rows})
    below, now = await _questions_below(db, rows), clock.now()
    return [_row(row, counters.get(row.id, Counters()), below[row.id], now) for row in await shown(db, rows)]


async def _questions_below(db: Database, rows: Sequence[SessionRow]) -> Counter[str]:
    """Session -> the open questions of the agents that work for it, also of those that it does not wait for."""
    nodes = await tree.nodes(db, [Root(row.id, row.id, None) for row in rows], open_only=True)
    asking = [node for node in nodes if node.id != node.top and node.state in ASKING]
    counters = await session_counters.counted(db, {node.id: node.head for node in asking})
    found: Counter[str] = Counter()
    for node in asking:
        found[node.top] += counters[node.id].questions
    return found


def _row(row: SessionRow, counters: Counters, below: int, now: datetime) -> ListedSession:
    work, waiting = counters.seconds(now, asks_person=row.state in ASKING)
    return wire.body_of(
        ListedSession,
        row,
        session_id=row.id,
        template_id=row.agent,
        template=row.agent,
        title=counters.shown_title,
        turns=counters.turns,
        steps=counters.steps,
        tokens=counters.tokens,
        work_seconds=work,
        waiting_seconds=waiting,
        questions=counters.questions + below,
        error=counters.error,
    )
