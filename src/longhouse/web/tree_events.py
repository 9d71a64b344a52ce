"""A session and the agents beneath it as one stream of events, in an order in which causes come before effects."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from longhouse.journal.events import Recorded, Replied, Returned
from longhouse.journal.session import Session
from longhouse.runtime.bus import Bus, Fragment, Stir
from longhouse.store import trees
from longhouse.store.database import Database
from longhouse.store.journals import PAGE
from longhouse.store.trees import Grown
from longhouse.web import stream
from longhouse.web.events import Watch, delta, fact, is_ahead, snapshot
from longhouse.web.follow import Seen, follow
from longhouse.web.place import Place
from longhouse.web.tree import Agent, Branch, told

LOOK_EVERY: Final = 1.0
"""Seconds. Of agents that other processes advance nothing is heard: they are looked at."""


async def tree_events_of(
    db: Database, bus: Bus, place: Place, conversation: str, *, until_rest_of: Session | None, deltas: bool
) -> AsyncGenerator[bytes, None]:
    """What happened in the tree after the place, then the draft of the running step, then whatever happens.

    `until_rest_of`: as in `events_of`; such a stream ends when nobody in the tree can move.
    """
    root, watch, chronicle = place.root, Watch(db, until_rest_of), Chronicle(db, place, conversation)
    pulse = _Pulse()
    with bus.subscribed(root) as subscription:
        while (news := await chronicle.news()) or is_ahead(bus.draft(root), place.seq):
            watch.see(one.record for one in news if one.session == root)
            if pieces := b"".join(chronicle.pieces(news, ())):
                yield pulse.beating(pieces)
        is_over = await _is_over(db, root, watch)
        if deltas and not is_over and (draft := bus.draft(root)):
            yield pulse.beating(snapshot(draft))
        if is_over:
            subscription.put(Stir())
        async for batch in follow(db, root, subscription, after=place.seq, beat=LOOK_EVERY):
            news = await chronicle.news() if _is_worth_a_look(batch) else []
            watch.see(one.record for one in news if one.session == root)
            fragments = [item for item in batch if deltas and isinstance(item, Fragment)]
            if pieces := b"".join(chronicle.pieces(news, fragments)):
                yield pulse.beating(pieces)
            elif pulse.is_due:
                yield pulse.beating(stream.HEARTBEAT)
            if is_over:
                return
            if chronicle.is_behind:
                subscription.put(Stir())
            elif is_over := await _is_over(db, root, watch):
                # What happened on the way there is still to be told.
                subscription.put(Stir())


async def _is_over(db: Database, root: str, watch: Watch) -> bool:
    return await watch.is_over() and not await trees.is_at_work(db, root)


def _is_worth_a_look(batch: Sequence[Seen]) -> bool:
    """An empty batch says that a while has passed."""
    return not batch or any(not isinstance(item, Fragment) for item in batch)


class _Pulse:
    """Knows when a silent stream owes its client a sign of life."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._sent_at = self._clock()

    @property
    def is_due(self) -> bool:
        return self._clock() - self._sent_at >= stream.HEARTBEAT_EVERY

    def beating(self, piece: bytes) -> bytes:
        self._sent_at = self._clock()
        return piece


@dataclass(frozen=True, slots=True)
class News:
    """One event of one session; for an agent beneath, as it is told, or None where there is nothing to tell."""

    session: str
    record: Recorded
    told: dict[str, Any] | None = None


@dataclass(slots=True)
class Chronicle:
    """Reads a tree from a place on, and moves the place along with what is told."""

    db: Database
    place: Place
    conversation: str
    is_behind: bool = False
    """Was there more than one look could read?"""
    _branches: dict[str, Branch] = field(default_factory=dict)
    _replied: int = 0

    async def news(self) -> list[News]:
        """All that happened since the last look, causes before their effects."""
        nodes = {node.id: node for node in await trees.grown(self.db, self.place.root, self.place.seen)}
        if not nodes:
            self.is_behind = False
            return []
        spans = {node.id: (max(self.place.seen.get(node.id, 0), node.first - 1), node.head) for node in nodes.values()}
        found = await trees.read(self.db, spans, PAGE)
        ends = {session: records[-1].seq for session, records in found.items()}
        self.is_behind = bool(ends) and any(ends.get(session, 0) < upto for session, (_, upto) in spans.items())
        lives = [await self._life(nodes[session], records) for session, records in found.items()]
        # Merged and not sorted: whatever the clocks say, the events of one session stay in their order.
        return list(heapq.merge(*lives, key=lambda one: one.record.at))

    async def _life(self, node: Grown, records: Sequence[Recorded]) -> list[News]:
        if node.id == self.place.root:
            return [News(node.id, record) for record in records]
        branch = self._branches.setdefault(node.id, Branch())
        await self._recall(node.id, records, branch)
        agent = Agent(node.id, node.agent, self.conversation, node.depths)
        return [News(node.id, record, one) for record, one in told(records, branch, agent)]

    async def _recall(self, session: str, records: Sequence[Recorded], branch: Branch) -> None:
        """The names of tools whose calls were told on an earlier connection."""
        calls = {record.event.call for record in records if isinstance(record.event, Returned)} - branch.tools.keys()
        if calls and self.place.seen.get(session):
            branch.tools.update(await trees.tools(self.db, session, sorted(calls)))

    def pieces(self, news: Sequence[News], fragments: Sequence[Fragment]) -> Iterator[bytes]:
        """Each of the news with its id; a fragment after what its step was decided at, and before what came of it."""
        waiting = [fragment for fragment in fragments if fragment.after >= self._replied]
        for one in news:
            is_root = one.session == self.place.root
            while is_root and waiting and waiting[0].after < one.record.seq:
                yield delta(waiting.pop(0))
            self.place.seen[one.session] = one.record.seq
            if is_root:
                self._replied = one.record.seq if isinstance(one.record.event, Replied) else self._replied
                yield fact(one.session, one.record, self.place.id)
            elif one.told:
                yield stream.named(one.told["event"], one.told, self.place.id)
        yield from map(delta, waiting)
