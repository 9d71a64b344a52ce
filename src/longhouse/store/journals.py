"""Appends events to session journals and reads them; one function is one statement."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec

from longhouse import clock
from longhouse.errors import AlreadyReturned, Deposed
from longhouse.journal import events
from longhouse.journal.events import Event, Recorded
from longhouse.journal.fold import FOLD_VERSION, blank, fold
from longhouse.journal.session import Session
from longhouse.store import files
from longhouse.store.database import Database, Executor, Transaction
from longhouse.store.requests import Accepted, Repeated, accept, under_way

TASK_SHOWN: Final = 1_000
"""Characters of a task in the session's row: the row is rewritten with every append, the prompt is stored once."""
BODY_LIMIT: Final = 64 * 1024
"""Bytes; a longer body is stored in `files` by its digest."""

SNAPSHOT_EVERY: Final = 200
PAGE: Final = 5_000


class NotThere(LookupError):  # noqa: N818 - it says what the session is
    """There is no such session, or its head is not the given one."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The place in a journal of events that were appended from outside, not by the lease holder."""

    session_id: str
    seq: int
    at: datetime
    fence: int = 0
    """The new fence, where the append deposed the holder: leases with a smaller fence are lost."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A request to release the lease with this append; granted only if nothing was appended since `head` was folded."""

    head: int
    wake_at: datetime | None = None
    """When the session is due again without a new event."""


@dataclass(frozen=True, slots=True)
class Appended:
    recorded: tuple[Recorded, ...]
    rested: bool

    @property
    def head(self) -> int:
        return self.recorded[-1].seq


WRITE: Final = """
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, reply_to,
                         worker, fence, append_id, nth, body, body_digest, at)
"""

APPEND: Final = f"""
WITH moved AS (
    UPDATE sessions SET
        head = head + $3, state = $4, trace_id = $5, version = $6, task = $7, updated_at = $8,
        due = NOT ($9 AND head = $10),
        holder = CASE WHEN $9 AND head = $10 THEN NULL ELSE holder END,
        wake_at = CASE WHEN $9 AND head = $10 THEN $19::timestamptz END, attempts = 0, troubled_at = NULL
    WHERE id = $1 AND fence = $2
    RETURNING id, head, due, fence, conversation_id
), written AS (
    {WRITE}
    SELECT moved.id, moved.head - $3 + new.nth, moved.conversation_id, $5, new.kind, new.call_id, new.reply_to,
           $11, moved.fence, $12, new.nth, new.body, new.digest, $8
    FROM moved, unnest($13::text[], $14::text[], $15::text[], $16::json[], $17::text[])
         WITH ORDINALITY AS new (kind, call_id, reply_to, body, digest, nth)
), rested AS (
    INSERT INTO rests (fingerprint, session_id, seq)
    SELECT $18, moved.id, moved.head FROM moved WHERE $18::text IS NOT NULL
)
SELECT head, due FROM moved
"""

ADD: Final = f"""
WITH moved AS (
    UPDATE sessions SET head = head + $2, due = true, state = COALESCE($3, state), updated_at = $4
    WHERE id = $1 AND head = COALESCE($16::bigint, head) AND {under_way("$17")}
    RETURNING id, head, conversation_id
), written AS (
    {WRITE}
    SELECT moved.id, moved.head - $2 + new.nth, moved.conversation_id, $5, new.kind, new.call_id, new.reply_to,
           NULL, NULL, $6, new.nth, new.body, new.digest, $4
    FROM moved, unnest($7::text[], $8::text[], $9::text[], $10::json[], $11::text[])
         WITH ORDINALITY AS new (kind, call_id, reply_to, body, digest, nth)
), accepted AS (
    INSERT INTO requests (owner, digest, key, session_id, trace_id, seq, at)
    SELECT $12, $13, $14, moved.id, COALESCE($18::text, $5), moved.head, $4 FROM moved WHERE $13::text IS NOT NULL
), rested AS (
    INSERT INTO rests (fingerprint, session_id, seq)
    SELECT $15, moved.id, moved.head FROM moved WHERE $15::text IS NOT NULL
)
SELECT id, head FROM moved
"""

