"""Deliveries of webhooks: found in the journals, once each; sent by one worker at a time; kept as a log for a while.

A conversation is looked at as a whole, under a lock: what happened in its sessions is told in one order. How far each
journal was read is a cursor, as those of projections, and moves in the transaction that writes the deliveries. Which
sessions to look at is in `webhook_news`, where a trigger notes them: whoever looks does not search all sessions.

Of the deliveries of one session to one webhook only the first is due, those behind it at `infinity`: what waits costs
nothing. A delivery that is over makes the next one due.
"""

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from longhouse.store.automation.webhooks import VALID_KEY
from longhouse.store.database import Database, Executor, Transaction
from longhouse.store.lists.pages import Position, page

PROJECTION: Final = "webhooks"
TEST: Final = "webhook.test"
DeliveryStatus = Literal["pending", "delivered", "failed"]

LOCK: Final = 0x6C687763  # "lhwc": one process at a time looks at a conversation
PAGE: Final = 64
BATCH: Final = 1_000

# The calls that ask somebody, and what ends a turn or puts a call in doubt. A long body is not looked into.
_TELLING: Final = """
    (j.kind IN ('Finished', 'Failed', 'Cancelled', 'Decided', 'Resumed') OR j.kind = 'Called' AND (
        j.body_digest IS NOT NULL OR j.body ->> 'approve_by' IS NOT NULL OR j.body ->> 'question' IS NOT NULL
        OR j.body ->> 'call_kind' IN ('ask', 'client')
    ))
"""
_SEEN: Final = "COALESCE(c.head, s.inherited, 0)"
# While a session runs, only an event that may tell something makes it worth a look.
_WORTH: Final = f"""
    (NOT s.due OR EXISTS (SELECT FROM journal j WHERE j.session_id = s.id AND j.seq > {_SEEN} AND {_TELLING}))
"""
_CURSOR: Final = f"LEFT JOIN projection_cursors c ON c.projection = '{PROJECTION}' AND c.session_id = s.id"
# Also of sessions that are gone, where a process of an earlier release has erased them.
NEWS: Final = f"""
    SELECT n.nth, n.session_id, s.owner, s.conversation_id
    FROM webhook_news n LEFT JOIN sessions s ON s.id = n.session_id {_CURSOR}
    WHERE n.nth > :after AND (s.id IS NULL OR {_WORTH}) ORDER BY n.nth LIMIT {PAGE}
"""
THERE_ARE: Final = "SELECT EXISTS (SELECT FROM webhooks) AS webhooks, EXISTS (SELECT FROM webhook_news) AS news"
DROP_NEWS: Final = "DELETE FROM webhook_news WHERE nth = ANY(:nths)"
HINTED: Final = f"""
    SELECT s.id, s.owner, s.conversation_id FROM sessions s {_CURSOR}
    WHERE s.id = ANY(:ids) AND s.owner = ANY(:owners) AND s.side IN ('root', 'sub') AND s.capsule IS NULL
      AND s.head > {_SEEN} AND {_WORTH}
"""
# A working session that asks leaves no note before it rests: if its hint was lost, it is found here.
AT_WORK: Final = f"""
    SELECT s.id, s.owner, s.conversation_id FROM sessions s {_CURSOR}
    WHERE s.due AND s.holder IS NOT NULL AND s.owner = ANY(:owners) AND s.side IN ('root', 'sub') AND s.capsule IS NULL
      AND s.head > {_SEEN} AND {_WORTH} LIMIT {PAGE}
"""
LOCK_CONVERSATION: Final = "SELECT pg_advisory_xact_lock(:family, hashtext(:name))"
# Runs before the heads are read: later appends write notes that this statement does not see. They are dropped last:
# sessions are locked before their notes, as by an erasure.
NEWS_OF: Final = """
    SELECT n.nth, n.session_id FROM webhook_news n JOIN sessions s ON s.id = n.session_id
    WHERE s.owner = :owner AND s.conversation_id = :conversation
"""
MEMBERS: Final = f"""
    SELECT s.id, s.side, s.agent, s."user", s.head, {_SEEN} AS seen, s.id = ANY(:noted) AS is_news
    FROM sessions s {_CURSOR}
    WHERE s.owner = :owner AND s.conversation_id = :conversation AND s.side IN ('root', 'sub') AND s.capsule IS NULL
    ORDER BY s.id
"""
GLOBAL_SEQS: Final = "SELECT seq, global_seq FROM journal WHERE session_id = :session AND seq > :after AND seq <= :upto"
# Of each session its last event, except what is noted in sessions at rest: a note moves nobody.
LAST_MOVES: Final = """
    SELECT asked.id, last.seq, last.at, last.global_seq FROM unnest(:ids::text[], :heads::bigint[]) AS asked (id, head)
    CROSS JOIN LATERAL (
        SELECT j.seq, j.at, j.global_seq FROM journal j
        WHERE j.session_id = asked.id AND j.seq <= asked.head AND j.kind NOT IN ('Noted', 'Condensed', 'Spent')
        ORDER BY j.seq DESC LIMIT 1
    ) last ORDER BY asked.id
"""
# Keeps erasures out while deliveries are written: a claim waits only that long, an append never.
THERE: Final = "SELECT id FROM sessions WHERE id = ANY(:ids) ORDER BY id FOR KEY SHARE"
WRITE: Final = """
    INSERT INTO webhook_deliveries (id, webhook_id, type, session_id, from_session, agent, payload, next_at)
    SELECT new.id, w.id, new.type, new.session_id, new.from_session, new.agent, new.payload, 'infinity'
    FROM unnest(:ids::text[], :webhook_id::text[], :type::text[], :session_id::text[], :from_session::text[],
                :agent::text[], :payload::text[])
         WITH ORDINALITY AS new (id, webhook, type, session_id, from_session, agent, payload, nth)
    JOIN (SELECT id FROM webhooks WHERE id = ANY(:webhook_id) ORDER BY id FOR KEY SHARE) w ON w.id = new.webhook
    ORDER BY new.nth ON CONFLICT (id) DO NOTHING
"""
# The first that waits is locked: whoever ends it meanwhile sees what was written here, and makes it due. It is looked
# for once: a row that this statement has changed is not found again, and its successor would be taken for the first.
SET_DUE: Final = """
    WITH first AS MATERIALIZED (
        SELECT found.webhook_id, found.session_id, found.nth
        FROM unnest(:webhooks::text[], :sessions::text[]) AS asked (webhook_id, session_id)
        CROSS JOIN LATERAL (
            SELECT e.webhook_id, e.session_id, e.nth FROM webhook_deliveries e
            WHERE e.webhook_id = asked.webhook_id AND e.session_id = asked.session_id AND e.status = 'pending'
            ORDER BY e.nth LIMIT 1 FOR SHARE
        ) found
    )
    UPDATE webhook_deliveries d SET next_at = now() FROM first
    WHERE d.webhook_id = first.webhook_id AND d.session_id = first.session_id AND d.status = 'pending'
      AND d.nth = first.nth AND d.next_at = 'infinity'
"""
SAVE: Final = f"""
    INSERT INTO projection_cursors (projection, session_id, epoch, head)
    SELECT '{PROJECTION}', saved.id, '', saved.head FROM unnest(:ids::text[], :heads::bigint[]) AS saved (id, head)
    ON CONFLICT (projection, session_id) DO UPDATE SET head = excluded.head
    WHERE projection_cursors.head < excluded.head
"""

