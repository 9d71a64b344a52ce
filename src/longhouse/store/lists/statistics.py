"""Counts what happened in a window of time, from the journals: turns, model calls and tool calls, with durations.

Durations are counted in buckets: a percentile is read from their counts, and counts of several slices can be added.
"""

import math
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from longhouse.journal.refusals import ENDED, REFUSED
from longhouse.store.database import Database

SLICE: Final = timedelta(minutes=15)
"""What is counted is kept by slices of this length."""
SHORTEST, LONGEST, BUCKETS = 0.001, 1_000_000.0, 217
"""Durations in seconds, and how many buckets lie between: each is a tenth longer than the one before."""
WITHIN: Final = "SET LOCAL statement_timeout = '30s'"

END_STATES: Final = {"Finished": "COMPLETED", "Failed": "FAILED", "Cancelled": "CANCELLED"}
"""The last event of a turn -> the state in which it leaves the session."""
ERROR_WORDS: Final = 500
"""Characters of an error's text."""

Kind = Literal["call", "turn", "reply", "asked", "error"]

_BUCKET: Final = f"""
    width_bucket(ln(greatest(extract(epoch FROM {{}})::float8, {SHORTEST})), ln({SHORTEST}), ln({LONGEST}), {BUCKETS})
"""
_SLICE: Final = "date_bin('15 minutes', e.at, '2000-01-01Z')"
# A long body is read by its digest, row by row: a join with all files would be planned for each of these statements.
_BODY: Final = """
    CASE WHEN {0}.body_digest IS NULL THEN {0}.body
         ELSE (SELECT convert_from(f.content, 'UTF8')::json FROM files f WHERE f.digest = {0}.body_digest) END
"""
_EVENTS: Final = f"""
    (SELECT e.session_id, e.seq, e.trace_id, e.call_id, e.kind, e.at, {_BODY.format("e")} AS body FROM journal e
     WHERE e.at >= :since AND e.at < :until AND e.kind IN ({{}}))
"""
# LIMIT keeps the planner from reading all sessions, or the whole journal, for the few events of a slice.
# What a branch has inherited was counted where it happened.
_SESSION: Final = """CROSS JOIN LATERAL (
    SELECT owner, agent FROM sessions WHERE id = e.session_id AND (inherited IS NULL OR e.seq > inherited) LIMIT 1
) s"""

# Looked for from the end of a session back: the call is a few events before its result.
CALLS: Final = f"""
    SELECT {_SLICE}, s.owner, COALESCE(c.tool, ''),
           CASE WHEN e.body -> 'outcome' ->> 'type' = 'Fault' AND e.body -> 'outcome' ->> 'code' <> ALL(:not_failed)
                THEN 'failed' ELSE 'ok' END,
           CASE WHEN c.question IS NULL THEN {_BUCKET.format("e.at - COALESCE(d.at, c.at)")} END,
           count(*)::int
    FROM {_EVENTS.format("'Returned'")} e {_SESSION}
    CROSS JOIN LATERAL (
        SELECT j.seq, j.at, {_BODY.format("j")} ->> 'tool' AS tool, {_BODY.format("j")} ->> 'question' AS question
        FROM journal j
        WHERE j.session_id = e.session_id AND j.seq < e.seq AND j.kind = 'Called' AND j.call_id = e.call_id
        ORDER BY j.seq DESC LIMIT 1
    ) c
    CROSS JOIN LATERAL (
        SELECT max(at) AS at FROM journal
        WHERE session_id = e.session_id AND seq > c.seq AND seq < e.seq AND kind = 'Decided' AND call_id = e.call_id
    ) d
    GROUP BY 1, 2, 3, 4, 5
"""
TURNS: Final = f"""
    SELECT {_SLICE}, s.owner, s.agent, e.kind, {_BUCKET.format("e.at - b.at")}, count(*)::int
    FROM journal e {_SESSION}
    CROSS JOIN LATERAL (
        SELECT at FROM journal
        WHERE session_id = e.session_id AND seq < e.seq AND kind = 'Started' AND trace_id = e.trace_id
        ORDER BY seq DESC LIMIT 1
    ) b
    WHERE e.at >= :since AND e.at < :until AND e.kind IN ({", ".join(f"'{kind}'" for kind in END_STATES)})
    GROUP BY 1, 2, 3, 4, 5
"""
# The time of a reply is counted from the event before it, with which the model's work began. A discarded reply names no
# model: it is that of the reply which took its place. With a title, nothing was discarded.
REPLIES: Final = f"""
    SELECT {_SLICE}, s.owner, s.agent, COALESCE(e.body ->> 'model', r.model, ''),
           CASE WHEN e.kind = 'Replied' AND e.body ->> 'attempts' IS NULL THEN {_BUCKET.format("e.at - b.at")} END,
           (count(*) FILTER (WHERE e.kind = 'Replied'))::int,
           sum(COALESCE((e.body -> 'usage' ->> 'total_tokens')::bigint, 0))::bigint,
           (sum(COALESCE((e.body ->> 'attempts')::int, 0))
            + count(*) FILTER (
                WHERE e.kind = 'Spent' AND e.body ->> 'title' IS NULL AND e.body ->> 'waited' IS NULL))::int
    FROM {_EVENTS.format("'Replied', 'Spent', 'Condensed'")} e {_SESSION}
    LEFT JOIN LATERAL (
        SELECT at FROM journal WHERE session_id = e.session_id AND seq = e.seq - 1 LIMIT 1
    ) b ON true
    LEFT JOIN LATERAL (
        SELECT {_BODY.format("j")} ->> 'model' AS model FROM journal j
        WHERE j.session_id = e.session_id AND j.seq > e.seq AND j.kind = 'Replied' AND e.kind = 'Spent'
        ORDER BY j.seq LIMIT 1
    ) r ON true
    GROUP BY 1, 2, 3, 4, 5
"""
ASKED: Final = f"""
    SELECT {_SLICE}, s.owner, s.agent, '', NULL, count(*)::int
    FROM {_EVENTS.format("'Called'")} e {_SESSION}
    WHERE e.body ->> 'question' IS NOT NULL OR e.body ->> 'approve_by' IS NOT NULL
    GROUP BY 1, 2, 3
"""
# A turn that failed of its model names none: it is that of the reply before.
ERRORS: Final = f"""
    SELECT {_SLICE}, s.owner, s.agent, COALESCE(m.model, ''), NULL, count(*)::int, 0, 0, max(e.at),
           (array_agg(left(e.body ->> 'reason', {ERROR_WORDS}) ORDER BY e.at DESC))[1]
    FROM {_EVENTS.format("'Failed'")} e {_SESSION}
    LEFT JOIN LATERAL (
        SELECT {_BODY.format("j")} ->> 'model' AS model FROM journal j
        WHERE j.session_id = e.session_id AND j.seq < e.seq AND j.kind = 'Replied' ORDER BY j.seq DESC LIMIT 1
    ) m ON true
    WHERE e.body ->> 'code' = 'provider_error'
    GROUP BY 1, 2, 3, 4
"""
STATEMENTS: Final[dict[Kind, str]] = {
    "call": CALLS,
    "turn": TURNS,
    "reply": REPLIES,
    "asked": ASKED,
    "error": ERRORS,
}

