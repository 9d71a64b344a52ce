"""Results of delegations: outcomes and their cost, the number of open tasks, and the budget left."""

from typing import Final

import msgspec

from longhouse.agents import rules
from longhouse.agents.delegation import capped_by_shared
from longhouse.journal.events import Limits, Outcome, Prompted, Returned, Usage
from longhouse.journal.session import Session, Turn
from longhouse.store.database import Executor

# Through the sessions of the conversation, since a trace never leaves it; few delegations are open.
AT_WORK: Final = """
    SELECT count(*) FROM sessions s JOIN delegations d ON d.parent = s.id
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND d.outcome IS NULL AND d.trace = :trace
"""
USED: Final = """
    SELECT COALESCE(sum((d.outcome ->> 'own_calls')::bigint), 0)::bigint AS calls,
           COALESCE(sum((d.outcome ->> 'own_tokens')::bigint), 0)::bigint AS tokens
    FROM sessions s JOIN delegations d ON d.parent = s.id
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND d.outcome IS NOT NULL AND d.trace = :trace
"""


class DelegationResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored outcome of a delegation; with its cost until that has been charged to a call."""

    outcome: Outcome
    spent: Usage | None = None
    calls: int = 0
    seconds: float = 0.0
    own_calls: int = 0
    own_tokens: int = 0
    """Without the usage of the sub-agents that the agent has waited for: each of those has its own result."""
    user: str | None = None
    """As in `Returned`: who joined the turn."""

    @property
    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()

    @property
    def counted(self) -> "DelegationResult":
        return msgspec.structs.replace(self, spent=None, calls=0, seconds=0.0)

    def returned(self, call: str) -> Returned:
        """The event that ends the call which is charged the cost."""
        return Returned(
            call=call,
            outcome=self.outcome,
            spent=self.spent,
            calls=self.calls,
            seconds=self.seconds,
            by="agent",
            user=self.user,
        )


_decoder: Final[msgspec.json.Decoder[DelegationResult]] = msgspec.json.Decoder(DelegationResult)


def decode(kept: str) -> DelegationResult:
    return _decoder.decode(kept)


def of_turn(turn: Turn, outcome: Outcome) -> DelegationResult:
    """The outcome of an ended turn, with its cost."""
    # Budgets do not count the call that gives the final answer.
    calls = turn.calls - bool(turn.verdict)
    return DelegationResult(
        outcome=outcome,
        spent=turn.usage,
        calls=calls,
        seconds=max(0.0, rules.worked_seconds(turn)),
        own_calls=calls - turn.subagents.calls,
        own_tokens=turn.usage.total_tokens - turn.subagents.tokens,
        user=None if turn.user == turn.prompted.user else turn.user,
    )


async def count_open(db: Executor, session: Session, trace: str) -> int:
    """The number of open tasks of a trace."""
    return int(await db.value(AT_WORK, owner=session.owner, conversation=session.conversation, trace=trace))


async def budget_left(db: Executor, session: Session, prompt: Prompted) -> Limits | None:
    """The budget of a prompt that is about to start: what is left of its own, and of that shared by its trace."""
    if prompt.budget is None or prompt.shared_budget is None:
        return prompt.budget
    [used] = await db.rows(USED, owner=session.owner, conversation=session.conversation, trace=prompt.trace)
    return capped_by_shared(prompt.budget, prompt.shared_budget, **dict(used))