# Free, or held by a worker that is gone, or that has said nothing for too long.
_FREE: Final = """
    (w.holder IS NULL OR w.holder = :worker OR w.held_until < now()
     OR NOT EXISTS (SELECT FROM workers r WHERE r.id = w.holder))
"""
_DUE: Final = """
    d.status = 'pending' AND d.next_at <= now()
    AND (d.agent IS NULL OR NOT EXISTS (
        SELECT FROM api_keys k WHERE k.id = w.key_id AND k.templates IS NOT NULL AND d.agent <> ALL(k.templates)
    ))
"""
# Of each session the first that waits: one that fails keeps back what came after it in the same session, and no more.
# Those behind it are not due; this is for what was written by an earlier release, or is sent again by hand. One look at
# an index for each: as a join with those before it, ten thousand of one session took Postgres 20 seconds.
_FIRST: Final = """
    (d.session_id IS NULL OR d.nth = (
        SELECT e.nth FROM webhook_deliveries e WHERE e.webhook_id = d.webhook_id AND e.session_id = d.session_id
          AND e.status = 'pending' ORDER BY e.nth LIMIT 1
    ))
"""
WITH_WORK: Final = f"""
    SELECT w.id FROM webhooks w WHERE w.status = 'active' AND {VALID_KEY} AND {_FREE}
      AND EXISTS (SELECT FROM webhook_deliveries d WHERE d.webhook_id = w.id AND {_DUE} AND {_FIRST})
    ORDER BY w.id
"""
CLAIM: Final = f"""
    UPDATE webhooks w SET holder = :worker, held_until = now() + make_interval(secs => :seconds)
    WHERE w.id = :webhook AND w.status = 'active' AND {VALID_KEY} AND {_FREE}
    RETURNING w.owner, w.url, w.secret, CASE WHEN w.former_until > now() THEN w.former_secret END AS former_secret
"""
RELEASE: Final = "UPDATE webhooks SET holder = NULL, held_until = NULL WHERE id = :webhook AND holder = :worker"
DUE: Final = f"""
    SELECT d.id, d.session_id, d.payload, d.attempts FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook_id
    WHERE d.webhook_id = :webhook AND d.id <> ALL(:under_way) AND {_DUE} AND {_FIRST}
    ORDER BY d.next_at, d.nth LIMIT :limit
"""
PAIR: Final = "SELECT webhook_id, session_id FROM webhook_deliveries WHERE id = :id"
# If the first one was erased or too old, nobody made the next one due. One index step for each session.
SET_LEFT_DUE: Final = """
    WITH RECURSIVE first AS (
        (
            SELECT webhook_id, session_id, nth, next_at FROM webhook_deliveries
            WHERE status = 'pending' AND session_id IS NOT NULL ORDER BY webhook_id, session_id, nth LIMIT 1
        )
        UNION ALL
        SELECT next.* FROM first CROSS JOIN LATERAL (
            SELECT e.webhook_id, e.session_id, e.nth, e.next_at FROM webhook_deliveries e
            WHERE e.status = 'pending' AND e.session_id IS NOT NULL
              AND (e.webhook_id, e.session_id) > (first.webhook_id, first.session_id)
            ORDER BY e.webhook_id, e.session_id, e.nth LIMIT 1
        ) next
    )
    UPDATE webhook_deliveries d SET next_at = now() FROM first
    WHERE first.next_at = 'infinity' AND d.webhook_id = first.webhook_id AND d.session_id = first.session_id
      AND d.status = 'pending' AND d.nth = first.nth AND d.next_at = 'infinity'
"""
DELIVERED: Final = """
    WITH done AS (
        UPDATE webhook_deliveries SET status = 'delivered', attempts = attempts + 1, attempted_at = now(),
            last_status = :status, last_error = NULL
        WHERE id = :id AND status = 'pending' RETURNING webhook_id
    )
    UPDATE webhooks SET failing_since = NULL WHERE id IN (SELECT webhook_id FROM done) AND failing_since IS NOT NULL
"""
# The first failure after a success begins the time after which the webhook is paused.
FAILED: Final = """
    WITH failed AS (
        UPDATE webhook_deliveries SET attempts = attempts + 1, attempted_at = now(), last_status = :status,
            last_error = :error, status = CASE WHEN :delay::float8 IS NULL THEN 'failed' ELSE 'pending' END,
            next_at = now() + make_interval(secs => COALESCE(:delay::float8, 0))
        WHERE id = :id AND status = 'pending' RETURNING webhook_id
    )
    UPDATE webhooks w SET failing_since = COALESCE(w.failing_since, now()) WHERE id IN (SELECT webhook_id FROM failed)
    RETURNING w.failing_since, w.failing_since < now() - make_interval(secs => :pause_after) AS is_hopeless
"""

