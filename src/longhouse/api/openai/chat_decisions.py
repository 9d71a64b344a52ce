"""Approvals in the chat: a message sent while calls wait for a decision is that decision, or is queued for the turn."""

from dataclasses import dataclass

from msgspec import structs

from longhouse.api.openai.request import ChatInput, text_of
from longhouse.api.openai.turn_handle import TurnHandle, seen_heads
from longhouse.api.sessions import decisions
from longhouse.api.sessions.waiting import Question, named
from longhouse.journal import events
from longhouse.journal.events import Prompted
from longhouse.journal.session import Session, Turn
from longhouse.runtime.inbox import Inbox
from longhouse.store import journals, sessions
from longhouse.store.database import Database


@dataclass(frozen=True, slots=True)
class ChatDecisions:
    """Handles chat messages while calls wait for a person's decision."""

    db: Database
    inbox: Inbox

    async def meet(
        self,
        asked: ChatInput,
        session: Session,
        prompt: Prompted,
        *,
        meant: Question | None = None,
        may_decide: bool = True,
    ) -> TurnHandle | None:
        """If calls wait for a decision, the message decides; if it is no decision, the response lists what waits.

        `meant` is the call that the client named: no other call is decided.
        """
        for _ in range(decisions.RACES):
            waiting = await decisions.undecided(self.db, session)
            turn = session.turn
            if turn is None or not named(waiting, session, asked.reply_to):
                return None
            is_own_user = decisions.is_own_user(session, asked.user)
            said = text_of(prompt.content) if len(prompt.content) == 1 else ""
            found = decisions.read(said, waiting, session, asked.reply_to) if is_own_user and may_decide else None
            # After a lost race, the message was not about the call that waits now.
            may_decide = found is not None and (meant is None or found[0].is_same(meant))
            try:
                if found and may_decide:
                    meant = found[0]
                    return await self._decide(asked, session, turn, prompt, found)
                return await self._set_aside(asked, session, turn, prompt, is_own_user=is_own_user)
            except journals.NotThere:
                if await sessions.session(self.db, session.id, session.owner) is None:
                    raise  # the session was deleted meanwhile
                session = await journals.catch_up(self.db, session)
        raise decisions.outrun()

    async def _decide(
        self,
        asked: ChatInput,
        session: Session,
        turn: Turn,
        prompt: Prompted,
        found: tuple[Question, events.Decision],
    ) -> TurnHandle:
        """Records a decision from the chat; raises NotThere if the session has moved on."""
        on, decision = found
        asking, is_own = on.session, on.session.id == session.id
        decided = events.Decided(
            call=on.call.call,
            decision=decision,
            by=asked.request.user or "user",
            via="chat",
            chain=prompt.chain if is_own else "",
        )
        before = await seen_heads(self.db, asking)
        accepted = asked.accepted if is_own else asked.followed_in(turn.trace)
        delivered = await self.inbox.decide(asking, decided, accepted=accepted)
        if is_own:
            return TurnHandle(session=delivered.session, trace=turn.trace, seen_heads=before)
        followed = session.with_chain(prompt.chain)
        return TurnHandle(session=followed, trace=turn.trace, answers_beneath=True, seen_heads=before)

    async def _set_aside(
        self, asked: ChatInput, session: Session, turn: Turn, prompt: Prompted, *, is_own_user: bool
    ) -> TurnHandle:
        """Queues a message for the running turn; raises NotThere if the session has moved on."""
        aside = structs.replace(prompt, trace=turn.trace, aside=True)
        delivered = await self.inbox.prompt(session, aside, accepted=asked.accepted)
        return TurnHandle(session=delivered.session, trace=turn.trace, is_aside=True, is_own_user=is_own_user)
