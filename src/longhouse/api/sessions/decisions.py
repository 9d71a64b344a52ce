"""Decisions of people on calls that wait for them: read from their words in a chat, and written down."""

import re
import unicodedata
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from longhouse import clock
from longhouse.api.sessions.waiting import Question, WaitingStatus, named, own, waiting_status
from longhouse.errors import CallerError
from longhouse.journal.events import Decision
from longhouse.journal.pending_decisions import Undecided, words_for
from longhouse.journal.session import Open, Session
from longhouse.store.database import Database

# Clear words only: whatever else is said is no decision. Each as `plain` leaves it.
YES: Final = """
    yes/y/yeah/yep/yes please/ok/o k/okay/yes ok/approve/approved/i approve/approve it/yes approve/confirm/confirmed
    i confirm/agreed/go ahead/yes go ahead
    да/да пожалуйста/ок/окей/да ок/одобряю/да одобряю/одобрить/одобрено/подтверждаю/да подтверждаю/разрешаю
    да разрешаю/согласен/согласна/да согласен/да согласна
    是/是的/好/好的/可以/行/同意/我同意/批准/我批准/确认/確認/允许/允許
"""
NO: Final = """
    no/n/nope/no thanks/no thank you/deny/denied/i deny/deny it/no deny/reject/rejected/i reject/reject it/decline
    declined/refuse/refused/do not/dont/no dont/no do not
    нет/нет спасибо/не надо/нет не надо/не нужно/отклонить/отклоняю/отклонено/запрещаю/не одобряю/нет не одобряю
    не разрешаю/не согласен/не согласна/отказать/отказываю
    不/不是/不行/不要/不可以/不好/不同意/我不同意/不批准/不允许/不允許/否/拒绝/拒絕/我拒绝/我拒絕
"""
HAPPENED: Final = """
    happened/it happened/it did happen/yes it happened
    произошло/это произошло/случилось/выполнено
    已发生/发生了/已經發生/已经发生/發生了
"""
DID_NOT_HAPPEN: Final = """
    did not happen/it did not happen/didnt happen/it didnt happen/no it did not happen/no it didnt happen/not happened
    не произошло/этого не произошло/не случилось/не выполнено
    未发生/没发生/没有发生/未發生/沒有發生
"""
GIVE_UP: Final = """
    give up/give it up/i give up
    прекратить/прекрати/сдаюсь/оставить как есть
    放弃/放棄
"""


def _meaning(**words: str) -> dict[str, Decision]:
    """Decision -> its words, turned around."""
    found: dict[str, Decision] = {}
    for decision, said in words.items():
        found |= {one.strip(): decision for line in said.splitlines() for one in line.split("/") if one.strip()}  # type: ignore[misc]  # the names are decisions
    return found


ON_APPROVAL: Final = _meaning(approve=YES, deny=NO)
ON_UNCERTAIN: Final = _meaning(happened=HAPPENED, did_not_happen=DID_NOT_HAPPEN, give_up=GIVE_UP)
"""A bare yes or no is no decision here: "no" would begin the call once more."""

RACES: Final = 20
"""How often a decision is tried again because the session moved on meanwhile."""
LONGEST: Final = 300
"""Characters; who writes more than this, which the longest name of a call has room in, has more to say."""
_APOSTROPHE: Final = re.compile("['\u2018\u2019\u02bc`]")
_ORDINARY: Final = re.compile(r"""[\w\s.,:!~*"«»\u2039\u203a„“”‟(){}\[\]「」『』《》〈〉【】。、\u2010-\u2015-]*""")
"""What may stand beside a decision. Any other sign may take it back, as a question mark, a cross or ≠ do."""
_TAKES_BACK: Final = re.compile(r"^\W*[!~]|[!~]\S*\w|(?<![\w!~])~")
"""Before a word these mean not; after one, they are only loud. What is struck out has ~ around it."""


def read(
    text: str, waiting: Sequence[Question], top: Session, reply_to: str | None
) -> tuple[Question, Decision] | None:
    """The decision that these words are, and on what; None where they are none, or may mean several."""
    if len(text) > LONGEST:
        return None
    text = unicodedata.normalize("NFKC", text)
    meant, said = _named_in(text, named(waiting, top, reply_to), top)
    if len(meant) != 1:
        return None
    [one] = meant
    is_named = reply_to is not None or said != text
    meaning = ON_UNCERTAIN if one.call.uncertain else ON_APPROVAL
    decision = meaning.get(plain(said.casefold()))
    if decision is None or not _undecided(one, top).by_word:
        return None
    return (one, decision) if is_named or _was_told(one, top) else None


