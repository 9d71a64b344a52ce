"""Deciding in the chat: a message that comes while calls wait for a decision is one, or is kept for the turn."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import structs

from longhouse.api.openai.request import Asked, text_of
from longhouse.api.openai.turn_handle import Attached, folded, seen_heads
from longhouse.api.sessions import decisions
from longhouse.api.sessions.waiting import Question, named
from longhouse.journal import events
from longhouse.journal.events import Prompted
from longhouse.journal.session import Session
from longhouse.store import journals, sessions
from longhouse.store.database import Database


@dataclass(frozen=True, slots=True)
class Deciding:
    """What a chat message is where calls wait for a person."""

    db: Database
    wake: Callable[[str], None]
    """Tells that a session may be able to move, where it is not the one that the client is attached to."""

    async def meet(
        self,
        asked: Asked,
        session: Session,
        prompt: Prompted,
        *,
        meant: Question | None = None,
        may_decide: bool = True,
    ) -> Attached | None:
        """Where calls wait for a decision, the message is one; or else its client is told at once what waits.

        `meant` is what the client has named: nothing else is decided.
        """
        for _ in range(decisions.RACES):
            waiting = await decisions.undecided(self.db, session)
            if session.turn is None or not named(waiting, session, asked.reply_to):
                return None
            is_own_user = decisions.is_own_user(session, asked.user)
            said = text_of(prompt.content) if len(prompt.content) == 1 else ""
            found = decisions.read(said, waiting, session, asked.reply_to) if is_own_user and may_decide else None
            # Words that lost their race were not said about what waits now.
            may_decide = found is not None and (meant is None or found[0].is_same(meant))
            try:
                if found and may_decide:
                    meant = found[0]
                    return await self._decide(asked, session, prompt, *found)
                return await self._set_aside(asked, session, prompt, is_own_user=is_own_user)
            except journals.NotThere:
                if await sessions.session(self.db, session.id, session.owner) is None:
                    raise  # it was forgotten meanwhile
                session = await journals.catch_up(self.db, session)
        raise decisions.outrun()

    async def _decide(
        self, asked: Asked, session: Session, prompt: Prompted, on: Question, decision: events.Decision
    ) -> Attached:
        """Writes a decision down that was said in the chat; NotThere if the session has moved on."""
        assert session.turn is not None
        asking, is_own = on.session, on.session.id == session.id
        decided = events.Decided(
            call=on.call.call,
            decision=decision,
            by=asked.request.user or "user",
            via="chat",
            chain=prompt.chain if is_own else "",
        )
        new, before = decisions.settling(decided), await seen_heads(self.db, asking)
        after, trace = folded(asking, 0, None, *new), asking.turn.trace if asking.turn else ""
        placed = await journals.add(
            self.db,
            asking.id,
            new,
            trace=trace,
            state=after.state,
            head=asking.head,
            accepted=asked.accepted if is_own else asked.followed_in(session.turn.trace),
            # Where another call still waits, the client is told of that one at once.
            fingerprint=None if after.can_move else after.rest_mark,
        )
        if is_own:
            return Attached(session=folded(session, 0, placed, *new), trace=trace, seen_heads=before)
        self.wake(asking.id)
        return Attached(
            session=session.heard_up_to(prompt.chain), trace=session.turn.trace, answers_beneath=True, seen_heads=before
        )

    async def _set_aside(self, asked: Asked, session: Session, prompt: Prompted, *, is_own_user: bool) -> Attached:
        """Keeps a message for the running turn; NotThere if the session has moved on."""
        assert session.turn is not None
        aside = structs.replace(prompt, trace=session.turn.trace, aside=True)
        placed = await journals.add(
            self.db, session.id, [aside], trace=aside.trace, head=session.head, accepted=asked.accepted
        )
        session = folded(session, 0, placed, aside)
        return Attached(session=session, trace=aside.trace, is_aside=True, is_own_user=is_own_user)