COLUMNS: Final = """
    d.id, d.webhook_id, d.type, d.session_id, d.payload, d.status, d.attempts,
    CASE WHEN d.status = 'pending' AND d.next_at < 'infinity' THEN d.next_at END AS next_attempt_at, d.attempted_at,
    d.last_status, d.last_error,
    d.created_at
"""
ADD_TEST: Final = f"""
    INSERT INTO webhook_deliveries AS d (id, webhook_id, type, payload) VALUES (:id, :webhook, '{TEST}', :payload)
    ON CONFLICT (id) DO UPDATE SET type = EXCLUDED.type RETURNING {COLUMNS}
"""
RETRY: Final = f"""
    UPDATE webhook_deliveries d SET status = 'pending', attempts = 0, next_at = now()
    WHERE d.id = :id AND d.webhook_id = :webhook AND (:templates::text[] IS NULL OR d.agent IS NULL
        OR d.agent = ANY(:templates)) RETURNING {COLUMNS}
"""
EXPIRE: Final = f"""
    DELETE FROM webhook_deliveries WHERE id IN (
        SELECT id FROM webhook_deliveries WHERE created_at < now() - make_interval(secs => :seconds)
        ORDER BY created_at LIMIT {BATCH}
    )
"""


# What waits for webhooks that are sent to; of very many, some are counted.
PENDING: Final = """
    SELECT count(*)::int AS number,
           greatest(COALESCE(extract(epoch FROM clock_timestamp() - min(created_at)), 0), 0)::float8 AS oldest
    FROM (
        SELECT d.created_at FROM webhooks w JOIN webhook_deliveries d ON d.webhook_id = w.id AND d.status = 'pending'
        WHERE w.status = 'active' LIMIT :most
    ) waiting
"""


