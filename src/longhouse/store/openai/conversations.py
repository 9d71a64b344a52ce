"""Conversations of /v1/conversations: their metadata, and the items that were added to them by themselves."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from longhouse import clock
from longhouse.errors import CallerError
from longhouse.store.database import Database, Executor, Transaction
from longhouse.store.openai.responses import BROUGHT

RESPONSE: Final = 1
SAID: Final = 2
ADDED: Final = 3
MOST_ITEMS: Final = 1_000
MOST_BYTES: Final = 16_000_000
"""Of the items in a conversation that no agent has read."""
CREATE: Final = """
    INSERT INTO conversations (owner, id, metadata, created_at) VALUES (:owner, :id, :metadata, :at)
    ON CONFLICT (owner, id) DO UPDATE SET metadata = COALESCE(:changed::json, conversations.metadata)
"""
# One that nobody created has begun with its first session.
FIND: Final = """
    SELECT c.metadata, COALESCE(c.created_at, s.created_at) AS created_at
    FROM (SELECT min(created_at) AS created_at FROM sessions WHERE owner = :owner AND conversation_id = :id) s
    LEFT JOIN conversations c ON c.owner = :owner AND c.id = :id
    WHERE COALESCE(c.created_at, s.created_at) IS NOT NULL
"""
ADD: Final = """
    INSERT INTO conversation_items (id, owner, conversation_id, item, created_at)
    SELECT new.id, :owner, :conversation, new.item, :at
    FROM unnest(:ids::text[], :items::json[]) WITH ORDINALITY AS new (id, item, nth) ORDER BY new.nth
    ON CONFLICT (id) DO NOTHING -- a retry after a lost answer
"""
UNREAD: Final = """
    SELECT item FROM conversation_items
    WHERE owner = :owner AND conversation_id = :conversation AND used_in IS NULL ORDER BY nth
"""
SIZE: Final = """
    SELECT count(*) AS items, COALESCE(sum(octet_length(item::text)), 0) AS bytes FROM conversation_items
    WHERE owner = :owner AND conversation_id = :conversation AND used_in IS NULL
"""
ITEM: Final = "SELECT item FROM conversation_items WHERE id = :id"
# What was said and done in a conversation in the order of time: responses, what came by other routes with the answers
# to it, and items that were added. `named` is a part of the ids of its items.
_UNITS: Final = f"""
    WITH root AS (
        SELECT id FROM sessions WHERE owner = :owner AND conversation_id = :conversation AND side = 'root'
    ), said AS (
        SELECT j.session_id, j.trace_id, j.seq FROM root JOIN journal j ON j.session_id = root.id
        WHERE j.kind = 'Prompted' AND NOT EXISTS ({BROUGHT} AND NOT r.is_deleted)
    ), unit AS (
        SELECT r.created_at AS at, {RESPONSE} AS kind, r.session_id AS place, r.after AS seq, substr(r.id, 6) AS named
        FROM root JOIN responses r ON r.session_id = root.id WHERE NOT r.is_deleted
        UNION ALL
        SELECT j.at, {SAID}, j.session_id, j.seq, COALESCE(j.trace_id, right(j.session_id, 36)) || '_' || j.seq
        FROM root JOIN journal j ON j.session_id = root.id
        WHERE j.kind IN ('Prompted', 'Finished') AND EXISTS (
            SELECT FROM said WHERE said.session_id = j.session_id AND said.trace_id = j.trace_id
              AND (j.kind = 'Finished' OR said.seq = j.seq)
        )
        UNION ALL
        SELECT created_at, {ADDED}, '', nth, id FROM conversation_items
        WHERE owner = :owner AND conversation_id = :conversation
    )
    SELECT at, kind, place, seq, named FROM unit
"""
WITH_ITEM: Final = f"{_UNITS} WHERE position(named IN :item) > 0"
_PAGE: Final = """
    {units} WHERE :at::timestamptz IS NULL OR (at, kind, place, seq) {beyond} (:at, :kind, :place, :seq)
    ORDER BY at {order}, kind {order}, place {order}, seq {order} LIMIT :limit
