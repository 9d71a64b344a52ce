"""Finds in the journals what webhooks tell of, and writes a delivery for each of them.

Hints say where to look first; what a killed process has left is found by a sweep, since cursors say how far each
journal was read. While there is no webhook, nothing is looked at.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import msgspec
import structlog

from longhouse.errors import UnknownShape
from longhouse.integrations.webhooks.occurrences import ASKING, Occurrence, occurrences, rested, root_of
from longhouse.journal.events import Recorded
from longhouse.journal.session import Session, State
from longhouse.store import journals, webhook_deliveries, webhooks
from longhouse.store.database import Database, Transaction
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Root
from longhouse.store.webhook_deliveries import Findings, Member, NewDelivery
from longhouse.store.webhooks import Listener

log = structlog.get_logger()

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at which webhooks there are, and between two sweeps."""
SHARE: Final = 10
"""A slow sweep runs less often: it takes at most one part in this many of the time."""
BATCH: Final = 64
LINGER: Final = 0.05
"""Seconds between a hint and a look: what is appended meanwhile is found by the same query."""
MOST_HINTS: Final = 10_000
"""Beyond this number hints are dropped: the sweep finds those sessions."""
CLOCKS_DIFFER: Final = timedelta(minutes=1)


class Collector:
    """Keeps along which webhooks there are, and has each conversation looked at in which something happened."""

    def __init__(self, db: Database, found: Callable[[], None]) -> None:
        """`found`: called when there is something new to send."""
        self._db = db
        self._found = found
        self._hints: dict[str, None] = {}
        self._hinted = asyncio.Event()
        self._listeners: Mapping[str, Sequence[Listener]] = {}
        """By owner."""
        self._look_at = self._sweep_at = 0.0
        self._unreadable: set[tuple[str, str]] = set()

    def nudge(self, session_id: str) -> None:
        """Adds a hint that this session may have new events."""
        if not self._listeners:
            return
        if len(self._hints) >= MOST_HINTS:
            self._hints.clear()
        self._hints[session_id] = None
        self._hinted.set()

    async def step(self) -> None:
        """Waits for a hint or for the time to look, and does what is there to do."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(self._look_at):
                await self._hinted.wait()
                await asyncio.sleep(LINGER)
        clock = asyncio.get_running_loop().time
        if clock() >= self._look_at:
            await self._look()
            self._look_at = clock() + LOOK_EVERY
        if hints := self._taken():
            await self._collect(await self._behind(ids=hints))
        if self._listeners and clock() >= self._sweep_at:
            began = clock()
            await self._sweep()
            self._sweep_at = clock() + max(LOOK_EVERY, SHARE * (clock() - began))

    async def _look(self) -> None:
        """Which webhooks there are, here or made by another process."""
        found: dict[str, list[Listener]] = {}
        for one in await webhooks.listening(self._db):
            found.setdefault(one.owner, []).append(one)
        self._listeners = found

    def _taken(self) -> list[str]:
        taken = list(self._hints)[:BATCH]
        for session_id in taken:
            del self._hints[session_id]
        if not self._hints:
            self._hinted.clear()
        return taken if self._listeners else []

    async def _behind(self, *, ids: Sequence[str] | None = None, after: str = "") -> list[tuple[str, str, str]]:
        # For each owner its own: the first webhook of one who has many sessions has none of the old ones looked at.
        since = {owner: min(one.told_since for one in some) - CLOCKS_DIFFER for owner, some in self._listeners.items()}
        return await webhook_deliveries.behind(self._db, since, ids=ids, after=after)

    async def _sweep(self) -> None:
        after = ""
        while page := await self._behind(after=after):
            await self._collect(page)
            after = page[-1][0]
            if len(page) < webhook_deliveries.PAGE:
                return

    async def _collect(self, found: Iterable[tuple[str, str, str]]) -> None:
        conversations = dict.fromkeys((owner, conversation) for _, owner, conversation in found)
        for owner, conversation in conversations:
            look = partial(_look, owner, conversation)
            try:
                added = await webhook_deliveries.collect(self._db, owner, conversation, look)
            except UnknownShape as error:  # a newer process wrote it: that process finds what it tells
                if (owner, conversation) not in self._unreadable:
                    message = "A journal cannot be read by this process: its webhooks are left to a newer one."
                    log.warning("journal_unreadable", message=message, projection="webhooks", error=str(error))
                self._unreadable.add((owner, conversation))
                continue
            if added:
                self._found()


async def _look(owner: str, conversation: str, tx: Transaction, members: Sequence[Member]) -> Findings:
    """Looks at a conversation, in a transaction: what happened in its sessions, and whom it is told to."""
    known, heads, told = {one.id: one for one in members}, dict[str, int](), list[Occurrence]()
    folded, roots = dict[str, Session](), dict[str, datetime]()
    for member in members:
        # Up to heads of one moment: a cause is never looked at after what followed from it in another session.
        records = await _read(tx, member) if member.is_behind else []
        if not records:
            continue
        found, session = occurrences(await journals.load_at(tx, member.id, member.seen), records)
        told += found
        heads[member.id], folded[member.id] = records[-1].seq, session
        if (root := root_of(session)) in known:
            roots[root] = max(records[-1].at, roots.get(root, records[-1].at))
    told.sort(key=lambda one: one.at)  # stable: the order within each journal stays
    for root, at in roots.items():
        rest, is_settled = await _tree_rest(tx, folded.get(root) or await journals.load(tx, root), at)
        told += [rest] if rest else []
        if not is_settled:  # looked at again: nothing more may be appended
            heads = {one: max(head - 1, known[one].seen) for one, head in heads.items()}
    # Read here: a webhook that was switched off, or whose key was revoked, is told nothing more.
    listeners = await webhooks.listening(tx, owner) if told else []
    new = [one for each in told for one in _deliveries(each, known.get(each.root), conversation, listeners)]
    return Findings(new, heads)


def _deliveries(
    one: Occurrence, root: Member | None, conversation: str, listeners: Sequence[Listener]
) -> Iterable[NewDelivery]:
    if root is None:
        return
    about = {"session_id": root.id, "conversation_id": conversation, "agent": root.agent, "user": root.user}
    payload = payload_of(one.type, one.at, {**about, **one.data})
    for to in listeners:
        if to.hears(one.type, root.agent, one.at):
            yield NewDelivery(to.id, one.key, one.type, root.id, one.session_id, root.agent, payload)


def payload_of(kind: str, at: datetime, data: Mapping[str, object]) -> str:
    """What is sent, as Standard Webhooks has it."""
    return msgspec.json.encode({"type": kind, "timestamp": at.isoformat(), "data": data}).decode()


async def _read(tx: Transaction, member: Member) -> list[Recorded]:
    """The events of a session that were not looked at, up to its head."""
    records, after = list[Recorded](), member.seen
    while after < member.head:
        page = await journals.read(tx, member.id, after, min(member.head - after, journals.PAGE))
        if not page:
            break  # it was erased in between
        records += page
        after = page[-1].seq
    return records


async def _tree_rest(tx: Transaction, session: Session, at: datetime) -> tuple[Occurrence | None, bool]:
    """That a session which waits for its sub-agents has come to rest, since one of them asks and nothing else moves;
    and False, if one that asks is still held by its worker, which may let it go without a further event."""
    root = session.id
    if session.turn is None or not session.awaits_agents or session.can_move:
        return None, True
    found = await tree.nodes(tx, [Root(root, root, session.turn.trace)], awaited=True, open_only=True)
    nodes = [node for node in found if node.id != root]
    asking = [node for node in nodes if node.state in ASKING]
    own = session.state in ASKING
    moving = [node for node in nodes if node.can_move]
    if moving or not (asking or own):
        return None, not any(node in asking for node in moving)
    states = {session.state, *(State(node.state) for node in asking)}
    state = next(one for one in ASKING if one in states)
    marks = [*sorted(f"{node.id}:{node.head}" for node in asking), f"{root}:{session.head}"]
    return rested(root, state, at, hashlib.sha256("\n".join(marks).encode()).hexdigest()), True
