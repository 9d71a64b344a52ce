"""Finds in a session's journal what webhooks tell: a pure function of the events, so each run finds the same."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import msgspec

from longhouse.journal.events import Recorded
from longhouse.journal.fold import fold
from longhouse.journal.session import Open, Session, State, ended_turn, own_label
from longhouse.journal.words.question_words import subagent_label, text_of
from longhouse.store.automation.webhooks import EventType

ENDED: Final = (State.COMPLETED, State.FAILED, State.CANCELLED)
ASKING: Final = (State.WAITING_FOR_CLARIFICATION, State.WAITING_FOR_APPROVAL)
MOST_TEXT: Final = 2_000
"""Characters of a question, or of an error; the session has all of them."""


class Occurrence(msgspec.Struct, frozen=True):
    """Something that happened in a session, or in a sub-agent of it."""

    type: EventType
    key: str
    """Names it: the same each time that it is found."""
    at: datetime
    session_id: str
    """The session whose journal says so."""
    seq: int
    """The last event of that journal that it follows from."""
    root: str
    """The session that it is told of."""
    data: Mapping[str, Any]
    """What is told besides the session."""


def occurrences(before: Session, records: Sequence[Recorded]) -> tuple[list[Occurrence], Session]:
    """What these events tell, which follow those of `before`, and the session with them. Between the events of one
    append nothing is at rest: they share their moment."""
    found: list[Occurrence] = []
    for at, written in groupby(records, key=lambda record: record.at):
        after = fold(written, before)
        if root := root_of(after):
            found += _questions(before, after, at, root)
        if after.side == "root":
            found += _ends(before, after, at)
        before = after
    return found, before


def root_of(session: Session) -> str:
    """The session for which this one works: itself, where a user talks to it; empty before its first turn."""
    if session.side == "root":
        return session.id
    return (session.turn.prompted.root or session.id) if session.turn else ""


def rested(session_id: str, state: State, at: datetime, key: str, *, seq: int) -> Occurrence:
    return Occurrence("session.rested", f"{session_id}:rested:{key}", at, session_id, seq, session_id, {"state": state})


def _questions(before: Session, after: Session, at: datetime, root: str) -> Iterator[Occurrence]:
    for call in after.open.values():
        known, kind = before.open.get(call.call), call.question_kind
        if kind is None or (known and known.question_kind == kind):
            continue
        key = f"{after.id}:{call.call}:{kind}:{_place(after, at)}"
        told: EventType = "approval.needed" if kind == "approval" else "question.opened"
        yield Occurrence(told, key, at, after.id, after.head, root, _asked(after, call, is_own=after.id == root))


def _asked(session: Session, call: Open, *, is_own: bool) -> dict[str, Any]:
    text = text_of(call.question_kind, call.tool, call.question, doubt=call.doubt)
    return {
        "kind": call.question_kind,
        "call_id": call.call,
        "name": call.call if is_own else subagent_label(session.agent, session.label, call.call),
        "text": text[:MOST_TEXT],
        "tool": call.tool or None,
        "deadline": call.approve_by.isoformat() if call.approve_by else None,
        "asked_by": {"session_id": session.id, "agent": session.agent, "label": own_label(session.label)},
    }


def _ends(before: Session, after: Session, at: datetime) -> Iterator[Occurrence]:
    """The end of a turn that failed, and that the session has come to rest."""
    turn = ended_turn(before, after)
    if turn and turn.ended == "FAILED":
        error = {"code": turn.code, "message": (turn.error or "")[:MOST_TEXT]}
        key = f"{after.id}:failed:{_place(after, at)}"
        yield Occurrence("turn.failed", key, at, after.id, after.head, after.id, {"error": error})
    if (mark := _rest(after)) and mark != _rest(before):
        yield rested(after.id, after.state, at, _place(after, at), seq=after.head)


def _place(session: Session, at: datetime) -> str:
    """Where in the journal something happened, and when: a house that was restored from a backup writes other events
    in the same places, and receivers know events by their ids."""
    return f"{session.head}:{at.isoformat()}"


def _rest(session: Session) -> tuple[object, ...] | None:
    """What a session rests with; None: it moves, or waits for its sub-agents, whose journals say the rest."""
    if session.can_move:
        return None
    prompt = session.turn.prompt if session.turn else 0
    if session.state in ENDED:
        return (session.state, prompt)
    if session.awaits_agents or session.state not in ASKING:
        return None
    asked = sorted(name for name, call in session.open.items() if call.awaits_person)
    return (session.state, prompt, *asked)
