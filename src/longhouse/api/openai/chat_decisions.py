"""Approvals in the chat: a message sent while calls wait for a decision is that decision, or is queued for the turn."""

from msgspec import structs

from longhouse.api.openai.request import ChatInput, text_of
from longhouse.api.openai.turn_handle import TurnHandle, append_reply
from longhouse.api.sessions import decisions
from longhouse.api.sessions.waiting import Question, named
from longhouse.journal.events import Prompted
from longhouse.journal.session import Session
from longhouse.runtime.inbox import Inbox
from longhouse.store import journals, sessions


async def decide(
    inbox: Inbox,
    chat: ChatInput,
    session: Session,
    prompt: Prompted,
    *,
    about: Question | None = None,
    may_decide: bool = True,
) -> TurnHandle | None:
    """If calls wait for a decision, the message decides; if it is no decision, it is queued for the running turn, and
    the response lists what waits.

    `about` is the call that the client named: no other call is decided.
    """
    for _ in range(decisions.RACES):
        waiting = await decisions.undecided(inbox.db, session)
        if session.turn is None or not named(waiting, session, chat.reply_to):
            return None
        is_own_user = decisions.is_own_user(session, chat.user)
        text = text_of(prompt.content) if len(prompt.content) == 1 else ""
        found = decisions.read(text, waiting, session, chat.reply_to) if is_own_user and may_decide else None
        # After a lost race, the message was not about the call that waits now.
        may_decide = found is not None and (about is None or found[0].is_same(about))
        try:
            if found and may_decide:
                about, decision = found
                decided = decisions.decided(chat.caller, about, decision, chat=session, user=chat.request.user)
                return await append_reply(inbox, session, about, [decided], chain=prompt.chain, accepted=chat.accepted)
            aside = structs.replace(prompt, trace=session.turn.trace, aside=True)
            delivered = await inbox.prompt(session, aside, accepted=chat.accepted)
            return TurnHandle(delivered.session, aside.trace, is_aside=True, is_own_user=is_own_user)
        except journals.NotThere:
            if await sessions.session(inbox.db, session.id, session.owner) is None:
                raise  # the session was deleted meanwhile
            session = await journals.catch_up(inbox.db, session)
    raise decisions.too_many_races()
