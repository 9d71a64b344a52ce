"""Webhooks: whom to tell of what happens in the sessions of an owner. Who signs reads their secrets, nobody else."""

import asyncio
import base64
import secrets
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from longhouse.store.access import browser_sessions
from longhouse.store.database import Database, Executor, advisory_key
from longhouse.store.lists.pages import Position, page

EventType = Literal["session.rested", "question.opened", "approval.needed", "turn.failed"]
Status = Literal["active", "disabled", "paused"]

PREFIX: Final = "whsec_"
"""Of secrets, as Standard Webhooks has it."""
RANDOM_BYTES: Final = 32
MOST: Final = 50
"""Webhooks of one owner."""
LOCK: Final = 0x6C687768  # "lhwh": one owner creates one webhook at a time
KEY_INVALID: Final = "The API key that it acts for was revoked or has expired."

WAITS_FOR: Final = 3.0
"""Seconds that whoever makes a webhook waits at most for appends that are under way."""

CHANGEABLE: Final = ("url", "events", "agent", "description", "status")
COLUMNS: Final = """
    w.id, w.key_id, w.url, w.events, w.agent, w.description, w.status, w.reason, w.failing_since,
    CASE WHEN w.former_until > now() THEN w.former_until END AS former_until, w.created_at, w.updated_at
"""
# The key of the settings, and nobody's where none was set, have no row.
VALID_KEY: Final = f"""
    (w.key_id IN ('', '{browser_sessions.SETTINGS_KEY}') OR EXISTS (
        SELECT FROM api_keys k WHERE k.id = w.key_id AND k.revoked_at IS NULL
          AND (k.expires_at IS NULL OR k.expires_at > now())
    ))
"""

CREATE: Final = f"""
    INSERT INTO webhooks AS w (id, owner, key_id, secret, told_since, created_at, updated_at, {", ".join(CHANGEABLE)})
    SELECT :id, :owner, :key, :secret, clock_timestamp(), clock_timestamp(), clock_timestamp(),
           {", ".join(f":{name}" for name in CHANGEABLE)}
    WHERE (SELECT count(*) FROM webhooks WHERE owner = :owner AND id <> :id) < {MOST}
    ON CONFLICT (id) DO UPDATE SET url = EXCLUDED.url RETURNING {COLUMNS}
"""
# A key that is limited to templates has webhooks of its own; what another key made may tell more than it may see.
SEEN: Final = "w.owner = :owner AND (:only_of::text IS NULL OR w.key_id = :only_of)"
FIND: Final = f"SELECT {COLUMNS} FROM webhooks w WHERE w.id = :id AND {SEEN}"
# Switching it on gives it the caller's key if its own is not valid any more. What happened while it was off, or
# without a key, is not told: all events are numbered in one order, and no clock is asked.
_BEGINS: Final = f"""
    (:adopts AND (w.status = 'disabled' OR w.reason IS NOT DISTINCT FROM '{KEY_INVALID}' OR NOT {VALID_KEY}))
"""
CHANGE: Final = f"""
    UPDATE webhooks w SET updated_at = now(),
        key_id = CASE WHEN :adopts AND NOT {VALID_KEY} THEN :key ELSE w.key_id END,
        told_since = CASE WHEN {_BEGINS} THEN clock_timestamp() ELSE w.told_since END,
        told_after = CASE WHEN {_BEGINS} THEN nextval('journal_global_seq') ELSE w.told_after END,
        reason = CASE WHEN :is_switched THEN NULL ELSE w.reason END,
        failing_since = CASE WHEN :is_switched THEN NULL ELSE w.failing_since END {{set}}
    WHERE w.id = :id AND {SEEN} RETURNING {COLUMNS}
"""
# Whoever switches it on knows that its receiver is well: what has failed is not kept waiting for up to a day.
SEND_NOW: Final = """
    UPDATE webhook_deliveries SET next_at = now() WHERE webhook_id = :id AND status = 'pending'
      AND next_at > now() AND next_at < 'infinity'
"""
# Of appends that were under way when a webhook was made or switched on, nobody knows whether they noted something for
# it, and numbers are not given in the order of commits: once they have ended, whatever is appended is told.
UNDER_WAY: Final = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"
HAVE_ENDED: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot()) >= :until::text::xid8"
DELETE: Final = f"DELETE FROM webhooks w WHERE w.id = :id AND {SEEN} RETURNING w.id"
# A retry finds its own secret.
ROTATE: Final = f"""
    UPDATE webhooks w SET secret = :secret, updated_at = now(),
        former_secret = CASE WHEN :overlap::float8 > 0
            THEN CASE WHEN w.secret = :secret THEN w.former_secret ELSE w.secret END END,
        former_until = CASE WHEN :overlap::float8 > 0 THEN now() + make_interval(secs => :overlap) END
    WHERE w.id = :id AND {SEEN} RETURNING {COLUMNS}
"""
PAUSE: Final = "UPDATE webhooks SET status = 'paused', reason = :reason WHERE id = :id AND status = 'active'"
PAUSE_WITHOUT_KEY: Final = f"""
    UPDATE webhooks w SET status = 'paused', reason = '{KEY_INVALID}' WHERE w.status = 'active' AND NOT {VALID_KEY}
    RETURNING w.id
"""
# One that is paused for its failures is still told: it goes on with what has waited.
LISTENING: Final = f"""
    SELECT w.id, w.owner, w.events, w.agent, w.told_since, w.told_after,
           (SELECT k.templates FROM api_keys k WHERE k.id = w.key_id) AS templates
    FROM webhooks w WHERE w.status <> 'disabled' AND {VALID_KEY} AND (:owner::text IS NULL OR w.owner = :owner)
    ORDER BY w.id
"""


