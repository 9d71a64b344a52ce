"""What operators watch of all processes together, counted at a bounded cost."""

from collections.abc import Mapping
from typing import Final, get_args

import msgspec

from longhouse.journal.session import Ended, State
from longhouse.store.automation import webhook_deliveries
from longhouse.store.automation.webhook_deliveries import Pending
from longhouse.store.database import Database
from longhouse.store.limits import places

MOST_COUNTED: Final = 100_000
MOST_ASKING: Final = 10_000
"""Sessions with a question without a deadline that are looked at: each is one step in an index."""

# In a session that waits for approval, a question without a deadline is about a lost worker or a lost result. LIMIT
# keeps the planner from reading all sessions.
COUNTS: Final = """
    SELECT w.workers, w.slots, due.without_worker, due.oldest_runnable, (
        SELECT count(*)::int FROM (SELECT FROM asking_sessions LIMIT :most) asking
    ) AS asking, (
        SELECT count(*)::int FROM (
            SELECT id FROM asking_sessions WHERE due_by = '9999-12-31 00:00:00+00' LIMIT :most_asking
        ) a CROSS JOIN LATERAL (SELECT FROM sessions WHERE id = a.id AND state = 'WAITING_FOR_APPROVAL' LIMIT 1) s
    ) AS in_doubt, (
        SELECT COALESCE(extract(epoch FROM now() - min(next_at)), 0)::float8 FROM schedules WHERE next_at <= now()
    ) AS schedule_lag
    FROM (
        SELECT count(*)::int AS workers, COALESCE(sum(slots), 0)::int AS slots
        FROM workers WHERE beat_at > now() - interval '10 seconds'
    ) w, (
        SELECT count(*)::int AS without_worker,
               greatest(COALESCE(extract(epoch FROM now() - min(since)), 0), 0)::float8 AS oldest_runnable
        FROM (
            SELECT COALESCE(s.queued_at, s.updated_at) AS since FROM sessions s
            WHERE s.due AND (s.holder IS NULL OR NOT EXISTS (SELECT FROM workers w WHERE w.id = s.holder)) LIMIT :most
        ) runnable
    ) due
"""
STATES: Final = """
    SELECT asked.state, (
        SELECT count(*)::int FROM (
            SELECT FROM sessions s
            WHERE s.state = asked.state AND s.state <> 'COMPLETED' AND s.side <> 'external' AND s.capsule IS NULL
            LIMIT :most
        ) found
    ) AS number
    FROM unnest(:states::text[]) AS asked (state)
"""
OPEN_STATES: Final = tuple(state for state in State if state not in get_args(Ended))


class FleetCounts(msgspec.Struct, frozen=True):
    workers: int
    slots: int
    """Sessions that these workers can advance at once."""
    without_worker: int
    """Sessions that could go on, and that no worker has taken."""
    oldest_runnable: float
    """Seconds that the first of them has waited; 0 if there are none."""
    asking: int
    """Sessions that rest because they ask a person something."""
    in_doubt: int
    """Sessions that wait for a person to say what became of a call, or whether a step is tried again."""
    schedule_lag: float
    """Seconds that the first schedule has waited whose moment has come; 0 if there is none."""
    states: Mapping[str, int] = msgspec.field(default_factory=dict)
    """State -> sessions, of those that have not ended."""
    waiting_for_place: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Limit -> sessions."""
    webhooks: Pending = msgspec.field(default_factory=lambda: Pending(0, 0.0))
    """What waits to be sent to webhooks."""


async def counts(db: Database) -> FleetCounts:
    [row] = await db.rows(COUNTS, most=MOST_COUNTED, most_asking=MOST_ASKING)
    states = await db.rows(STATES, states=OPEN_STATES, most=MOST_COUNTED)
    return FleetCounts(
        **row,
        states={one["state"]: one["number"] for one in states},
        waiting_for_place=await places.waiting(db),
        webhooks=await webhook_deliveries.pending(db, MOST_COUNTED),
    )
