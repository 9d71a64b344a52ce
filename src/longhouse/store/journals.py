"""Appends events to session journals and reads them; one function is one statement."""

import functools
import os
import uuid
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec
from asyncpg.pgproto.pgproto import UUID  # made, and sent, in a fifth of the time
from msgspec import structs

from longhouse import clock
from longhouse.errors import AlreadyReturned, CallerError, Deposed
from longhouse.journal import events
from longhouse.journal.events import Event, Recorded
from longhouse.journal.fold import FOLD_VERSION, blank, fold
from longhouse.journal.session import LOCAL_OWNER, Session
from longhouse.store import files, joint_appends, sessions
from longhouse.store.database import Database, Executor, Transaction
from longhouse.store.gathering import Gathering
from longhouse.store.leases import Claimant, Lease
from longhouse.store.limits import budgets, places, usage
from longhouse.store.requests import UNDER_WAY, Repeated, RequestIdentity, accept
from longhouse.store.rows import Rows

TASK_SHOWN: Final = 1_000
"""Characters of a task in the session's row: the row is rewritten with every append, the prompt is stored once."""
BODY_LIMIT: Final = 64 * 1024
"""Bytes; a longer body is stored in `files` by its digest."""
LONG_ASIDE: Final = '{"aside":true}'
"""What stands in the journal for one: `queue_has_room` reads no files."""

FIRST_FENCE: Final = 1
"""Of the first claim of a session."""
SNAPSHOT_EVERY: Final = 200
PAGE: Final = 5_000


MOST_WAITING: Final = 100
"""Prompts that wait in the queue of a session."""
MOST_WAITING_BYTES: Final = 16 * 2**20
"""Once as much waits, nothing more is taken."""
ASK_AGAIN_IN: Final = 10
"""Seconds after which a client may find room in a queue."""
TOO_MANY_WAITING: Final = "too_many_waiting"


class NotThere(LookupError):  # noqa: N818 - it says what the session is
    """There is no such session, or its head is not the given one."""


class Placed(msgspec.Struct, frozen=True):
    """The place in a journal of events that were appended from outside, not by the lease holder."""

    session_id: str
    seq: int
    at: datetime
    fence: int = 0
    """The new fence, where the append deposed the holder: leases with a smaller fence are lost."""
    lease: Lease | None = None
    """Of a session that was opened and claimed at once."""


class Rest(msgspec.Struct, frozen=True):
    """A request to release the lease with this append; granted only if nothing was appended since `head` was folded."""

    head: int
    wake_at: datetime | None = None
    """When the session is due again without a new event."""


class Appended(msgspec.Struct, frozen=True):
    recorded: tuple[Recorded, ...]
    rested: bool
    spent: str | None = None
    """The budget that the session's key has used up with this append."""

    @property
    def head(self) -> int:
        return self.recorded[-1].seq


_NEW: Final = Rows("new", kind="text", call_id="text", reply_to="text", body="json", digest="text")
NEW_EVENTS: Final = _NEW.in_arrays
"""SQL: new events as rows."""
_WRITE: Final = """
    INSERT INTO journal (session_id, seq, conversation_id, trace_id, kind, call_id, reply_to, body, body_digest, at,
                         append_id, nth, worker, fence)
    SELECT moved.id, moved.head - :count + {nth}, moved.conversation_id, :trace, new.kind, new.call_id, new.reply_to,
           new.body, new.digest, :at, :append_id, {nth}, {author}
    FROM moved, {new}
"""
WRITE_OUTSIDE: Final = _WRITE.format(nth="new.nth", author="NULL, NULL", new=NEW_EVENTS)
MARK_REST: Final = """
    INSERT INTO rests (fingerprint, session_id, seq)
    SELECT :fingerprint, moved.id, moved.head FROM moved WHERE :fingerprint::text IS NOT NULL
"""

SPENT: Final = budgets.spent_of("moved.key_id")
# What this statement itself writes is not visible to it.
SPENT_WITH_THIS: Final = budgets.spent_of("moved.key_id", tokens=":new_tokens::bigint", turns=":new_turns::bigint")
# Written out by `_appending`: a statement carries only what its append needs, which halves its cost.
APPEND: Final = f"""
WITH moved AS (
    UPDATE sessions s SET {joint_appends.MOVE.format(one=":")}
    WHERE s.id = :session AND s.fence = :fence
    RETURNING s.id, s.head, s.due, s.fence, s.conversation_id, s.owner, s.key_id
), written AS (
    {_WRITE.format(nth="new.nth", author=":worker, moved.fence", new="{new}")}
){{more}}
SELECT head, due, CASE WHEN due THEN {{spent}} END AS spent FROM moved
"""


