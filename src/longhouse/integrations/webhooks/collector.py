"""Finds in the journals what webhooks tell of, and writes a delivery for each of them.

Hints say where to look first; what a killed process has left is found by a sweep over what a trigger has noted, and
cursors say how far each journal was read. While there is no webhook, nothing is looked at.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final

import asyncpg
import msgspec
import structlog

from longhouse import background
from longhouse.errors import UnknownShape
from longhouse.integrations.webhooks.occurrences import ASKING, Occurrence, occurrences, rested, root_of
from longhouse.journal.events import Recorded
from longhouse.journal.session import Session, State
from longhouse.store import journals
from longhouse.store.automation import webhook_deliveries, webhooks
from longhouse.store.automation.webhook_deliveries import Findings, Found, Member, NewDelivery
from longhouse.store.automation.webhooks import Listener
from longhouse.store.database import PASSING, Database, Transaction
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Root

log = structlog.get_logger()

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at which webhooks there are, and between two sweeps."""
AT_WORK_EVERY: Final = 5.0
"""Seconds between two looks at sessions that are at work."""
SHARE: Final = 50
"""Slow looks are taken less often: at most one part in this many of the time, up to the longest pause between them."""
LONGEST_BETWEEN: Final = 10.0
"""Seconds; however slow looks are."""
BATCH: Final = 64
LINGER: Final = 0.05
"""Seconds between a hint and a look: what is appended meanwhile is found by the same query."""
MOST_HINTS: Final = 10_000
"""Beyond this number hints are dropped: the sweep finds those sessions."""
FIRST_PAUSE: Final = 1.0
"""Seconds for which a conversation is left alone that could not be looked at; doubled each time."""
LONGEST_PAUSE: Final = 60.0


class OrderedOccurrence(msgspec.Struct, frozen=True):
    """An occurrence, and its place in the order of all events of the house; None: older than that order."""

    what: Occurrence
    global_seq: int | None


class Trouble(msgspec.Struct):
    """A conversation that could not be looked at."""

    error: str
    pause: float
    until: float


class Collector:
    """Keeps the list of webhooks current, and looks at each conversation in which something happened."""

    def __init__(self, db: Database, found: Callable[[], None]) -> None:
        """`found`: called when there is something new to send."""
        self._db = db
        self._found = found
        self._hints: dict[str, None] = {}
        self._hinted = asyncio.Event()
        self._listeners: Mapping[str, Sequence[Listener]] = {}
        """By owner."""
        self._look_at = self._sweep_at = self._at_work_at = 0.0
        self._sweeping = 0.0
        """Seconds that the pages of this sweep have taken."""
        self.has_webhooks = True
        """There are some, of whatever state; until that is known, there may be."""
        self._has_news = False
        """Something was noted; where nobody listens any more, it is only deleted."""
        self._after = 0
        """Where the next page of the sweep begins; 0: at the beginning."""
        self._troubles: dict[tuple[str, str], Trouble] = {}
        """By owner and conversation."""

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
            async with asyncio.timeout_at(min(self._look_at, self._sweep_at) if self._sweeps else self._look_at):
                await self._hinted.wait()
                await asyncio.sleep(LINGER)
        clock = asyncio.get_running_loop().time
        if clock() >= self._look_at:
            await self._look()
            self._look_at = clock() + background.until_tick(LOOK_EVERY)
        if hints := self._taken():
            await self._collect(await webhook_deliveries.hinted(self._db, hints, list(self._listeners)))
        if self._sweeps and clock() >= self._sweep_at:
            await self._sweep()
        if self._listeners and clock() >= self._at_work_at:
            began = clock()
            await self._collect(await webhook_deliveries.at_work(self._db, list(self._listeners)))
            self._at_work_at = clock() + _until_next(AT_WORK_EVERY, clock() - began)

    @property
    def _sweeps(self) -> bool:
        return bool(self._listeners) or self._has_news

    async def _look(self) -> None:
        """Which webhooks there are, here or made by another process."""
        had, (self.has_webhooks, self._has_news) = self.has_webhooks, await webhook_deliveries.there_are(self._db)
        if not self.has_webhooks:
            self._listeners = {}
            return
        if not had:
            self._found()  # something may wait that another process has collected
        for webhook_id in await webhooks.pause_without_key(self._db):
            log.warning("webhook_paused", message="the key that it acts for is not valid any more", webhook=webhook_id)
        found: dict[str, list[Listener]] = {}
        for one in await webhooks.listening(self._db):
            found.setdefault(one.owner, []).append(one)
        self._listeners = found
        self._has_news = bool(found) or self._has_news

    def _taken(self) -> list[str]:
        taken = list(self._hints)[:BATCH]
        for session_id in taken:
            del self._hints[session_id]
        if not self._hints:
            self._hinted.clear()
        return taken if self._listeners else []

    async def _sweep(self) -> None:
        """One page of what was noted; the next one is due at once, unless this was the last: hints come in between."""
        clock = asyncio.get_running_loop().time
        began = clock()
        page = await webhook_deliveries.news(self._db, self._after)
        await self._collect(page.found)
        self._after, self._sweeping = page.after, self._sweeping + clock() - began
        if page.after:
            self._sweep_at = 0.0
        else:
            self._sweep_at, self._sweeping = clock() + _until_next(LOOK_EVERY, self._sweeping), 0.0

    async def _collect(self, found: Iterable[Found]) -> None:
        """Has these looked at; one that cannot be is left alone for a while, and keeps no other back."""
        clock = asyncio.get_running_loop().time
        for named in dict.fromkeys((one.owner, one.conversation) for one in found):
            trouble = self._troubles.get(named)
            if trouble and clock() < trouble.until:
                continue
            try:
                added = await webhook_deliveries.collect(self._db, *named, partial(_look, *named))
            except Exception as error:
                # Of the database: no conversation is to blame, unless its pages cannot be read.
                if isinstance(error, PASSING) and not isinstance(error, asyncpg.InternalServerError):
                    raise
                self._note_trouble(named, error, clock())
                continue
            self._troubles.pop(named, None)
            if added:
                self._found()

    def _note_trouble(self, named: tuple[str, str], error: Exception, now: float) -> None:
        """Its news and its cursors stay as they are: it is looked at again, here or by another process."""
        before, said = self._troubles.get(named), f"{type(error).__name__}: {error}"
        pause = min(2 * before.pause, LONGEST_PAUSE) if before else FIRST_PAUSE
        self._troubles[named] = Trouble(said, pause, now + pause)
        if before and before.error == said:
            return
        if isinstance(error, UnknownShape):  # a newer process wrote it: that process finds what it tells
            message = "A journal cannot be read by this process: its webhooks are left to a newer one."
            log.warning("journal_unreadable", message=message, projection="webhooks", error=str(error))
        else:
            message = "a conversation cannot be looked at: its webhooks are told nothing of it"
            owner, conversation = named
            log.exception("webhook_events_failed", message=message, owner=owner, conversation=conversation)