class Found(msgspec.Struct, frozen=True):
    """A session that may have something to tell."""

    id: str
    owner: str
    conversation: str


class NewsPage(msgspec.Struct, frozen=True):
    """Sessions of which it was noted that they may have something to tell."""

    found: Sequence[Found] = ()
    after: int = 0
    """Where the next page begins; 0: this was the last."""


class LastMove(msgspec.Struct, frozen=True):
    """The last event by which a session moved."""

    session_id: str
    seq: int
    at: datetime
    global_seq: int | None


class Pending(msgspec.Struct, frozen=True):
    """What waits to be sent."""

    number: int
    oldest: float
    """Seconds that the first of it has waited."""


class Member(msgspec.Struct, frozen=True):
    """A session of a conversation, and the last of its events that was looked at."""

    id: str
    side: str
    agent: str
    user: str | None
    head: int
    seen: int
    is_news: bool
    """It was noted since the last look: it may have come to rest without a further event."""

    @property
    def is_behind(self) -> bool:
        return self.head > self.seen


class NewDelivery(msgspec.Struct, frozen=True):
    webhook_id: str
    key: str
    """Names what happened: the same each time that it is found."""
    type: str
    session_id: str
    from_session: str
    agent: str
    payload: str


class Findings(msgspec.Struct, frozen=True):
    """What a look at a conversation has found, and how far it went in each journal."""

    deliveries: Sequence[NewDelivery] = ()
    heads: Mapping[str, int] = msgspec.field(default_factory=dict)


Look = Callable[[Transaction, Sequence[Member]], Awaitable[Findings]]


@dataclass(frozen=True, slots=True)
class ClaimedWebhook:
    """A webhook that this worker delivers."""

    owner: str
    url: str
    secrets: tuple[str, ...] = field(repr=False)
    """The present one first; while a former one is valid, that too."""


class DueDelivery(msgspec.Struct, frozen=True):
    id: str
    session_id: str | None
    payload: str
    attempts: int