class TooMany(Exception):  # noqa: N818 - it says what there is
    """The owner has as many webhooks as it may have."""


# As it is listed and sent to clients: without its secret.
class ShownWebhook(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["webhook"] = "webhook"
    url: str
    events: list[EventType]
    agent: str | None
    description: str
    status: Status
    reason: str | None
    """Why it is paused."""
    failing_since: datetime | None
    """No delivery has succeeded since."""
    former_until: datetime | None
    """Until then, deliveries are signed with the former secret too."""
    key_id: str
    """The key that it acts for; empty: no keys were set."""
    created_at: datetime
    updated_at: datetime


class Listener(msgspec.Struct, frozen=True):
    """A webhook as far as it says what it is told of."""

    id: str
    owner: str
    events: frozenset[str]
    agent: str | None
    told_since: datetime
    told_after: int
    """The number of the last event before it, in the order of all events; 0: made before there were numbers."""
    templates: frozenset[str] | None
    """Those that its key may use; None: all."""

    def hears(self, kind: str, agent: str, at: datetime, global_seq: int | None) -> bool:
        """Whether it is told of such an event of a session of this agent; never of what happened before it was made, or
        while it was off."""
        is_meant = kind in self.events and self.agent in (None, agent)
        if not is_meant or (self.templates is not None and agent not in self.templates):
            return False
        if global_seq is None:
            return not self.told_after and at >= self.told_since
        return global_seq > self.told_after


class Viewer(msgspec.Struct, frozen=True):
    """Whose webhooks are looked at."""

    owner: str
    key: str
    only_own: bool
    """Only those that were made with this key: it may use some templates alone."""

    @property
    def seen(self) -> dict[str, str | None]:
        return {"owner": self.owner, "only_of": self.key if self.only_own else None}


def new_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(RANDOM_BYTES)).decode()