def _until_next(every: float, took: float) -> float:
    """Seconds from a look that took this long to the next one."""
    return max(every, min(SHARE * took, LONGEST_BETWEEN))


async def _look(owner: str, conversation: str, tx: Transaction, members: Sequence[Member]) -> Findings:
    """Looks at a conversation, in a transaction: what happened in its sessions, and whom it is told to."""
    known, heads, told = {one.id: one for one in members}, dict[str, int](), list[OrderedOccurrence]()
    folded, roots = dict[str, Session](), dict[str, None]()
    for member in members:
        # Up to heads of one moment, so that a cause is never looked at after its effect in another session.
        records = await _read(tx, member) if member.is_behind else []
        if records:
            heads[member.id] = records[-1].seq
            numbers = await webhook_deliveries.global_seqs(tx, member.id, member.seen, records[-1].seq)
            found, folded[member.id] = occurrences(await journals.load_at(tx, member.id, member.seen), records)
            told += [OrderedOccurrence(one, numbers.get(one.seq)) for one in found]
        elif member.is_news:
            folded[member.id] = await journals.load(tx, member.id, member.head)
        if member.id in folded and (root := root_of(folded[member.id])) in known:
            roots[root] = None
    # In the order in which they were appended; stable: the order within each journal stays.
    told.sort(key=lambda one: one.global_seq or 0)
    for root in roots:
        if rest := await _tree_rest(tx, folded.get(root) or await journals.load(tx, root), known):
            told.append(rest)
    # Read here: a webhook that was switched off, or whose key was revoked, is told nothing more.
    listeners = await webhooks.listening(tx, owner) if told else []
    new = [one for each in told for one in _deliveries(each, known.get(each.what.root), conversation, listeners)]
    return Findings(new, heads)


def _deliveries(
    told: OrderedOccurrence, root: Member | None, conversation: str, listeners: Sequence[Listener]
) -> Iterable[NewDelivery]:
    if root is None:
        return
    one = told.what
    about = {"session_id": root.id, "conversation_id": conversation, "agent": root.agent, "user": root.user}
    payload = payload_of(one.type, one.at, {**about, **one.data})
    for to in listeners:
        if to.hears(one.type, root.agent, one.at, told.global_seq):
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


async def _tree_rest(tx: Transaction, session: Session, known: Mapping[str, Member]) -> OrderedOccurrence | None:
    """The rest of a session that waits for its sub-agents, if one of them asks a person and nothing else moves. A
    worker that releases one without an event leaves a note, so the tree is looked at again.

    Where one has moved since this look began, the next look tells of it: what it asks comes before the rest."""
    root = session.id
    if session.turn is None or not session.awaits_agents or session.can_move:
        return None
    found = await tree.nodes(tx, [Root(root, root, session.turn.trace)], awaited=True, open_only=True)
    nodes = [node for node in found if node.id != root]
    heads = {node.id: node.head for node in nodes} | {root: session.head}
    if any(one not in known or head > known[one].head for one, head in heads.items()):
        return None
    states = {State(node.state) for node in nodes if node.state in ASKING} | {session.state} & {*ASKING}
    if not states or any(node.can_move for node in nodes):
        return None
    # Named by the last moves of all its sessions, with their times, as `_place` has it: it is another rest once any of
    # them has moved, and the same whoever finds it.
    moves = await webhook_deliveries.last_moves(tx, heads)
    marks = "\n".join(f"{one.session_id}:{one.seq}:{one.at.isoformat()}" for one in moves)
    last = max(moves, key=lambda one: (one.global_seq or 0, one.at))
    state = next(one for one in ASKING if one in states)
    rest = rested(root, state, last.at, hashlib.sha256(marks.encode()).hexdigest(), seq=session.head)
    return OrderedOccurrence(rest, last.global_seq)
