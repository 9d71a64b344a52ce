"""The statement that appends to several sessions at once: one commit for all of them, each under its own fence."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, Final

from longhouse.store.limits import usage

# What an append makes of the session's row, by the values of its own statement or of one row of this one.
MOVE: Final = """
        head = s.head + {one}count, state = {one}state, trace_id = {one}trace, version = {one}version,
        task = {one}task, updated_at = {one}at, due = NOT ({one}rests AND s.head = {one}folded),
        holder = CASE WHEN {one}rests AND s.head = {one}folded THEN NULL ELSE s.holder END,
        wake_at = CASE WHEN {one}rests AND s.head = {one}folded THEN {one}wake_at::timestamptz END,
        attempts = 0, troubled_at = NULL, paused = NULL, paused_at = NULL
"""
# Other sessions of the same key may be in the same statement.
_SPENT: Final = """
    CASE WHEN moved.key_id IS NOT NULL THEN (
        SELECT spent_budget(moved.key_id, sum(other.total_tokens)::bigint, sum(other.turns)::bigint)
        FROM moved other WHERE other.key_id = moved.key_id
    ) END
"""
# Each session has an event or two, and the usage of one model. One that somebody else has locked is left out: nobody
# waits for a lock while others wait for them. Its place on the disk cannot change while it is locked. The limit cuts
# nothing off: by it, Postgres expects one row. If it expected eight, it would read all of a table that is new, and go
# on to do so while the table grows.
_APPEND: Final = f"""
WITH locked AS MATERIALIZED (
    SELECT one.*, there.place FROM (VALUES {{rows}}) AS one ({{columns}}) CROSS JOIN LATERAL (
        SELECT ctid AS place FROM sessions WHERE id = one.session AND fence = one.fence
        FOR NO KEY UPDATE SKIP LOCKED
    ) there LIMIT (SELECT {{count}})
), moved AS (
    UPDATE sessions s SET {MOVE.format(one="one.")} FROM locked one WHERE s.ctid = one.place
    RETURNING s.head, s.due, s.conversation_id, s.owner, s.key_id, s.trace_id, s.updated_at, s.fence, {{kept}}
), written AS (
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, reply_to, body, at,
                         append_id, nth, worker, fence)
    SELECT moved.session, moved.head - moved.count + new.nth, moved.conversation_id, moved.trace_id, new.kind,
           new.call_id, new.reply_to, new.body, moved.updated_at, moved.append_id, new.nth, moved.worker, moved.fence
    FROM moved, LATERAL (VALUES {{events}}) AS new (kind, call_id, reply_to, body, nth) WHERE new.kind IS NOT NULL
), counted AS (
    {usage.WRITE_TOGETHER}
){{rested}}
SELECT session, head, due, CASE WHEN due THEN {_SPENT} END AS spent FROM moved
"""
_RESTED: Final = """, rested AS (
    INSERT INTO rests (fingerprint, session_id, seq)
    SELECT fingerprint, session, head FROM moved WHERE fingerprint IS NOT NULL
)"""
_MOVED: Final = {
    "session": "text",
    "fence": "bigint",
    "worker": "text",
    "append_id": "uuid",
    "count": "bigint",
    "state": "text",
    "trace": "text",
    "version": "integer",
    "task": "text",
    "at": "timestamptz",
    "rests": "boolean",
    "folded": "bigint",
    "wake_at": "timestamptz",
    "fingerprint": "text",
}
_FINGERPRINT: Final = list(_MOVED).index("fingerprint")
_KEPT: Final = ("session", "worker", "append_id", "count", "fingerprint")
"""Those that are read once the session is moved."""
_EVENT: Final = {"kind": "text", "call_id": "text", "reply_to": "text", "body": "json"}
NO_EVENT: Final = (None,) * len(_EVENT)


def statement(rows: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The statement with its values. Its places are 2 or 4, some of them empty: each connection has to plan it."""
    places = 1 << (len(rows) - 1).bit_length()
    values = list(itertools.chain.from_iterable(rows))
    marks_rest = any(row[_FINGERPRINT] is not None for row in rows)
    return (_of(places, marks_rest=marks_rest), *values, *[None] * (len(rows[0]) * (places - len(rows))))


@functools.cache
def _of(count: int, *, marks_rest: bool) -> str:
    """The statement for appends of up to so many sessions, with marks of their rests or without."""
    events_ = {f"{name}_{nth}": type_ for nth in (1, 2) for name, type_ in _EVENT.items()}
    columns = {**_MOVED, **events_, **usage.COLUMNS}
    numbers = itertools.count(1)
    rows = [", ".join(f"${next(numbers)}::{type_}" for type_ in columns.values()) for _ in range(count)]
    new = [", ".join([*(f"moved.{name}_{nth}" for name in _EVENT), f"{nth}"]) for nth in (1, 2)]
    return _APPEND.format(
        count=count,
        rows=", ".join(f"({row})" for row in rows),
        columns=", ".join(columns),
        kept=", ".join(f"one.{name}" for name in (*_KEPT, *events_, *usage.COLUMNS)),
        rested=_RESTED if marks_rest else "",
        events=", ".join(f"({event})" for event in new),
    )
