"""Reads the timelines of a session's last turns and of the sub-agents that worked for them."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.timeline import Timeline, TimelineTurn, TimelineWait, timeline_of
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Node, Root

MOST_SUBAGENTS: Final = 200
END: Final = 2**62
"""Larger than any seq."""

# The first of the last turns of each session: what comes before it is not read, only counted. A prompt may have waited
# in the queue during the turn before.
BEGINNINGS: Final = """
    SELECT asked.session_id, began.seq, COALESCE((e.body ->> 'prompt')::bigint, began.seq) AS prompt,
           (SELECT count(*) FROM journal j
            WHERE j.session_id = asked.session_id AND j.seq < began.seq AND j.kind = 'Started') AS turns,
           (SELECT count(*) FROM journal j
            WHERE j.session_id = asked.session_id AND j.seq < began.seq AND j.kind = 'Replied') AS steps
    FROM unnest(:ids::text[], :first::bigint[]) AS asked (session_id, first)
    CROSS JOIN LATERAL (
        SELECT seq FROM (
            SELECT j.seq FROM journal j
            WHERE j.session_id = asked.session_id AND j.kind = 'Started' AND j.seq >= asked.first
            ORDER BY j.seq DESC LIMIT :last
        ) AS newest ORDER BY seq LIMIT 1
    ) AS began
    LEFT JOIN journal_events e ON e.session_id = asked.session_id AND e.seq = began.seq
"""
TROUBLED: Final = "SELECT id, troubled_at FROM sessions WHERE id = ANY(:ids) AND troubled_at IS NOT NULL"


class SessionTimeline(msgspec.Struct, frozen=True):
    """The last turns of one session."""

    agent: str
    label: str
    version: int | None
    """None: it has not begun a turn."""
    state: str
    timeline: Timeline
    traces: frozenset[str] = frozenset()
    """In a sub-agent: the traces in which it worked for the session that is asked for."""
    tasks: dict[str, tuple[str, int]] = msgspec.field(default_factory=dict)
    """Call -> the task that it delegated: the sub-agent's session, and the seq of the prompt there."""

    @property
    def turns(self) -> list[TimelineTurn]:
        turns = self.timeline.turns
        return [turn for turn in turns if turn.trace in self.traces] if self.traces else turns


class TreeTimelines(msgspec.Struct, frozen=True):
    """The timelines of a session, first, and of the sub-agents that its last turns called."""

    sessions: Mapping[str, SessionTimeline]
    left_out: int
    """Sub-agents beyond those that are shown."""


async def timelines_of(db: Database, session_id: str, last: int) -> TreeTimelines:
    """The session's `last` turns, with every sub-agent that they called, directly or not; empty if there is none."""
    own = (await _read(db, {session_id: (0, END)}, last)).get(session_id)
    if own is None:
        return TreeTimelines({}, 0)
    timeline = own.timeline
    # A session that has not begun is its own tree.
    traces = [turn.trace for turn in timeline.turns] or [""]
    nodes = await tree.nodes(db, [Root(session_id, session_id, trace) for trace in traces])
    if not nodes:
        return TreeTimelines({}, 0)  # it was erased in between
    top, *below = nodes
    kept = {node.id: node for node in below[:MOST_SUBAGENTS]}
    journals = await _read(db, {node.id: (node.first, node.head) for node in kept.values()}, last)
    found = {session_id: _timeline(top, timeline)}
    found |= {one: _timeline(kept[one], read.timeline, frozenset(kept[one].depths)) for one, read in journals.items()}
    for one, read in {session_id: own, **journals}.items():
        _note_tasks(found, one, read.records)
    for row in await db.rows(TROUBLED, ids=list(found)):
        if turn := found[row["id"]].timeline.running:
            turn.waits.append(TimelineWait("retry", row["troubled_at"]))
    return TreeTimelines(found, len(below) - len(kept))


class _Read(msgspec.Struct, frozen=True):
    records: Sequence[Recorded]
    turns_before: int = 0
    steps_before: int = 0

    @property
    def timeline(self) -> Timeline:
        return timeline_of(self.records, turns_before=self.turns_before, steps_before=self.steps_before)


async def _read(db: Database, spans: Mapping[str, tuple[int, int]], last: int) -> dict[str, _Read]:
    """Session -> the events of its last turns, and how many turns and steps came before them."""
    if not spans:
        return {}
    first = [max(0, span[0]) for span in spans.values()]
    begun = {row["session_id"]: row for row in await db.rows(BEGINNINGS, ids=list(spans), first=first, last=last)}
    after = {one: row["prompt"] - 1 for one, row in begun.items()}
    found = await tree.read(db, {one: (after.get(one, span[0] - 1), span[1]) for one, span in spans.items()})
    return {
        one: _Read(records, begun[one]["turns"], begun[one]["steps"]) if one in begun else _Read(records)
        for one, records in found.items()
    }


def _timeline(node: Node, timeline: Timeline, traces: frozenset[str] = frozenset()) -> SessionTimeline:
    version = timeline.turns[-1].version if timeline.turns else None
    return SessionTimeline(node.agent, node.label, version, node.state, timeline, traces)


def _note_tasks(found: Mapping[str, SessionTimeline], child: str, records: Sequence[Recorded]) -> None:
    for record in records:
        asked = record.event.reply_to if isinstance(record.event, events.Prompted) else None
        if asked and asked.session in found:
            found[asked.session].tasks[asked.call] = (child, record.seq)