def room_in(session: str) -> str:
    """SQL: the session's queue takes one more prompt. At rest, none waits."""
    return f"""(
        NOT {session}due AND {session}state IN ('COMPLETED', 'FAILED', 'CANCELLED')
        OR queue_has_room({session}id, :most_waiting, {MOST_WAITING_BYTES})
    )"""


HAS_ROOM: Final = f"SELECT {room_in('s.')} FROM sessions s WHERE s.id = :session"
ADD: Final = f"""
WITH moved AS (
    UPDATE sessions SET head = head + :count, due = true, state = COALESCE(:state, state), updated_at = :at,
                        queued_at = CASE WHEN due OR waits_for IS NOT NULL THEN queued_at ELSE :at END,
                        key_id = COALESCE(:api_key, key_id)
    WHERE id = :session AND head = COALESCE(:head::bigint, head) AND {UNDER_WAY}
      AND (:most_waiting::integer IS NULL OR {room_in("")})
    RETURNING id, head, conversation_id
), written AS (
    {WRITE_OUTSIDE}
), rested AS (
    {MARK_REST}
){{accepted}}
SELECT id, head FROM moved
"""

# A session that exists keeps its `Opened` and its history: only the last event is appended, which is the prompt without
# the imported history that a new session would get.
OPEN: Final = f"""
WITH moved AS (
    INSERT INTO sessions (id, owner, "user", conversation_id, side, agent, label, version, parent,
                          head, due, created_at, updated_at, queued_at, trace_id, task, key_id, holder, fence)
    SELECT :session, :owner, :user, :conversation, :side, :agent, :label, :version, :parent,
           2, true, :at, :at, :at, :trace, :task,
           COALESCE(:api_key, (SELECT key_id FROM sessions WHERE id = :parent)),
           claim.worker, CASE WHEN claim.worker IS NULL THEN 0 ELSE {FIRST_FENCE} END
    FROM (SELECT {{claim}} AS worker) AS claim WHERE {UNDER_WAY}
    ON CONFLICT (owner, conversation_id, side, agent, label)
    DO UPDATE SET head = sessions.head + 1, due = true, updated_at = :at,
                  queued_at = CASE WHEN sessions.due OR sessions.waits_for IS NOT NULL
                                   THEN sessions.queued_at ELSE :at END,
                  key_id = COALESCE(EXCLUDED.key_id, sessions.key_id)
    WHERE :most_waiting::integer IS NULL OR {room_in("sessions.")}
    RETURNING id, head, conversation_id, holder, fence, key_id
), written AS (
    {_WRITE.format(nth="least(new.nth, 2)", author="NULL, NULL", new=NEW_EVENTS)}
    WHERE CASE WHEN moved.id = :session THEN new.nth <= 2 ELSE new.nth = cardinality(:new_kind::text[]) END
){{accepted}}
SELECT id, head, holder, fence, {SPENT} AS spent FROM moved
"""
# The worker of the same process claims a new session with the statement that opens it, unless it is under a limit.
OPEN_ONLY: Final = OPEN.replace("{claim}", "NULL::text")
_UNLIMITED: Final = f"""
    {places.OF_TEMPLATE.format(agent=":agent")} IS NULL
    AND (:api_key::text IS NULL OR {places.OF_KEY.format(key=":api_key")} IS NULL)
"""
OPEN_CLAIMED: Final = OPEN.replace("{claim}", f"CASE WHEN {_UNLIMITED} THEN :worker::text END")

# Conditional on the head: a cancel that has not seen all events is refused, and the caller folds again.
CANCEL: Final = f"""
WITH moved AS (
    UPDATE sessions SET head = head + :count, fence = fence + 1, holder = NULL, due = :due, state = :state,
                        updated_at = :at, wake_at = NULL, attempts = 0, troubled_at = NULL, waits_for = NULL,
                        paused = NULL, paused_at = NULL
    WHERE id = :session AND head = :head
    RETURNING id, head, fence, conversation_id
), written AS (
    {WRITE_OUTSIDE}
)
SELECT id, head, fence FROM moved
"""