def _named_in(text: str, meant: list[Question], top: Session) -> tuple[list[Question], str]:
    """Those that the words name, and the words without the name; where they name none, all, and the words."""
    labels = sorted({one.label(top) for one in meant}, key=len, reverse=True)
    # As it is written, where names differ by their case alone.
    for case in (re.NOFLAG, re.IGNORECASE):
        for label in labels:
            # Letters of other scripts may stand beside it without a space.
            whole = rf"(?<![\w./-])(?<!\w[:@]){re.escape(label)}(?![\w/-])"
            said, found = re.subn(whole, " ", text, flags=re.ASCII | case)
            if found:
                return [one for one in meant if re.fullmatch(re.escape(label), one.label(top), case)], said
    return meant, text


def _was_told(question: Question, top: Session) -> bool:
    """False where its turn, or that at the top, was moved on elsewhere: whoever still looks at what waited before it
    was not told of this one, unless he has said something since."""
    spoke = top.turn.spoke if top.turn else None
    for turn in (top.turn, question.session.turn):
        if turn is None or turn.moved_on is None or (spoke and spoke >= turn.moved_on):
            continue
        if question.call.at and question.call.at > turn.moved_on:
            return False
    return True


def plain(text: str) -> str:
    """Words alone: no punctuation, nothing unseen, one space between them; empty where there is a doubt."""
    seen = "".join(char for char in _APOSTROPHE.sub("", text) if unicodedata.category(char) != "Cf")
    if not _ORDINARY.fullmatch(seen) or _TAKES_BACK.search(seen):
        return ""
    return " ".join(re.findall(r"[^\W_]+", seen))


async def undecided(db: Database, session: Session) -> list[Question]:
    """What waits for a decision, in the session and beneath it; one whose time is over is as good as denied."""
    now = clock.now()
    return [one for one in all_waiting(session, await waiting_status(db, session)) if not is_late(one.call, now)]


def all_waiting(session: Session, below: WaitingStatus) -> list[Question]:
    """The same, whatever the time: the session's own first."""
    return [one for one in (*own(session), *below.questions) if _awaits_decision(one.call)]


def words_on(waiting: Sequence[Question], top: Session, *, is_own_user: bool = True) -> str:
    """What waits, and how to decide, as it is told in the chat with the session at the top."""
    told = [_undecided(one, top, is_own_user=is_own_user) for one in waiting]
    return words_for(told, top.id)


def decidable(session: Session, decision: Decision) -> list[Open]:
    """The calls of this session on which such a decision can be made now."""
    if decision == "approve":
        # Past its deadline a call counts as denied, whether or not a worker has said so yet.
        return [call for call in session.unapproved if not is_late(call, clock.now())]
    return session.unapproved if decision == "deny" else session.uncertain


def outrun() -> CallerError:
    """The session was ahead of us each time."""
    return CallerError("The session moved on each time; try again.", status=409, code="busy")


def settled(message: str) -> CallerError:
    """Somebody was first."""
    return CallerError(message, status=409, code="already_settled")


def is_own_user(session: Session, user: str | None) -> bool:
    """Is this the user of the session? One without a user, or whose user is the owner, is the owner's own."""
    mine = session.owner if user is None else user
    return session.user == mine or (session.user is None and mine == session.owner)


def _undecided(question: Question, top: Session, *, is_own_user: bool = True) -> Undecided:
    session, call = question.session, question.call
    return Undecided(
        tool=call.tool,
        call=call.call,
        arguments=call.arguments,
        is_uncertain=call.uncertain,
        doubt=call.doubt,
        in_chat=is_own_user and session.turn is not None and session.turn.approve_in_chat,
        asked_by="" if session.id == top.id else session.agent,
        label=question.label(top),
    )


def _awaits_decision(call: Open) -> bool:
    return call.uncertain or call.approve_by is not None


def is_late(call: Open, now: datetime) -> bool:
    return call.approve_by is not None and call.approve_by <= now
