"""Approvals: parses a person's decision on a waiting call from a chat message, and records it."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from longhouse import clock
from longhouse.api.caller import Caller
from longhouse.api.sessions.waiting import (
    Question,
    WaitingStatus,
    find_questions,
    is_late,
    named,
    shortened,
    waiting_status,
)
from longhouse.errors import CallerError
from longhouse.journal.events import Decided, Decision
from longhouse.journal.session import Session
from longhouse.journal.words.decision_words import decision_of
from longhouse.journal.words.pending_decisions import Undecided, decision_text
from longhouse.store.database import Database

RACES: Final = 20
"""How often a decision is retried because the session moved on meanwhile."""
LONGEST: Final = 300
"""Characters of a decision, enough for the longest name of a call; a longer message is no decision."""


def decided(
    caller: Caller,
    question: Question,
    decision: Decision,
    *,
    comment: str = "",
    chat: Session | None = None,
    user: str | None = None,
) -> Decided:
    """A person's decision on a call, as it is journaled. Raises if it is not theirs to make: every door asks here.

    `chat`: the session in whose chat it is made; None: at the route for decisions. `user`: whom the request names.
    """
    caller.writes()
    caller.uses(question.session.agent)
    if chat and not _is_for_chat(question, chat, is_own_user=is_own_user(chat, caller.user(user))):
        raise CallerError(
            f"Decide this at POST /v1/sessions/{chat.id}/approval: its agent leaves no decision to the chat, or the"
            " request is not of the session's user.",
            status=403,
            code="decided_elsewhere",
        )
    return Decided(
        call=question.call.call,
        decision=decision,
        by=caller.decider,
        user=user or None,
        comment=comment,
        via="chat" if chat else "",
    )


def read(
    text: str, waiting: Sequence[Question], top: Session, reply_to: str | None
) -> tuple[Question, Decision] | None:
    """The decision in a message and the call it is about; None if there is none, or if it is ambiguous."""
    if len(text) > LONGEST:
        return None
    text = unicodedata.normalize("NFKC", text)
    calls, rest = _named_in(text, named(waiting, top, reply_to), top)
    if len(calls) != 1:
        return None
    [one] = calls
    is_named = reply_to is not None or rest != text
    asks_retry = one.call.question_kind == "worker_lost"
    decision = decision_of(rest, is_uncertain=one.call.uncertain, is_step=asks_retry, message=text)
    if decision is None or not _undecided(one, top).may_be_decided_in_chat:
        return None
    return (one, decision) if is_named or _was_shown(one, top) else None


def _named_in(text: str, calls: list[Question], top: Session) -> tuple[list[Question], str]:
    """The calls that the text names, and the text without the name; if it names none, all calls and the whole text."""
    labels = sorted({one.label(top) for one in calls}, key=len, reverse=True)
    # Case-sensitive first: names may differ by case alone.
    for case in (re.NOFLAG, re.IGNORECASE):
        for label in labels:
            # Letters of other scripts may be adjacent without a space.
            whole = rf"(?<![\w./-])(?<!\w[:@]){re.escape(label)}(?![\w/-])"
            rest, found = re.subn(whole, " ", text, flags=re.ASCII | case)
            if found:
                return [one for one in calls if re.fullmatch(re.escape(label), one.label(top), case)], rest
    return calls, text


def _was_shown(question: Question, top: Session) -> bool:
    """Has the user seen this question? False if its turn, or the turn of the top session, was resumed outside the
    chat: the chat still shows what waited before, unless the user has sent a message since."""
    messaged_at = top.turn.last_chat_message_at if top.turn else None
    for turn in (top.turn, question.session.turn):
        resumed_at = turn.resumed_outside_chat_at if turn else None
        if resumed_at is None or (messaged_at and messaged_at >= resumed_at):
            continue
        if question.call.at and question.call.at > resumed_at:
            return False
    return True


async def undecided(db: Database, session: Session) -> list[Question]:
    """Calls that wait for a decision, in the session and its sub-agents; those past their deadline count as denied."""
    now = clock.now()
    return [one for one in all_waiting(await waiting_status(db, session)) if not is_late(one.call, now)]


def all_waiting(status: WaitingStatus) -> list[Question]:
    """The same, including calls past their deadline: the session's own first."""
    return [one for one in status.questions if one.call.awaits_decision]


def words_on(waiting: Sequence[Question], top: Session, *, is_own_user: bool = True, address: str = "") -> str:
    """The text that lists the waiting calls and how to decide, for the chat of the top session."""
    return decision_text([_undecided(one, top, is_own_user=is_own_user) for one in waiting], top.id, address)


def is_possible(decision: Decision, question: Question) -> bool:
    """Is this decision on the call possible now?"""
    session, call = question.session, question.call
    if call.question_kind == "worker_lost":
        return decision in ("did_not_happen", "give_up")
    if call.question_kind == "client":
        return decision == "give_up"
    if decision not in ("approve", "deny"):
        return call in session.uncertain
    # Past its deadline a call counts as denied, even if no worker has recorded that yet.
    return call in session.unapproved and not (decision == "approve" and is_late(call, clock.now()))


async def why_not(db: Database, session: Session, name: str, decision: Decision) -> str:
    """Why this decision on the call of this name is not possible, and what is."""
    found = await find_questions(db, session, name)
    if not found or is_possible(decision, found[0]):
        labels = [one.label(session) for one in all_waiting(await waiting_status(db, session))]
        return f"No call {shortened(name)} waits here{'; open: ' if labels else ''}{', '.join(labels)}."
    call = found[0].call
    if call.question_kind == "approval" and is_late(call, clock.now()):
        return f"The time to approve {call.tool} is over: it counts as denied."
    possible = {
        "client": f"The client runs {call.tool}, and sends its result through the chat; you can say give_up.",
        "worker_lost": "The worker was lost three times in this step: say did_not_happen (try it again) or give_up.",
        "unknown_outcome": f"Nobody knows whether {call.tool} happened: say happened, did_not_happen or give_up.",
        "approval": f"{call.tool} has not begun: say approve or deny.",
    }
    return possible.get(call.question_kind or "", f"{shortened(name)} is a question: answer it as a clarification.")


def too_many_races() -> CallerError:
    return CallerError("The session moved on each time; try again.", status=409, code="busy")


def is_own_user(session: Session, user: str | None) -> bool:
    """Is this the user of the session? A session without a user, or whose user is the owner, is the owner's."""
    mine = session.owner if user is None else user
    return session.user == mine or (session.user is None and mine == session.owner)


def _undecided(question: Question, top: Session, *, is_own_user: bool = True) -> Undecided:
    session, asked = question.session, question.session.undecided(question.call)
    asked_by = "" if session.id == top.id else session.agent
    in_chat = _is_for_chat(question, top, is_own_user=is_own_user)
    return replace(asked, in_chat=in_chat, asked_by=asked_by, label=question.label(top))


def _is_for_chat(question: Question, top: Session, *, is_own_user: bool) -> bool:
    """May the call be decided in the chat? The template of the agent that is talked to must allow it too: what it
    refuses, no sub-agent grants. So what an agent was told to do by another one is decided in the chat of that one."""
    turns = (top.turn, question.session.turn)
    is_below = top.turn is not None and top.turn.prompted.root not in ("", top.id)
    return is_own_user and not is_below and all(turn is not None and turn.approve_in_chat for turn in turns)