# Gives no worker anything to do: a session at rest stays at rest. With a head, a session that is held is refused.
NOTE: Final = f"""
WITH moved AS (
    UPDATE sessions SET head = head + :count
    WHERE id = :session AND (:head::bigint IS NULL OR head = :head AND holder IS NULL)
    RETURNING id, head, conversation_id, owner, key_id
), written AS (
    {WRITE_OUTSIDE}
), counted AS (
    {usage.WRITE}
)
SELECT id, head FROM moved
"""
OPEN_OUTSIDE: Final = """
    INSERT INTO sessions (id, owner, "user", conversation_id, side, agent, version, head, due, created_at, updated_at)
    SELECT :session, :owner, COALESCE((
        SELECT "user" FROM sessions WHERE owner = :owner AND conversation_id = :conversation AND side = 'root'
        ORDER BY created_at LIMIT 1
    ), :user), :conversation, 'external', '', 0, 0, false, :at, :at
    ON CONFLICT (owner, conversation_id, side, agent, label) DO NOTHING RETURNING id
"""

LOCK: Final = "SELECT FROM sessions WHERE id = :session FOR UPDATE"
NOTED: Final = """
    SELECT body::text AS body FROM journal_events
    WHERE session_id = :session AND kind = 'Noted' AND body #>> '{interaction,id}' = ANY(:ids)
"""

READ: Final = """
    SELECT j.seq, j.at, j.trace_id, j.worker, j.fence, j.body, f.content
    FROM journal j LEFT JOIN files f ON f.digest = j.body_digest
    WHERE j.session_id = :session AND j.seq > :after ORDER BY j.seq LIMIT :limit
"""

EFFECTS: Final = """
    SELECT seq FROM journal_events
    WHERE session_id = :session AND kind = 'Called' AND seq < :before
      AND COALESCE(body ->> 'call_kind', 'tool') = 'tool' AND COALESCE(body ->> 'effect', 'read') <> 'read'
    ORDER BY seq DESC LIMIT :limit
"""
WRITTEN: Final = """
    SELECT max(j.seq) FROM journal first
    JOIN journal j ON j.session_id = first.session_id AND j.seq >= first.seq AND j.append_id = first.append_id
    WHERE first.session_id = :session AND first.append_id = :append_id AND (first.nth = 1 OR first.kind = 'Prompted')
"""
NOW: Final = f"""
    SELECT s.due, s.holder, s.fence, {budgets.spent_of("s.key_id")} AS spent FROM sessions s WHERE s.id = :session
"""

LATEST: Final = "SELECT seq, state FROM snapshots WHERE session_id = :session AND fold_version = :fold_version"
SNAPSHOT: Final = """
    INSERT INTO snapshots (session_id, seq, fold_version, state)
    SELECT :session, :seq, :fold_version, :state
    FROM (SELECT FROM sessions WHERE id = :session FOR KEY SHARE) there -- unless it was erased
    ON CONFLICT (session_id) DO UPDATE SET seq = :seq, fold_version = :fold_version, state = :state
    WHERE snapshots.seq < :seq OR snapshots.fold_version <> :fold_version
"""

_session_decoder = msgspec.json.Decoder(Session)


_Row = tuple[str, str | None, str | None, str, str | None]
"""Kind, call, whose question it answers, body, digest of a body that is stored apart."""


async def _rows_of(db: Executor, new: Sequence[Event]) -> list[_Row]:
    rows: list[_Row] = []
    for event in new:
        body, digest = events.encode(event), None
        if len(body) * 4 > BODY_LIMIT and len(raw := body.encode()) > BODY_LIMIT:
            digest = await files.put(db, raw, "application/json")
            body = LONG_ASIDE if isinstance(event, events.Prompted) and event.aside else "{}"
        rows.append((events.kind_of(event), events.call_of(event), events.reply_to_of(event), body, digest))
    return rows


async def columns_of(db: Executor, new: Sequence[Event]) -> dict[str, object]:
    """Events as the parameters of `NEW_EVENTS`."""
    return _NEW.arrays(await _rows_of(db, new))


@functools.cache
def _appending(template: str, count: int, *, marks_rest: bool, counts: str) -> str:
    """The statement of an append: of so many events, with a mark of the rest, and with what counts the usage."""
    rested = f", rested AS ({MARK_REST})" if marks_rest else ""
    counted = f", counted AS ({counts})" if counts else ""
    return template.format(new=_NEW.source(count), more=rested + counted, spent=SPENT_WITH_THIS if counts else SPENT)


def _said(rows: Sequence[_Row], used: dict[str, usage.Used]) -> tuple[Any, ...] | None:
    """Events and usage as a statement for several sessions takes them; None: they are too many, or stored apart."""
    counted = usage.counted_together(used)
    match rows:
        case [(*first, None)] if counted:
            return (*first, *joint_appends.NO_EVENT, *counted)
        case [(*first, None), (*second, None)] if counted:
            return (*first, *second, *counted)
    return None


