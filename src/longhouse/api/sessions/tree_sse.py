"""A session and its sub-agents as one stream of server-sent events, causes before effects."""

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Final

from longhouse.api import streaming
from longhouse.api.sessions.cursor import TreeCursor
from longhouse.api.sessions.sse import Watch, delta, fact, is_ahead, snapshot
from longhouse.api.sessions.tail import Seen, follow
from longhouse.api.sessions.tree_reader import News, TreeReader
from longhouse.journal.events import Recorded
from longhouse.journal.session import Session
from longhouse.runtime.bus import Bus, Fragment, SubagentsChanged
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Root

LOOK_EVERY: Final = 1.0
"""Seconds between polls: sub-agents in other processes send no hints, so their journals are polled."""


async def tree_events_of(
    db: Database, bus: Bus, cursor: TreeCursor, conversation: str, *, until_rest_of: Session | None, deltas: bool
) -> AsyncGenerator[bytes, None]:
    """Events of the tree after the cursor, then the draft of the running step, then live events.

    `until_rest_of`: as in `events_of`; the stream then ends when no session of the tree can proceed.
    """
    root, watch, silent = cursor.root, Watch(db, until_rest_of), 0
    reader = TreeReader.of_session(db, root, conversation, cursor.seen_heads)
    with bus.subscribed(root) as subscription:
        while (items := await reader.so_far()) or is_ahead(bus.draft(root), cursor.seq):
            watch.see(one.record for one in items if isinstance(one, News) and one.session == root)
            if pieces := b"".join(_pieces(cursor, items)):
                yield pieces
        is_over = await _is_over(db, root, watch)
        if deltas and not is_over and (draft := bus.draft(root)):
            yield snapshot(draft)
        if is_over:
            subscription.put(SubagentsChanged())
        async for hints in follow(db, root, subscription, after=cursor.seq, beat=LOOK_EVERY):
            batch = hints if deltas else [item for item in hints if not isinstance(item, Fragment)]
            if hints and not batch:
                continue
            watch.see(item for item in batch if isinstance(item, Recorded))
            pieces = b"".join(_pieces(cursor, await reader.since(batch)))
            silent = silent if hints else silent + 1
            if pieces or silent * LOOK_EVERY >= streaming.HEARTBEAT_EVERY:
                yield pieces or streaming.HEARTBEAT
                silent = 0
            if is_over and reader.is_whole and all(isinstance(item, SubagentsChanged) for item in batch):
                return
            is_over = await _is_over(db, root, watch)
            if reader.is_cut or (is_over and reader.is_whole):
                # Events beyond the page, or appended just before the rest, are still to be sent.
                subscription.put(SubagentsChanged())


async def _is_over(db: Database, root: str, watch: Watch) -> bool:
    if not await watch.is_over():
        return False
    beneath = await tree.nodes(db, [Root(root, root, None)], open_only=True)
    return not any(node.can_move for node in beneath if node.id != root)


def _pieces(cursor: TreeCursor, items: Iterable[Seen | News]) -> Iterator[bytes]:
    """The encoded events, each journal event with the id to resume from."""
    for item in items:
        if isinstance(item, Fragment):
            yield delta(item)
        elif isinstance(item, News | Recorded):
            one = item if isinstance(item, News) else News(cursor.root, item)
            cursor.seen_heads[one.session] = one.record.seq
            if one.session == cursor.root:
                yield fact(one.session, one.record, cursor.id)
            elif one.shown:
                yield streaming.named(one.shown["event"], one.shown, cursor.id)
