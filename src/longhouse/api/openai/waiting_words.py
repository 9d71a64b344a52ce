"""The words with which a response ends whose turn waits for somebody."""

from dataclasses import dataclass
from typing import Final

from longhouse.api.sessions.decisions import all_waiting, undecided, words_on
from longhouse.api.sessions.waiting import Question, WaitingStatus, waiting_status
from longhouse.journal.session import Session
from longhouse.store.database import Database

WITH_IT: Final = "Still waiting for a decision. Your message is kept, and reaches the agent once this is decided:"
BEHIND_IT: Final = "Still waiting for a decision. Your message is next, once this is decided:"
BEHIND_QUESTION: Final = "Your message is next, once this is answered:"
BEHIND_CLIENT: Final = "Your message is next, once a client has sent the result of"


@dataclass(frozen=True, slots=True)
class WaitingWords:
    """What a turn waits for, in words."""

    text: str
    question: Question | None = None
    """The question, if a sub-agent asks it."""


def asked(session: Session, status: WaitingStatus) -> WaitingWords:
    """What a turn waits for: questions before decisions, the session's own before those of sub-agents."""
    questions = [one for one in status.subagents if one.call.call_kind == "ask"]
    if not session.questions and questions:
        return WaitingWords(questions[0].text_with_agent, questions[0])
    waiting = all_waiting(status)
    if session.questions or all(one.session.id == session.id for one in waiting):
        return WaitingWords(session.closing_text or "")
    return WaitingWords(words_on(waiting, session), _of_subagent(waiting[0], session))


async def listed(
    db: Database, session: Session, *, is_aside: bool, is_own_user: bool = True, address: str = ""
) -> WaitingWords | None:
    """What is open while a message waits too; None: nothing is.

    `is_aside`: the message waits for a decision on a call of the running turn.
    """
    if not is_aside:
        status = await waiting_status(db, session)
        if first := next((one for one in status.questions if one.call.call_kind == "ask"), None):
            question = _of_subagent(first, session)
            text = first.text_with_agent if question else first.text
            return WaitingWords(f"{BEHIND_QUESTION}\n\n{text}", question)
    waiting = await undecided(db, session)
    if not waiting and (calls := session.client_calls):
        return WaitingWords(f"{BEHIND_CLIENT} {', '.join(call.tool for call in calls)}.")
    if not waiting:
        return None
    note = WITH_IT if is_aside else BEHIND_IT
    words = words_on(waiting, session, is_own_user=is_own_user, address=address)
    return WaitingWords(f"{note}\n\n{words}", _of_subagent(waiting[0], session))


def _of_subagent(question: Question, session: Session) -> Question | None:
    return None if question.session.id == session.id else question