# A session that exists keeps its `Opened` and its history: only the last event is appended, which is the prompt without
# the imported history that a new session would get.
OPEN: Final = f"""
WITH moved AS (
    INSERT INTO sessions (id, owner, "user", conversation_id, side, agent, label, version, parent,
                          head, due, created_at, updated_at, trace_id, task)
    SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, 2, true, $10, $10, $11, $12 WHERE {under_way("$20")}
    ON CONFLICT (owner, conversation_id, side, agent, label)
    DO UPDATE SET head = sessions.head + 1, due = true, updated_at = $10
    RETURNING id, head, conversation_id
), written AS (
    {WRITE}
    SELECT moved.id, moved.head - 2 + least(new.nth, 2), moved.conversation_id, $11, new.kind, NULL, new.reply_to,
           NULL, NULL, $13, least(new.nth, 2), new.body, new.digest, $10
    FROM moved, unnest($14::text[], $15::text[], $16::json[], $17::text[])
         WITH ORDINALITY AS new (kind, reply_to, body, digest, nth)
    WHERE CASE WHEN moved.id = $1 THEN new.nth <= 2 ELSE new.nth = cardinality($14::text[]) END
), accepted AS (
    INSERT INTO requests (owner, digest, key, session_id, trace_id, seq, at)
    SELECT $2, $18, $19, moved.id, $11, moved.head, $10 FROM moved WHERE $18::text IS NOT NULL
)
SELECT id, head FROM moved
"""

# Conditional on the head: a cancel that has not seen all events is refused, and the caller folds again.
CANCEL: Final = f"""
WITH moved AS (
    UPDATE sessions SET head = head + $3, fence = fence + 1, holder = NULL, due = $4, state = $5, updated_at = $6,
                        wake_at = NULL, attempts = 0, troubled_at = NULL
    WHERE id = $1 AND head = $2
    RETURNING id, head, fence, conversation_id
), written AS (
    {WRITE}
    SELECT moved.id, moved.head - $3 + new.nth, moved.conversation_id, $7, new.kind, new.call_id, new.reply_to,
           NULL, NULL, $8, new.nth, new.body, new.digest, $6
    FROM moved, unnest($9::text[], $10::text[], $11::text[], $12::json[], $13::text[])
         WITH ORDINALITY AS new (kind, call_id, reply_to, body, digest, nth)
)
SELECT id, head, fence FROM moved
"""

READ: Final = """
    SELECT j.seq, j.at, j.trace_id, j.worker, j.fence, j.body, f.content
    FROM journal j LEFT JOIN files f ON f.digest = j.body_digest
    WHERE j.session_id = $1 AND j.seq > $2 ORDER BY j.seq LIMIT $3
"""

WRITTEN: Final = "SELECT seq FROM journal WHERE session_id = $1 AND append_id = $2 ORDER BY nth"
DUE: Final = "SELECT due FROM sessions WHERE id = $1"
FIND: Final = """
    SELECT id FROM sessions
    WHERE owner = $1 AND conversation_id = $2 AND side = $3 AND agent = $4 AND label = $5
"""

LATEST: Final = "SELECT seq, state FROM snapshots WHERE session_id = $1 AND fold_version = $2"
SNAPSHOT: Final = """
    INSERT INTO snapshots (session_id, seq, fold_version, state)
    SELECT $1, $2, $3, $4 FROM (SELECT FROM sessions WHERE id = $1 FOR KEY SHARE) there -- unless it was erased
    ON CONFLICT (session_id) DO UPDATE SET seq = $2, fold_version = $3, state = $4
    WHERE snapshots.seq < $2 OR snapshots.fold_version <> $3
"""

_session_decoder = msgspec.json.Decoder(Session)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Events as columns, the form of a statement's array parameters."""

    kinds: list[str]
    calls: list[str | None]
    replies: list[str | None]
    bodies: list[str]
    digests: list[str | None]


async def _rows(db: Executor, new: Sequence[Event]) -> _Rows:
    bodies = [events.encode(event) for event in new]
    digests: list[str | None] = [None] * len(bodies)
    for index, body in enumerate(bodies):
        if len(body) * 4 > BODY_LIMIT and len(raw := body.encode()) > BODY_LIMIT:
            digests[index] = await files.put(db, raw, "application/json")
            bodies[index] = "{}"
    return _Rows(
        kinds=[events.kind_of(event) for event in new],
        calls=[events.call_of(event) for event in new],
        replies=[events.reply_to_of(event) for event in new],
        bodies=bodies,
        digests=digests,
    )