"""
OLDEST_FIRST: Final = _PAGE.format(units=_UNITS, beyond=">", order="ASC")
NEWEST_FIRST: Final = _PAGE.format(units=_UNITS, beyond="<", order="DESC")
REMOVE: Final = """
    DELETE FROM conversation_items
    WHERE id = :id AND owner = :owner AND conversation_id = :conversation AND used_in IS NULL RETURNING id
"""
SESSIONS: Final = """
    SELECT id FROM sessions WHERE owner = :owner AND conversation_id = :conversation AND side = 'root'
    ORDER BY created_at, id
"""


class Conversation(msgspec.Struct, frozen=True):
    id: str
    metadata: dict[str, str]
    created_at: datetime


class Unit(msgspec.Struct, frozen=True):
    """What stands in a conversation as one: a response, a message or an answer of other routes, or an added item."""

    at: datetime
    kind: int
    place: str
    """The session."""
    seq: int
    named: str


async def find(db: Executor, owner: str, conversation: str) -> Conversation | None:
    row = await db.row(FIND, owner=owner, id=conversation)
    if row is None:
        return None
    return Conversation(conversation, msgspec.json.decode(row["metadata"] or "{}"), row["created_at"])


async def save(
    db: Database,
    owner: str,
    conversation: str,
    *,
    metadata: dict[str, str] | None = None,
    items: Sequence[dict[str, Any]] = (),
) -> None:
    """Creates a conversation, or changes its metadata, and adds items to it, all or nothing."""
    at, changed = clock.now(), None if metadata is None else msgspec.json.encode(metadata).decode()

    async def write(tx: Transaction) -> None:
        await tx.run(CREATE, owner=owner, id=conversation, metadata=changed or "{}", changed=changed, at=at)
        bodies = [msgspec.json.encode(item).decode() for item in items]
        await tx.run(
            ADD, owner=owner, conversation=conversation, ids=[item["id"] for item in items], items=bodies, at=at
        )
        size = await tx.row(SIZE, owner=owner, conversation=conversation) if items else None
        if size and (size["items"] > MOST_ITEMS or size["bytes"] > MOST_BYTES):
            raise CallerError(
                f"A conversation takes {MOST_ITEMS:,} items and {MOST_BYTES:,} bytes that no agent has read yet: send a"
                " message in it, or delete items.",
                code="too_many_items",
                param="items",
            )

    await db.together(write)


async def unread_items(db: Executor, owner: str, conversation: str) -> list[dict[str, Any]]:
    """The items that were added by themselves and that no agent has read, in their order."""
    rows = await db.rows(UNREAD, owner=owner, conversation=conversation)
    return [msgspec.json.decode(row["item"]) for row in rows]


async def item(db: Executor, name: str) -> dict[str, Any] | None:
    """An item that was added."""
    found = await db.value(ITEM, id=name)
    return msgspec.json.decode(found) if found else None


async def units(
    db: Executor, owner: str, conversation: str, *, beyond: Unit | None, newest_first: bool, limit: int
) -> list[Unit]:
    """What follows this unit."""
    query = NEWEST_FIRST if newest_first else OLDEST_FIRST
    place = {name: getattr(beyond, name, None) for name in ("at", "kind", "place", "seq")}
    return await db.read(Unit, query, owner=owner, conversation=conversation, limit=limit, **place)


async def units_with(db: Executor, owner: str, conversation: str, item: str) -> list[Unit]:
    """The units that may hold the item of this id."""
    return await db.read(Unit, WITH_ITEM, owner=owner, conversation=conversation, item=item)


async def remove_item(db: Executor, owner: str, conversation: str, item: str) -> bool:
    """Removes an item that no agent has read; False if there is none."""
    return await db.value(REMOVE, owner=owner, conversation=conversation, id=item) is not None


async def sessions(db: Executor, owner: str, conversation: str) -> list[str]:
    """The sessions in which a client talked, the oldest first."""
    return await db.column(SESSIONS, owner=owner, conversation=conversation)