def _gathering(db: Database) -> Gathering:
    if db.appends is None:
        db.appends = Gathering(db.acquire, joint_appends.statement)
    return db.appends


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
    append_id, turn = append_id or UUID(os.urandom(16)), session.turn
    rows = await _rows_of(db, new)
    used = usage.used_by(new, is_users=turn is not None and not turn.prompted.root)
    moved: dict[str, object] = {
        "session": session.id,
        "fence": fence,
        "worker": worker,
        "append_id": append_id,
        "count": len(new),
        "state": session.state,
        "trace": turn.trace if turn else None,
        "version": turn.version if turn else session.version,
        "task": turn.task[:TASK_SHOWN] if turn else None,
        "at": at,
        "rests": rest is not None,
        "folded": rest.head if rest else 0,
        "wake_at": rest.wake_at if rest else None,
    }

    async def alone() -> asyncpg.Record | None:
        more: dict[str, object] = {} if fingerprint is None else {"fingerprint": fingerprint}
        if used:
            more |= usage.values(used)
            more["new_tokens"] = sum(one.total_tokens for one in used.values())
            more["new_turns"] = sum(one.turns for one in used.values())
        statement = _appending(APPEND, len(new), marks_rest=fingerprint is not None, counts=usage.write_of(used))
        return await db.row(statement, **moved, **_NEW.values(rows), **more)

    try:
        if isinstance(db, Database) and (said := _said(rows, used)):
            row = await _gathering(db).write((*moved.values(), fingerprint, *said), alone)
        else:
            row = await alone()
    except asyncpg.UniqueViolationError as error:
        row = await _already_there(db, session.id, append_id, error)
    if row is None:
        if isinstance(db, Database):
            # The session may have been erased; then no event refers to the bodies that were just stored.
            await files.drop_unused(db, [row[-1] for row in rows if row[-1]], session=session.id)
        raise Deposed(f"session {session.id!r} is held by another worker, or was forgotten")
    trace, first = turn.trace if turn else "", row["head"] - len(new) + 1
    recorded = tuple(
        Recorded(seq=first + index, at=at, event=event, trace=trace, worker=worker, fence=fence)
        for index, event in enumerate(new)
    )
    return Appended(recorded=recorded, rested=not row["due"], spent=row["spent"])


async def add(
    db: Executor,
    session_id: str,
    new: Sequence[Event],
    *,
    trace: str,
    state: str | None = None,
    accepted: RequestIdentity | None = None,
    fingerprint: str | None = None,
    head: int | None = None,
    most_waiting: int = MOST_WAITING,
) -> Placed:
    """Appends from outside, without a fence, so that the lease holder keeps its lease and its reply.

    `fingerprint`: of the rest that follows `new`, where the session has nothing to do after it.
    `head`: the append requires this head; if the head has moved, NotThere is raised.
    `most_waiting`: a prompt is refused where so many wait.
    """
    assert all(isinstance(event, events.OUTSIDE) for event in new)
    prompt = new[0] if len(new) == 1 and isinstance(new[0], events.Prompted) else None
    most = most_waiting if prompt else None
    takes_turn = prompt is not None and not prompt.aside and accepted is not None and accepted.has_turn_budget
    async with files.for_append(db):
        append_id, columns, at = uuid.uuid4(), await columns_of(db, new), clock.now()
        try:
            row = await accept(
                db,
                accepted,
                ADD,
                takes_turn=takes_turn,
                session=session_id,
                count=len(new),
                state=state,
                at=at,
                trace=trace,
                append_id=append_id,
                fingerprint=fingerprint,
                head=head,
                most_waiting=most,
                **columns,
            )
        except asyncpg.UniqueViolationError as error:
            row = await _already_there(db, session_id, append_id, error)
        if row is None and (head is not None or prompt) and (written := await last_written(db, session_id, append_id)):
            row = {"head": written}  # a retry after a lost answer finds what its first try has changed
        if row is None:
            raise await _refusal(db, session_id, accepted if takes_turn else None, most, head)
    return Placed(session_id=session_id, seq=row["head"], at=at)