STATES: Final = "SELECT state, count(*)::int FROM sessions WHERE side <> 'external' AND capsule IS NULL GROUP BY state"
WAITING: Final = """
    SELECT extract(epoch FROM now() - min(s.updated_at))::float8 AS oldest, count(*)::int AS number FROM sessions s
    WHERE s.waits_for IS NOT NULL
       OR s.due AND (s.holder IS NULL OR NOT EXISTS (SELECT FROM workers w WHERE w.id = s.holder))
"""
TROUBLED: Final = """
    SELECT count(*)::int AS number, extract(epoch FROM now() - min(troubled_at))::float8 AS seconds FROM sessions
    WHERE wake_at IS NOT NULL AND troubled_at IS NOT NULL
"""
MODEL_FAILED: Final = """
    SELECT model_words AS words, extract(epoch FROM now() - model_failed_at)::float8 AS seconds FROM workers
    WHERE model_failed_at > now() - interval '1 hour' ORDER BY model_failed_at DESC LIMIT 1
"""
# Sessions of either side are mirrored; what was added from outside is not, and what came in a capsule.
MIRROR_LAG: Final = """
    SELECT extract(epoch FROM now() - min(s.updated_at))::float8
    FROM sessions s LEFT JOIN projection_cursors c ON c.projection = 'redis' AND c.session_id = s.id
    WHERE s.side <> 'external' AND s.capsule IS NULL AND (c.head IS NULL OR s.head > c.head)
"""
# The size is read once: it may be another a moment later, and the two figures would not fit.
SIZE: Final = """
    WITH size AS MATERIALIZED (SELECT pg_database_size(current_database()) AS bytes)
    SELECT bytes,
           (SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database()) AS connections,
           bytes - (
               SELECT d.bytes FROM database_sizes d
               WHERE at BETWEEN now() - interval '27 hours' AND now() - interval '23 hours' ORDER BY at DESC LIMIT 1
           ) AS growth
    FROM size
"""
SAMPLE_SIZE: Final = """
    WITH old AS (DELETE FROM database_sizes WHERE at < now() - interval '8 days')
    INSERT INTO database_sizes (at, bytes) VALUES (date_trunc('hour', now()), pg_database_size(current_database()))
    ON CONFLICT DO NOTHING
"""


class Count(msgspec.Struct, frozen=True):
    """How often something of one kind happened within a slice, in one bucket of durations."""

    kind: Kind
    slice: datetime
    owner: str
    name: str
    """The tool of a call; the agent of everything else."""
    what: str
    """`ok` or `failed` of a call, the last event of a turn, the model of a reply and of an error."""
    bucket: int | None
    """None: the duration says nothing, as that of a question to a person."""
    times: int
    tokens: int = 0
    retries: int = 0
    last_at: datetime | None = None
    """Of an error: when it happened last."""
    last_words: str | None = None


async def count_events(db: Database, since: datetime, until: datetime) -> list[Count]:
    """Everything that happened from `since` on and before `until`."""
    found: list[Count] = []
    for kind, sql in STATEMENTS.items():
        more = {"not_failed": sorted(REFUSED | ENDED)} if kind == "call" else {}
        found += [Count(kind, *row) for row in await db.tuned(WITHIN, sql, since=since, until=until, **more)]
    return found


def slice_of(moment: datetime) -> datetime:
    """The beginning of the slice that a moment lies in, as Postgres counts it."""
    return moment - timedelta(seconds=moment.timestamp() % SLICE.total_seconds())


def percentile(rows: Iterable[Count], share: float) -> float | None:
    """The duration that this share of what was counted did not exceed, to about a twentieth; None without any."""
    buckets = Counter[int]()
    for row in rows:
        if row.bucket is not None:
            buckets[row.bucket] += row.times
    left = share * buckets.total()
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            step = math.log(LONGEST / SHORTEST) / BUCKETS
            return round(SHORTEST * math.exp((max(bucket, 1) - 0.5) * step), 4)
    return None