async def create(db: Database, viewer: Viewer, **values: Any) -> tuple[ShownWebhook, str]:
    """Creates a webhook; returns it with its secret, which cannot be shown again. `values`: all of `CHANGEABLE`."""
    owner, secret, new_id = viewer.owner, new_secret(), f"wh_{uuid.uuid4().hex}"
    lock = (LOCK, advisory_key(owner.encode()))
    row = await db.alone(lock, CREATE, id=new_id, owner=owner, key=viewer.key, secret=secret, **values)
    if row is None:
        raise TooMany
    await _appends_have_ended(db)
    return ShownWebhook(**row), secret


async def listed(db: Database, viewer: Viewer, *, before: Position | None = None, limit: int) -> list[ShownWebhook]:
    """A page of webhooks, newest first."""
    found = await page(
        db,
        f"SELECT {COLUMNS} FROM webhooks w",
        by="w.created_at, w.id",
        before=before,
        limit=limit,
        conditions={"owner": "w.owner = :owner", "only_of": "w.key_id = :only_of"},
        **viewer.seen,
    )
    return [ShownWebhook(**row) for row in found]


async def find(db: Database, viewer: Viewer, webhook_id: str) -> ShownWebhook | None:
    if "\x00" in webhook_id:
        return None  # Postgres refuses NUL characters even in a look-up
    row = await db.row(FIND, id=webhook_id, **viewer.seen)
    return ShownWebhook(**row) if row else None


async def change(db: Database, viewer: Viewer, webhook_id: str, changes: Mapping[str, Any]) -> ShownWebhook | None:
    """Changes fields of a webhook; None if there is no such one."""
    if "\x00" in webhook_id:
        return None
    named = {name: changes[name] for name in CHANGEABLE if name in changes}
    adopts = named.get("status") == "active"
    row = await db.row(
        CHANGE.format(set="".join(f", {name} = :{name}" for name in named)),
        id=webhook_id,
        key=viewer.key,
        adopts=adopts,
        is_switched="status" in named,
        **viewer.seen,
        **named,
    )
    if row and adopts:
        # By itself: who records a failed attempt locks the delivery first, and then the webhook.
        await db.run(SEND_NOW, id=webhook_id)
        await _appends_have_ended(db)
    return ShownWebhook(**row) if row else None


async def _appends_have_ended(db: Database) -> None:
    """Waits for what was being written; not for ever: a large deletion may take minutes."""
    until = await db.value(UNDER_WAY)
    with suppress(TimeoutError):
        async with asyncio.timeout(WAITS_FOR):
            while not await db.value(HAVE_ENDED, until=until):  # noqa: ASYNC110 - others write
                await asyncio.sleep(0.02)


async def delete(db: Database, viewer: Viewer, webhook_id: str) -> bool:
    """Deletes a webhook with its log; False if there is no such one."""
    return "\x00" not in webhook_id and await db.value(DELETE, id=webhook_id, **viewer.seen) is not None


async def rotate(db: Database, viewer: Viewer, webhook_id: str, *, overlap: float) -> tuple[ShownWebhook, str] | None:
    """Gives a webhook a new secret, which cannot be shown again; None if there is no such one.

    `overlap`: seconds for which it signs with the former secret too.
    """
    if "\x00" in webhook_id:
        return None
    secret = new_secret()
    row = await db.row(ROTATE, id=webhook_id, secret=secret, overlap=float(overlap), **viewer.seen)
    return (ShownWebhook(**row), secret) if row else None


async def pause(db: Database, webhook_id: str, reason: str) -> bool:
    """Whether it was active until now."""
    return not (await db.run(PAUSE, id=webhook_id, reason=reason)).endswith(" 0")


async def pause_without_key(db: Database) -> list[str]:
    """Pauses those whose key is not valid any more: nobody may see through them what it could see. Their ids."""
    return await db.column(PAUSE_WITHOUT_KEY)


async def listening(db: Executor, owner: str | None = None) -> list[Listener]:
    """The webhooks that are told of what happens: of all owners, or of one. None whose key is not valid any more."""
    return [msgspec.convert(dict(row), Listener) for row in await db.rows(LISTENING, owner=owner)]
