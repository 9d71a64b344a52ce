"""What became of the tasks that agents gave each other, what that cost, and how many are still at one."""

from datetime import datetime
from typing import Final

import msgspec

from longhouse.agents import rules
from longhouse.agents.delegation import left_of
from longhouse.journal.events import Limits, Outcome, Prompted, Returned, Usage
from longhouse.journal.session import Session
from longhouse.store.database import Asked

# By the conversation's sessions, since a trace never leaves it; what is open is few.
AT_WORK: Final = """
    SELECT count(*) FROM sessions s JOIN delegations d ON d.parent = s.id
    WHERE s.owner = $1 AND s.conversation_id = $2 AND d.outcome IS NULL AND d.trace = $3
"""
USED: Final = """
    SELECT COALESCE(sum((d.outcome ->> 'own_calls')::bigint), 0)::bigint AS calls,
           COALESCE(sum((d.outcome ->> 'own_tokens')::bigint), 0)::bigint AS tokens
    FROM sessions s JOIN delegations d ON d.parent = s.id
    WHERE s.owner = $1 AND s.conversation_id = $2 AND d.outcome IS NOT NULL AND d.trace = $3
"""


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An outcome until it is collected, and after; with what it cost, while that has not been counted."""

    outcome: Outcome
    spent: Usage | None = None
    calls: int = 0
    seconds: float = 0.0
    own_calls: int = 0
    own_tokens: int = 0
    """Without what those have used whom the agent has waited for: each of them has its own outcome."""

    @property
    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def counted(self) -> "Kept":
        return msgspec.structs.replace(self, spent=None, calls=0, seconds=0.0)

    def returned(self, call: str) -> Returned:
        """To the call that pays for it."""
        return Returned(
            call=call, outcome=self.outcome, spent=self.spent, calls=self.calls, seconds=self.seconds, by="agent"
        )


_decoder: Final[msgspec.json.Decoder[Kept]] = msgspec.json.Decoder(Kept)


def decode(kept: str) -> Kept:
    return _decoder.decode(kept)


def of_turn(session: Session, outcome: Outcome, at: datetime) -> Kept:
    """The outcome of a turn that has ended, with what it cost."""
    turn = session.turn
    assert turn is not None
    # The call that hands in the answer is not one of those that budgets count.
    calls = turn.calls - bool(turn.verdict)
    return Kept(
        outcome=outcome,
        spent=turn.usage,
        calls=calls,
        seconds=max(0.0, rules.worked(turn, at)),
        own_calls=calls - turn.below.calls,
        own_tokens=turn.tokens - turn.below.tokens,
    )


async def at_work(db: Asked, session: Session, trace: str) -> int:
    """How many tasks of a trace have not come to their end."""
    return int(await db.value(AT_WORK, session.owner, session.conversation, trace))


async def left(db: Asked, session: Session, prompt: Prompted) -> Limits | None:
    """What is left for a prompt that is about to start: to who asked, and of what all in its trace have together."""
    if prompt.budget is None or prompt.purse is None:
        return prompt.budget
    used = await db.row(USED, session.owner, session.conversation, prompt.trace)
    assert used is not None
    return left_of(prompt.budget, prompt.purse, calls=used["calls"], tokens=used["tokens"])