async def open(
    db: Executor,
    session_id: str,
    opened: events.Opened,
    prompted: events.Prompted,
    *,
    task: str,
    parent: str | None = None,
    accepted: RequestIdentity | None = None,
    claimant: Claimant | None = None,
    most_waiting: int | None = MOST_WAITING,
) -> Placed:
    """Opens the session of this conversation, agent and label with the proposed id, or finds it; appends the prompt.

    `claimant`: it is claimed at once, if it is new and under no limit.
    `most_waiting`: as for `add`; None: the caller has seen that there is room.
    """
    takes_turn = accepted is not None and accepted.has_turn_budget
    bare = [structs.replace(prompted, prior=())] if prompted.prior else []
    async with files.for_append(db):
        append_id, columns, at = uuid.uuid4(), await columns_of(db, [opened, prompted, *bare]), clock.now()
        identity = {name: getattr(opened, name) for name in ("owner", "conversation", "side", "agent", "label")}
        try:
            row = await accept(
                db,
                accepted,
                OPEN_CLAIMED if claimant else OPEN_ONLY,
                takes_turn=takes_turn,
                session=session_id,
                most_waiting=most_waiting,
                **identity,
                **(structs.asdict(claimant) if claimant else {}),
                user=opened.user,
                version=opened.version,
                parent=parent,
                at=at,
                trace=prompted.trace,
                task=task[:TASK_SHOWN],
                append_id=append_id,
                count=2,
                **columns,
            )
        except asyncpg.UniqueViolationError as error:
            if isinstance(db, Transaction):
                raise
            row = await _already_there(db, await sessions.find(db, **identity) or session_id, append_id, error)
        if row is None:
            there = await sessions.find(db, **identity) or session_id
            row = await _written(db, there, append_id)  # a retry after a lost answer
            if row is None:
                raise await _refusal(db, there, accepted if takes_turn else None, most_waiting)
    placed = Placed(session_id=row["id"], seq=row["head"], at=at)
    if claimant and (placed.session_id, row["holder"], row["fence"]) == (session_id, claimant.worker, FIRST_FENCE):
        # Nobody has claimed it since, also where this is known of a first try whose answer was lost.
        lease = Lease(session_id, FIRST_FENCE, placed.seq, None, 0, None, opened.owner, row["spent"])
        return structs.replace(placed, lease=lease)
    return placed


async def cancel(db: Executor, session: Session, new: Sequence[Event], *, after: Session) -> Placed | None:
    """Cancels a turn from outside and deposes the lease holder; None if the head moved since `session` was folded."""
    append_id, columns, at = uuid.uuid4(), await columns_of(db, new), clock.now()
    row = await db.row(
        CANCEL,
        session=session.id,
        head=session.head,
        count=len(new),
        due=after.can_move,
        state=after.state,
        at=at,
        trace=next(event.trace for event in new if isinstance(event, events.Cancelled)),
        append_id=append_id,
        **columns,
    )
    if row is None:
        # The head does not match: perhaps only because this is a retry and the first try was written.
        written = await last_written(db, session.id, append_id)
        return Placed(session_id=session.id, seq=written, at=at) if written else None
    return Placed(session_id=session.id, seq=row["head"], at=at, fence=row["fence"])


async def note(
    db: Executor,
    session_id: str,
    new: Sequence[Event],
    *,
    trace: str = "",
    head: int | None = None,
    append_id: uuid.UUID | None = None,
) -> Placed | None:
    """Appends what gives no worker anything to do; None if there is no such session.

    `head`: the append requires this head, and that nobody holds the session; otherwise None is returned.
    """
    columns, at, append_id = await columns_of(db, new), clock.now(), append_id or uuid.uuid4()
    row = await db.row(
        NOTE,
        session=session_id,
        count=len(new),
        head=head,
        trace=trace or None,
        at=at,
        append_id=append_id,
        **columns,
        **usage.columns(usage.used_by(new, is_users=False)),
    )
    if row is None and head is not None and (written := await last_written(db, session_id, append_id)):
        return Placed(session_id=session_id, seq=written, at=at)  # a retry after a lost answer
    return Placed(session_id=session_id, seq=row["head"], at=at) if row else None


