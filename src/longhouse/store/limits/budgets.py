"""Budgets of keys: tokens and turns in a day or a month of UTC.

A session whose key has used one up waits until it is full again, or raised; nobody holds it meanwhile.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from longhouse import clock
from longhouse.errors import CallerError
from longhouse.store.database import Database, Executor, Transaction

EXCEEDED: Final = "budget_exceeded"
NAMES: Final = ("tokens_per_month", "tokens_per_day", "turns_per_month", "turns_per_day")
"""In the order in which they are looked at. Tokens come first: without them nothing goes on, and without turns what has
begun does; and a month lasts longer than a day."""

_TODAY: Final = "(now() AT TIME ZONE 'UTC')::date"
_MONTH: Final = "date_trunc('month', now() AT TIME ZONE 'UTC')::date"
_SPENT: Final = "CASE " + " ".join(f"WHEN k.{name} <= u.{name} THEN '{name}'" for name in NAMES) + " END"
_LIMIT: Final = "CASE {budget} " + " ".join(f"WHEN '{name}' THEN k.{name}" for name in NAMES) + " END"


def spent_of(key: str, *, tokens: str = "0", turns: str = "0") -> str:
    """SQL: the budget that the key has used up, with what this very statement counts, or NULL."""
    return f"CASE WHEN {key} IS NOT NULL THEN spent_budget({key}, {tokens}, {turns}) END"


# The key is locked until the pause is committed, so that whoever raises its budget finds the session; and the budget is
# that of the locked row, not the one that this statement saw at first.
PAUSE: Final = f"""
WITH locked AS MATERIALIZED (
    SELECT k.* FROM api_keys k WHERE k.id = (SELECT key_id FROM sessions WHERE id = :session) FOR SHARE OF k
), spent AS MATERIALIZED (
    SELECT found.* FROM (
        SELECT {_SPENT} AS budget, {_LIMIT.format(budget=_SPENT)} AS most
        FROM locked k CROSS JOIN LATERAL usage_of_key(k.id) u
    ) found WHERE found.budget IS NOT NULL AND (:begins OR found.budget LIKE 'tokens%')
), moved AS (
    UPDATE sessions s SET holder = NULL, due = false, paused = spent.budget,
        paused_at = COALESCE(s.paused_at, now()), wake_at = (
        CASE WHEN spent.budget LIKE '%month' THEN {_MONTH} + interval '1 month' ELSE {_TODAY} + interval '1 day' END
    ) AT TIME ZONE 'UTC'
    FROM spent WHERE s.id = :session AND s.fence = :fence AND s.head = :head
    RETURNING s.id
)
SELECT budget, most, EXISTS (SELECT FROM moved) AS is_paused FROM spent
"""
# Sub-agents wait for the budget of the same key.
PAUSED: Final = f"""
    SELECT s.paused, {_LIMIT.format(budget="s.paused")} AS most, s.wake_at FROM sessions top
    JOIN sessions s ON s.owner = top.owner AND s.conversation_id = top.conversation_id
    JOIN api_keys k ON k.id = s.key_id
    WHERE top.id = :session AND (s.id = top.id OR s.side = 'sub' AND s.key_id = top.key_id)
      AND s.paused IS NOT NULL AND NOT s.due
    ORDER BY s.id = top.id DESC LIMIT 1
"""
# Sessions are locked in the order in which all others do.
RESUME: Final = """
    UPDATE sessions SET due = true, wake_at = NULL, queued_at = now()
    WHERE id IN (
        SELECT id FROM sessions WHERE key_id = :key AND paused IS NOT NULL AND NOT due AND waits_for IS NULL
        ORDER BY id FOR UPDATE
    )
"""
TURNS_LEFT: Final = "spent_turns(:api_key) IS NULL"
"""SQL: the key has turns left; it is locked until the commit."""
# A part of the statement that appends a prompt: the turn is taken with it, or neither is.
TAKE_TURN: Final = f"""
, taken AS (
    UPDATE api_keys k SET (turns_on, turns_today, turns_this_month) = (
        SELECT {_TODAY}, used.today + 1, used.this_month + 1 FROM turns_of_key(k.id) used
    ) FROM moved WHERE k.id = :api_key
)
"""
SPENT_TURNS: Final = f"""
    SELECT budget, {_LIMIT.format(budget="budget")} AS most
    FROM api_keys k, spent_turns(k.id) budget WHERE k.id = :key AND budget IS NOT NULL
"""
USED: Final = f"""
    SELECT k.id, {", ".join(f"u.{name}" for name in NAMES)}
    FROM unnest(:keys::text[]) AS k (id) CROSS JOIN LATERAL usage_of_key(k.id) u
"""


class SpentBudget(msgspec.Struct, frozen=True):
    """A budget that is used up."""

    name: str
    limit: int | None
    """None: it was taken away just now."""
    until: datetime
    """When it is full again."""

    @property
    def words(self) -> str:
        what, _, period = self.name.partition("_per_")
        of = f" of {self.limit:,} {what} a {period}" if self.limit else ""
        return f"This key has used up its budget{of}, which is full again on {self.until:%Y-%m-%d %H:%M} UTC"

    @property
    def seconds(self) -> int:
        return max(1, round((self.until - clock.now()).total_seconds()))


def spent_budget(name: str, limit: int | None) -> SpentBudget:
    return SpentBudget(name, limit, full_at(name))


def full_at(name: str, now: datetime | None = None) -> datetime:
    """When the budget of this name is full again: at the end of the day, or of the month, of UTC."""
    midnight = (now or clock.now()).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if name.endswith("day"):
        return midnight + timedelta(days=1)
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)


def exceeded(spent: SpentBudget, then: str = "") -> CallerError:
    return CallerError(
        f"{spent.words}{then}.",
        status=429,
        kind="insufficient_quota",
        code=EXCEEDED,
        retry_after=spent.seconds,
    )


class Pause(msgspec.Struct, frozen=True):
    """What came of an attempt to let a session wait for a budget."""

    spent: SpentBudget
    is_paused: bool
    """False: its head moved, or the lease is lost."""


async def pause(db: Database, session_id: str, *, fence: int, head: int, begins: bool) -> Pause | None:
    """Releases a session until the budget of its key is full again; None if the budget is not used up.

    `begins`: a turn of a client would begin, for which a budget of turns counts too.
    """
    row = await db.row(PAUSE, session=session_id, fence=fence, head=head, begins=begins)
    return Pause(spent_budget(row["budget"], row["most"]), row["is_paused"]) if row else None


async def spent_turns(db: Executor, key: str) -> SpentBudget | None:
    """The budget of turns that a key has used up."""
    row = await db.row(SPENT_TURNS, key=key)
    return spent_budget(row["budget"], row["most"]) if row else None


async def paused(db: Database, session_id: str) -> SpentBudget | None:
    """The budget for which the session waits, or one of its sub-agents."""
    row = await db.row(PAUSED, session=session_id)
    return SpentBudget(row["paused"], row["most"], row["wake_at"]) if row and row["wake_at"] else None


async def resume(tx: Transaction, key_id: str) -> None:
    """Wakes the sessions that wait for a budget of this key: they look at it again."""
    await tx.run(RESUME, key=key_id)


async def used(db: Database, keys: Sequence[str]) -> dict[str, dict[str, int]]:
    """Key -> what it has used of each budget, whether it is limited or not."""
    rows = await db.rows(USED, keys=list(keys))
    return {row["id"]: {name: row[name] for name in NAMES} for row in rows}