async def append(
    db: Executor,
    session: Session,
    new: Sequence[Event],
    *,
    fence: int,
    worker: str,
    at: datetime,
    rest: Rest | None,
    fingerprint: str | None = None,
    append_id: uuid.UUID | None = None,
) -> Appended:
    """Appends as the lease holder. `session` is the fold that includes `new`; the session's row is set from it.

    `fingerprint`, where this append ends what the client is sent: by it, a client that resends the whole conversation
    is matched with this session.
    """
    append_id, rows, turn = append_id or uuid.uuid4(), await _rows(db, new), session.turn
    args = (
        session.id,
        fence,
        len(new),
        session.state,
        turn.trace if turn else None,
        turn.version if turn else session.version,
        turn.task[:TASK_SHOWN] if turn else None,
        at,
        rest is not None,
        rest.head if rest else 0,
        worker,
        append_id,
        rows.kinds,
        rows.calls,
        rows.replies,
        rows.bodies,
        rows.digests,
        fingerprint,
        rest.wake_at if rest else None,
    )
    try:
        row = await db.row(APPEND, *args)
    except asyncpg.UniqueViolationError as error:
        row = await _already_there(db, session.id, append_id, error)
    if row is None:
        if isinstance(db, Database):
            # The session may have been erased; then no event refers to the bodies that were just stored.
            await files.drop_unused(db, [one for one in rows.digests if one], session=session.id)
        raise Deposed(f"session {session.id!r} is held by another worker, or was forgotten")
    trace, first = turn.trace if turn else "", row["head"] - len(new) + 1
    recorded = tuple(
        Recorded(seq=first + index, at=at, event=event, trace=trace, worker=worker, fence=fence)
        for index, event in enumerate(new)
    )
    return Appended(recorded=recorded, rested=not row["due"])


async def add(
    db: Executor,
    session_id: str,
    new: Sequence[Event],
    *,
    trace: str,
    state: str | None = None,
    accepted: Accepted | None = None,
    fingerprint: str | None = None,
    head: int | None = None,
) -> Placed:
    """Appends from outside, without a fence, so that the lease holder keeps its lease and its reply.

    `fingerprint`: of the rest that follows `new`, where the session has nothing to do after it.
    `head`: the append requires this head; if the head has moved, NotThere is raised.
    """
    assert all(isinstance(event, events.OUTSIDE) for event in new)
    append_id, rows, at = uuid.uuid4(), await _rows(db, new), clock.now()
    args = (
        session_id,
        len(new),
        state,
        at,
        trace,
        append_id,
        rows.kinds,
        rows.calls,
        rows.replies,
        rows.bodies,
        rows.digests,
        accepted.owner if accepted else None,
        accepted.digest if accepted else None,
        accepted.key if accepted else None,
        fingerprint,
        head,
        accepted.lock if accepted else None,
        accepted.follows if accepted else None,
    )
    try:
        row = await accept(db, accepted, ADD, *args)
    except asyncpg.UniqueViolationError as error:
        row = await _already_there(db, session_id, append_id, error)
    if row is None and head is not None and (seqs := await db.rows(WRITTEN, session_id, append_id)):
        row = {"head": seqs[-1]["seq"]}  # a retry after a lost answer finds the head that its first try has moved
    if row is None:
        raise NotThere(f"there is no session {session_id!r}, or not at this head")
    return Placed(session_id=session_id, seq=row["head"], at=at)