# An entry of the log, as it is sent to clients.
class ShownDelivery(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """What the receiver gets as `webhook-id`."""
    object: Literal["webhook.delivery"] = "webhook.delivery"
    webhook_id: str
    type: str
    session_id: str | None
    status: DeliveryStatus
    attempts: int
    next_attempt_at: datetime | None
    attempted_at: datetime | None
    last_status: int | None
    """The HTTP status of the last answer; null: there was none."""
    last_error: str | None
    payload: dict[str, Any]
    created_at: datetime


def delivery_id(webhook_id: str, key: str) -> str:
    """The id that the receiver sees: the same in each attempt, and for each process that finds the event."""
    return f"msg_{hashlib.sha256(f'{webhook_id}:{key}'.encode()).hexdigest()[:32]}"


async def news(db: Executor, after: int = 0) -> NewsPage:
    """A page of what was noted, oldest first."""
    rows = await db.rows(NEWS, after=after)
    if gone := [row["nth"] for row in rows if row["owner"] is None]:
        await db.run(DROP_NEWS, nths=gone)
    found = [Found(row["session_id"], row["owner"], row["conversation_id"]) for row in rows if row["owner"] is not None]
    return NewsPage(found, rows[-1]["nth"] if len(rows) == PAGE else 0)


async def hinted(db: Executor, ids: Sequence[str], owners: Sequence[str]) -> list[Found]:
    """Those of these sessions that may have something to tell, and belong to these owners."""
    return await db.read(Found, HINTED, ids=list(ids), owners=list(owners))


async def at_work(db: Executor, owners: Sequence[str]) -> list[Found]:
    """Sessions of these owners that a worker advances, and that have something to tell already."""
    return await db.read(Found, AT_WORK, owners=list(owners))


async def collect(db: Database, owner: str, conversation: str, look: Look) -> int:
    """Has a conversation looked at, and writes what was found, in one transaction; how many deliveries were new."""

    async def write(tx: Transaction) -> int:
        await tx.run(LOCK_CONVERSATION, family=LOCK, name=f"{owner}/{conversation}")
        noted = dict(await tx.rows(NEWS_OF, owner=owner, conversation=conversation))
        rows = await tx.rows(MEMBERS, owner=owner, conversation=conversation, noted=list(noted.values()))
        found = await look(tx, [Member(*row) for row in rows])
        there = set(await tx.column(THERE, ids=[row["id"] for row in rows]))
        new = [one for one in found.deliveries if {one.session_id, one.from_session} <= there]
        added = await _write(tx, new) if new else 0
        ids = sorted(found.heads.keys() & there)
        await tx.run(SAVE, ids=ids, heads=[found.heads[one] for one in ids])
        await tx.run(DROP_NEWS, nths=list(noted))
        return added

    return await db.together(write)


async def global_seqs(db: Executor, session_id: str, after: int, upto: int) -> dict[int, int | None]:
    """The place of each of these events in the order of all events of the house; None: older than that order."""
    rows = await db.rows(GLOBAL_SEQS, session=session_id, after=after, upto=upto)
    return {row["seq"]: row["global_seq"] for row in rows}


async def last_moves(db: Executor, heads: Mapping[str, int]) -> list[LastMove]:
    """The last move of each of these sessions, up to this head, by the id of the session."""
    return await db.read(LastMove, LAST_MOVES, ids=list(heads), heads=list(heads.values()))


async def _write(tx: Transaction, new: Sequence[NewDelivery]) -> int:
    columns = ("webhook_id", "type", "session_id", "from_session", "agent", "payload")
    values = {name: [getattr(one, name) for one in new] for name in columns}
    tag = await tx.run(WRITE, ids=[delivery_id(one.webhook_id, one.key) for one in new], **values)
    pairs = sorted({(one.webhook_id, one.session_id) for one in new})
    await tx.run(SET_DUE, webhooks=[one for one, _ in pairs], sessions=[one for _, one in pairs])
    return int(tag.rpartition(" ")[2])


async def with_work(db: Database, worker: str) -> list[str]:
    """The webhooks that have something to send now, and that no other worker delivers."""
    return await db.column(WITH_WORK, worker=worker)


async def claim(db: Database, webhook_id: str, worker: str, *, seconds: float) -> ClaimedWebhook | None:
    """Takes a webhook for so many seconds, or once more; None if another worker has it, or it is not active."""
    row = await db.row(CLAIM, webhook=webhook_id, worker=worker, seconds=seconds)
    return (
        ClaimedWebhook(row["owner"], row["url"], tuple(filter(None, (row["secret"], row["former_secret"]))))
        if row
        else None
    )


async def there_are(db: Database) -> tuple[bool, bool]:
    """Whether there are webhooks, and whether there are notes: all that an idle process asks."""
    [row] = await db.rows(THERE_ARE)
    return row["webhooks"], row["news"]


async def release(db: Database, webhook_id: str, worker: str) -> None:
    await db.run(RELEASE, webhook=webhook_id, worker=worker)


async def due(db: Database, webhook_id: str, *, under_way: Sequence[str], limit: int) -> list[DueDelivery]:
    """What to send now, besides what is under way: of each session its first that waits."""
    return await db.read(DueDelivery, DUE, webhook=webhook_id, under_way=list(under_way), limit=limit)


async def delivered(db: Database, delivery: str, *, status: int) -> None:
    async def write(tx: Transaction) -> None:
        await tx.run(DELIVERED, id=delivery, status=status)
        await _set_next_due(tx, delivery)

    await db.together(write)


async def failed(
    db: Database, delivery: str, *, status: int | None, error: str, delay: float | None, pause_after: float
) -> datetime | None:
    """Records a failed attempt; the next one is after `delay` seconds, None: never.

    Returns since when nothing succeeds, if that is longer than `pause_after` seconds.
    """

    async def write(tx: Transaction) -> datetime | None:
        row = await tx.row(FAILED, id=delivery, status=status, error=error, delay=delay, pause_after=pause_after)
        if delay is None:
            await _set_next_due(tx, delivery)
        return row["failing_since"] if row and row["is_hopeless"] else None

    return await db.together(write)


async def _set_next_due(tx: Transaction, delivery: str) -> None:
    """This delivery is over: the next one of its session is due. A statement of its own, which sees what was written
    while the one before it waited."""
    row = await tx.row(PAIR, id=delivery)
    if row and row["session_id"] is not None:
        await tx.run(SET_DUE, webhooks=[row["webhook_id"]], sessions=[row["session_id"]])


async def set_left_due(db: Database) -> None:
    """Makes due what is first in its session, and was left behind by something that is gone."""
    await db.run(SET_LEFT_DUE)


async def pending(db: Database, most: int) -> Pending:
    """How much waits for webhooks that are active, `most` at most, and for how long."""
    [row] = await db.rows(PENDING, most=most)
    return Pending(*row)


async def log_of(
    db: Database,
    webhook_id: str,
    *,
    status: DeliveryStatus | None = None,
    templates: Sequence[str] | None = None,
    before: Position | None = None,
    limit: int,
) -> list[ShownDelivery]:
    """A page of the log of a webhook, newest first. `templates`: of sessions of these alone."""
    found = await page(
        db,
        f"SELECT {COLUMNS} FROM webhook_deliveries d",
        by="d.created_at, d.id",
        before=before,
        limit=limit,
        conditions={
            "webhook": "d.webhook_id = :webhook",
            "status": "d.status = :status",
            "templates": "(d.agent IS NULL OR d.agent = ANY(:templates))",
        },
        webhook=webhook_id,
        status=status,
        templates=templates,
    )
    return [_shown(row) for row in found]


async def add_test(db: Database, webhook_id: str, key: str, payload: str) -> ShownDelivery:
    [row] = await db.rows(ADD_TEST, id=delivery_id(webhook_id, key), webhook=webhook_id, payload=payload)
    return _shown(row)


async def retry(
    db: Database, webhook_id: str, delivery: str, *, templates: Sequence[str] | None = None
) -> ShownDelivery | None:
    """Has a delivery sent again, whether it succeeded or not; None if there is no such one."""
    if "\x00" in delivery:
        return None
    row = await db.row(RETRY, id=delivery, webhook=webhook_id, templates=templates)
    return _shown(row) if row else None


def _shown(row: Mapping[str, Any]) -> ShownDelivery:
    return ShownDelivery(**{**row, "payload": msgspec.json.decode(row["payload"])})


async def expire(db: Database, *, days: float) -> None:
    """Deletes what is older than the log is kept, sent or not."""
    while int((await db.run(EXPIRE, seconds=days * 86_400)).rpartition(" ")[2]) == BATCH:
        pass
