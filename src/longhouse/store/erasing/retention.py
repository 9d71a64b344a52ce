"""Retention: after how many days sessions are erased, by owner and state; and which have come to their end."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from longhouse.store.database import Database, Transaction

SOLE_ERASER: Final = (0x6C6F6E67, 0x6B656570)  # "long", "keep": one process erases what is too old
PAGE: Final = 200

EndState = Literal["COMPLETED", "FAILED", "CANCELLED"]
Policy = Mapping[EndState, int | None]
"""State -> days; None: such sessions are kept. A state that is not named has the default of the settings."""

POLICIES: Final = "SELECT owner, state, days FROM retention_policies ORDER BY owner, state"
CLEAR: Final = "DELETE FROM retention_policies WHERE owner = :owner RETURNING owner"
PUT: Final = """
    INSERT INTO retention_policies (owner, state, days)
    SELECT :owner, state, days FROM unnest(:states::text[], :days::int[]) AS given (state, days)
"""
LEAST: Final = "SELECT min(days) FROM retention_policies"
# In the order in which they were opened: none is older than its last event. What was added to a conversation from
# outside goes like what is completed, once nobody is left there. What an earlier release left unbegun was cancelled.
PAGE_OF: Final = f"""
    SELECT s.id, s.owner, s.created_at, now() - make_interval(days => kept.days) AS since,
           s.updated_at < now() - make_interval(days => kept.days) AND NOT s.due AND s.holder IS NULL
           AND stands.state IN ('COMPLETED', 'FAILED', 'CANCELLED') AND (s.side <> 'external' OR NOT EXISTS (
               SELECT FROM sessions o WHERE o.owner = s.owner AND o.conversation_id = s.conversation_id AND o.id <> s.id
           )) AS is_over
    FROM sessions s
    CROSS JOIN LATERAL (SELECT CASE WHEN s.side = 'external' THEN 'COMPLETED' WHEN s.state = 'INITED' THEN 'CANCELLED'
                                    ELSE s.state END AS state) stands
    LEFT JOIN retention_policies p ON p.owner = s.owner AND p.state = stands.state
    CROSS JOIN LATERAL (SELECT CASE WHEN p.owner IS NULL THEN :default::int ELSE p.days END AS days) kept
    WHERE s.side <> 'sub' AND (s.created_at, s.id) > (:at, :id)
      AND s.created_at < now() - make_interval(days => :least::int)
    ORDER BY s.created_at, s.id LIMIT {PAGE}
"""


@dataclass(frozen=True, slots=True)
class OldSession:
    """A session that was opened long enough ago to be looked at."""

    id: str
    owner: str
    created_at: datetime
    since: datetime | None
    """It goes if nothing happened in it since; None: it is kept."""
    is_over: bool


async def policies(db: Database) -> dict[str, dict[EndState, int | None]]:
    """Owner -> its policy, for those that have one."""
    found: dict[str, dict[EndState, int | None]] = {}
    for row in await db.rows(POLICIES):
        found.setdefault(row["owner"], {})[row["state"]] = row["days"]
    return found


async def put(db: Database, owner: str, policy: Policy) -> None:
    """Sets the policy of an owner, in the place of an earlier one."""

    async def write(tx: Transaction) -> None:
        await tx.run(CLEAR, owner=owner)
        await tx.run(PUT, owner=owner, states=list(policy), days=list(policy.values()))

    await db.together(write)


async def remove(db: Database, owner: str) -> bool:
    """Takes the policy of an owner away; False if there was none."""
    return await db.value(CLEAR, owner=owner) is not None


async def least(db: Database, default: int | None) -> int | None:
    """The fewest days after which any session goes; None: all are kept."""
    own: int | None = await db.value(LEAST)
    return min((days for days in (own, default) if days is not None), default=None)


async def page(db: Database, *, default: int | None, least: int, after: tuple[datetime, str]) -> list[OldSession]:
    """The next sessions, oldest first, with whether they have come to their end."""
    at, session_id = after
    return await db.read(OldSession, PAGE_OF, default=default, least=least, at=at, id=session_id)