async def note_outside(
    tx: Transaction, owner: str, conversation: str, new: Sequence[events.Noted], *, append_id: uuid.UUID
) -> tuple[str, dict[str, events.Noted]]:
    """Appends to the session of this conversation that holds what was added from outside; returns its id.

    What is there already is not appended again, but returned by its id: two requests may bring the same.
    """
    where = {"owner": owner, "conversation": conversation}
    proposed, at = f"external_{uuid.uuid4()}", clock.now()
    # Without API keys, whoever talks is the owner.
    user = owner if owner == LOCAL_OWNER else None
    created = await tx.value(OPEN_OUTSIDE, session=proposed, at=at, user=user, **where)
    session_id = created or await sessions.find(tx, **where, agent="", side="external")
    assert session_id is not None, "it was there, or was made"
    await tx.run(LOCK, session=session_id)
    known = await tx.rows(NOTED, session=session_id, ids=[one.subject for one in new])
    there = {one.subject: one for one in (events.decode(row["body"]) for row in known) if isinstance(one, events.Noted)}
    new = [one for one in new if one.subject not in there]
    if not new:
        return session_id, there
    opened = events.Opened(agent="", version=0, owner=owner, conversation=conversation, side="external")
    await note(tx, session_id, [*([opened] if created else []), *new], append_id=append_id)
    return session_id, there


async def _already_there(
    db: Executor, session_id: str, append_id: uuid.UUID, error: asyncpg.UniqueViolationError
) -> dict[str, Any]:
    """Classifies a unique violation: if the first try of this same append was written, it is a success."""
    if isinstance(db, Transaction):
        raise error  # the transaction has failed: no more statements can run in it
    if written := await _written(db, session_id, append_id):
        return written
    match error.constraint_name:
        case "journal_returned":
            raise AlreadyReturned(f"a call of session {session_id!r} has its outcome already") from error
        case "requests_key":
            raise Repeated from error
        case _:
            raise error


async def _written(db: Executor, session_id: str, append_id: uuid.UUID) -> dict[str, Any] | None:
    """What a first try of this append has returned."""
    head = await last_written(db, session_id, append_id)
    if head is None:
        return None
    row = await db.row(NOW, session=session_id)
    return {"id": session_id, "head": head, **(row or dict.fromkeys(("due", "holder", "fence", "spent")))}


async def _refusal(
    db: Executor, session_id: str, payer: RequestIdentity | None, most_waiting: int | None, head: int | None = None
) -> Exception:
    """Why an append from outside was not taken: its key has no turn left, too many prompts waited, or there is no such
    session at this head."""
    if payer and (spent := await budgets.spent_turns(db, payer.api_key or "")):
        return budgets.exceeded(spent)
    has_room = most_waiting and await db.value(HAS_ROOM, session=session_id, most_waiting=most_waiting)
    if has_room is False or (has_room and head is None):
        return CallerError(
            f"The queue of this session is full: at most {most_waiting} prompts wait in it, and {MOST_WAITING_BYTES:,}"
            " bytes. Wait until a turn has ended, or cancel one.",
            status=429,
            code=TOO_MANY_WAITING,
            retry_after=ASK_AGAIN_IN,
        )
    return NotThere(f"there is no session {session_id!r}, or not at this head")


async def last_written(db: Executor, session_id: str, append_id: uuid.UUID) -> int | None:
    """The last seq of this append if it was written: for appends whose answer was lost."""
    found: int | None = await db.value(WRITTEN, session=session_id, append_id=append_id)
    return found


async def read(db: Executor, session_id: str, after: int = 0, limit: int = PAGE) -> list[Recorded]:
    return [recorded(row) for row in await db.rows(READ, session=session_id, after=after, limit=limit)]


async def every(db: Executor, session_id: str, after: int = 0) -> AsyncGenerator[Recorded, None]:
    """All events of a session from there on, read page by page."""
    while page := await read(db, session_id, after):
        for record in page:
            yield record
        after = page[-1].seq


def recorded(row: Sequence[Any]) -> Recorded:
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
        row = await db.row(LATEST, session=session_id, fold_version=FOLD_VERSION)
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


async def load_at(db: Executor, session_id: str, seq: int) -> Session:
    """The session as it was with event `seq`; 0: before its first one."""
    row = await db.row(LATEST, session=session_id, fold_version=FOLD_VERSION) if seq > SNAPSHOT_EVERY else None
    known = _session_decoder.decode(row["state"]) if row and row["seq"] <= seq else blank(session_id)
    return await load_up_to(db, known, seq)


async def snapshot(db: Database, session: Session) -> None:
    await db.run(
        SNAPSHOT, session=session.id, seq=session.head, fold_version=FOLD_VERSION, state=msgspec.json.encode(session)
    )


async def effect_seqs(db: Database, session_id: str, *, before: int | None, limit: int) -> list[int]:
    """Where the last calls of tools stand that may change the world, the latest first."""
    return await db.column(EFFECTS, session=session_id, before=before or 2**62, limit=limit)
