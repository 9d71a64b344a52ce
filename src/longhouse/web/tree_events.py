"""A session and the agents beneath it as one stream of events, in an order in which causes come before effects."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from longhouse.journal.events import Recorded, Returned
from longhouse.journal.session import Session
from longhouse.runtime.bus import Bus, Fragment, Stir
from longhouse.store import trees
from longhouse.store.database import Database
from longhouse.store.journals import PAGE
from longhouse.store.trees import Grown
from longhouse.web import stream
from longhouse.web.events import Watch, delta, fact, is_ahead, snapshot
from longhouse.web.follow import Seen, dated, follow
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
    root, watch, chronicle, pulse = place.root, Watch(db, until_rest_of), Chronicle(db, place, conversation), _Pulse()
    with bus.subscribed(root) as subscription:
        while (news := await chronicle.so_far()) or is_ahead(bus.draft(root), place.seq):
            watch.see(one.record for one in news if one.session == root)
            if pieces := b"".join(chronicle.pieces(news)):
                yield pulse.beating(pieces)
        is_over = await _is_over(db, root, watch)
        if deltas and not is_over and (draft := bus.draft(root)):
            yield pulse.beating(snapshot(draft))
        if is_over:
            subscription.put(Stir())
        async for batch in follow(db, root, subscription, after=place.seq, beat=LOOK_EVERY):
            above = [item for item in batch if isinstance(item, Recorded) or (deltas and isinstance(item, Fragment))]
            watch.see(item for item in above if isinstance(item, Recorded))
            items = await chronicle.since(above) if chronicle.held or _is_worth_a_look(batch) else above
            if pieces := b"".join(chronicle.pieces(items)):
                yield pulse.beating(pieces)
            elif pulse.is_due:
                yield pulse.beating(stream.HEARTBEAT)
            if is_over and chronicle.is_whole and not above:
                return
            is_over = await _is_over(db, root, watch)
            if chronicle.is_cut or (is_over and chronicle.is_whole):
                # What did not fit, or happened on the way to the rest, is still to be told.
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


Item = News | Recorded | Fragment
"""What is to be told; what comes bare is of the session at the top."""


@dataclass(slots=True)
class Chronicle:
    """Reads a tree from a place on, and moves the place along with what is told."""

    db: Database
    place: Place
    conversation: str
    is_whole: bool = True
    """Did the last look show everybody beneath up to now?"""
    is_cut: bool = False
    """Was there more than it could read?"""
    held: list[Recorded | Fragment] = field(default_factory=list)
    """What is not told yet, since what it follows from beneath is not known for sure."""
    _branches: dict[str, Branch] = field(default_factory=dict)

    async def so_far(self) -> list[News]:
        """All that happened after the place, causes before their effects."""
        lives = await self._lives(await trees.grown(self.db, self.place.root, self.place.seen))
        return list(heapq.merge(*lives, key=lambda one: one.record.at))

    async def since(self, above: Sequence[Recorded | Fragment]) -> Sequence[Item]:
        """What is new at the top, and with it what is new beneath, causes before their effects."""
        self.held += above
        facts = [item for item in self.held if isinstance(item, Recorded)]
        known = {**self.place.seen, self.place.root: facts[-1].seq if facts else self.place.seq}
        nodes = await trees.grown(self.db, self.place.root, known)
        if any(node.id == self.place.root for node in nodes):
            # The session at the top has gone on since: we hear of it in a moment, and tell all of it in order.
            self.is_whole = self.is_cut = False
            return []
        lives = [[(one.record.at, one) for one in life] for life in await self._lives(nodes)]
        held, self.held = self.held, []
        # Merged and not sorted: whatever the clocks say, the events of one session stay in their order.
        return [item for _, item in heapq.merge(dated(held), *lives, key=lambda pair: pair[0])]

    async def _lives(self, nodes: Sequence[Grown]) -> list[list[News]]:
        spans = {node.id: (max(self.place.seen.get(node.id, 0), node.first - 1), node.head) for node in nodes}
        found = await trees.read(self.db, spans, PAGE) if spans else {}
        ends = {session: records[-1].seq for session, records in found.items()}
        self.is_cut = bool(ends) and any(ends.get(session, 0) < upto for session, (_, upto) in spans.items())
        self.is_whole = not self.is_cut
        return [await self._life(node, found[node.id]) for node in nodes if node.id in found]

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

    def pieces(self, items: Sequence[Item]) -> Iterator[bytes]:
        """As they are sent, each fact with the id to continue from."""
        for item in items:
            if isinstance(item, Fragment):
                yield delta(item)
                continue
            one = News(self.place.root, item) if isinstance(item, Recorded) else item
            self.place.seen[one.session] = one.record.seq
            if one.session == self.place.root:
                yield fact(one.session, one.record, self.place.id)
            elif one.told:
                yield stream.named(one.told["event"], one.told, self.place.id)