async def open(
    db: Executor,
    session_id: str,
    opened: events.Opened,
    prompted: events.Prompted,
    *,
    task: str,
    parent: str | None = None,
    accepted: Accepted | None = None,
) -> Placed:
    """Opens the session of this conversation, agent and label with the proposed id, or finds it; appends the prompt."""
    bare = [msgspec.structs.replace(prompted, prior=())] if prompted.prior else []
    append_id, rows, at = uuid.uuid4(), await _rows(db, [opened, prompted, *bare]), clock.now()
    args = (
        session_id,
        opened.owner,
        opened.user,
        opened.conversation,
        opened.side,
        opened.agent,
        opened.label,
        opened.version,
        parent,
        at,
        prompted.trace,
        task[:TASK_SHOWN],
        append_id,
        rows.kinds,
        rows.replies,
        rows.bodies,
        rows.digests,
        accepted.digest if accepted else None,
        accepted.key if accepted else None,
        accepted.lock if accepted else None,
    )
    try:
        row = await accept(db, accepted, OPEN, *args)
    except asyncpg.UniqueViolationError as error:
        if isinstance(db, Transaction):
            raise
        found = await db.value(FIND, opened.owner, opened.conversation, opened.side, opened.agent, opened.label)
        row = await _already_there(db, found or session_id, append_id, error)
    assert row is not None
    return Placed(session_id=row["id"], seq=row["head"], at=at)


async def cancel(db: Executor, session: Session, new: Sequence[Event], *, after: Session) -> Placed | None:
    """Cancels a turn from outside and deposes the lease holder; None if the head moved since `session` was folded."""
    append_id, rows, at = uuid.uuid4(), await _rows(db, new), clock.now()
    trace = next(event.trace for event in new if isinstance(event, events.Cancelled))
    row = await db.row(
        CANCEL,
        session.id,
        session.head,
        len(new),
        after.can_move,
        after.state,
        at,
        trace,
        append_id,
        rows.kinds,
        rows.calls,
        rows.replies,
        rows.bodies,
        rows.digests,
    )
    if row is None:
        # The head does not match: perhaps only because this is a retry and the first try was written.
        written = [one["seq"] for one in await db.rows(WRITTEN, session.id, append_id)]
        return Placed(session_id=session.id, seq=written[-1], at=at) if written else None
    return Placed(session_id=session.id, seq=row["head"], at=at, fence=row["fence"])


async def _already_there(
    db: Executor, session_id: str, append_id: uuid.UUID, error: asyncpg.UniqueViolationError
) -> dict[str, Any]:
    """Classifies a unique violation: if the first try of this same append was written, it is a success."""
    if isinstance(db, Transaction):
        raise error  # the transaction has failed: no more statements can run in it
    seqs = [row["seq"] for row in await db.rows(WRITTEN, session_id, append_id)]
    if seqs:
        return {"id": session_id, "head": seqs[-1], "due": await db.value(DUE, session_id)}
    match error.constraint_name:
        case "journal_returned":
            raise AlreadyReturned(f"a call of session {session_id!r} has its outcome already") from error
        case "requests_key":
            raise Repeated from error
        case _:
            raise error


async def is_written(db: Database, session_id: str, append_id: uuid.UUID) -> bool:
    """Was this append written? For appends whose answer was lost."""
    return bool(await db.rows(WRITTEN, session_id, append_id))


async def read(db: Executor, session_id: str, after: int = 0, limit: int = PAGE) -> list[Recorded]:
    return [recorded(row) for row in await db.rows(READ, session_id, after, limit)]


def recorded(row: asyncpg.Record) -> Recorded:
    seq, at, trace, worker, fence, body, content = row
    return Recorded(
        seq=seq,
        at=at,
        event=events.decode(content or body),
        trace=trace or "",
        worker=worker or "",
        fence=fence or 0,
    )


async def load(db: Executor, session_id: str, head: int | None = None) -> Session:
    """Folds the session's journal. A known `head` tells whether the journal is long enough for a snapshot."""
    session = blank(session_id)
    if head is None or head > SNAPSHOT_EVERY:
        row = await db.row(LATEST, session_id, FOLD_VERSION)
        if row:
            session = _session_decoder.decode(row["state"])
    return await catch_up(db, session)


async def catch_up(db: Executor, session: Session) -> Session:
    """Folds all events that were appended since `session.head`."""
    while True:
        page = await read(db, session.id, session.head)
        session = fold(page, session)
        if len(page) < PAGE:
            return session


async def load_up_to(db: Executor, session: Session, seq: int) -> Session:
    """The same session as it was with event `seq`, and not a step further."""
    return fold(await read(db, session.id, session.head, seq - session.head), session)


async def snapshot(db: Database, session: Session) -> None:
    await db.run(SNAPSHOT, session.id, session.head, FOLD_VERSION, msgspec.json.encode(session))
