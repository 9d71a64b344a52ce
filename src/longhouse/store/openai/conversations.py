"""Conversations of /v1/conversations: their metadata, and the items that were added to them by themselves."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from longhouse import clock
from longhouse.store.database import Database, Executor, Transaction

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
ITEMS: Final = """
    SELECT id, item, used_in, created_at FROM conversation_items
    WHERE owner = :owner AND conversation_id = :conversation AND (NOT :unused OR used_in IS NULL) ORDER BY nth
"""
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


class AddedItem(msgspec.Struct, frozen=True):
    id: str
    item: dict[str, Any]
    used_in: str | None
    """The session whose journal has it."""
    created_at: datetime


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

    await db.together(write)


async def added_items(db: Executor, owner: str, conversation: str, *, unused: bool = False) -> list[AddedItem]:
    """The items that were added by themselves, in their order; `unused`: those that no agent has read."""
    rows = await db.rows(ITEMS, owner=owner, conversation=conversation, unused=unused)
    return [AddedItem(row["id"], msgspec.json.decode(row["item"]), row["used_in"], row["created_at"]) for row in rows]


async def remove_item(db: Executor, owner: str, conversation: str, item: str) -> bool:
    """Removes an item that no agent has read; False if there is none."""
    return await db.value(REMOVE, owner=owner, conversation=conversation, id=item) is not None


async def sessions(db: Executor, owner: str, conversation: str) -> list[str]:
    """The sessions in which a client talked, the oldest first."""
    return [row["id"] for row in await db.rows(SESSIONS, owner=owner, conversation=conversation)]
