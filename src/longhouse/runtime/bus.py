"""In-process publish/subscribe bus for wake-ups and reply fragments: hints that may be lost or repeated.

Postgres is the source of truth."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from longhouse.journal.events import Recorded

NEVER: Final = 2**63 - 1
"""A fence higher than that of any lease."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Events that were just recorded; a follower uses them only if they directly follow what it has."""

    recorded: tuple[Recorded, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of a reply that is still streaming, dropped once the reply is recorded; or why it is tried again."""

    after: int
    """The journal head at which the step was decided."""
    fence: int
    kind: Literal["content", "reasoning", "retry"]
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class JournalGrew:
    """The journal grew: a follower reads it, unless it already has it up to `head`."""

    head: int | None = None


@dataclass(frozen=True, slots=True)
class SubagentsChanged:
    """A sub-agent's journal changed: whoever follows the sub-agents reads them again."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The session was deleted: there is nothing left to follow."""


Item = Facts | Fragment | JournalGrew | SubagentsChanged | Gone


@dataclass(slots=True)
class Draft:
    """The reply that is streaming now, for followers that subscribe in the middle."""

    after: int
    fence: int
    content: str = ""
    reasoning: str = ""


class Subscription:
    """The unread items of a follower. It reads in batches, so a slow follower costs only a longer list."""

    def __init__(self) -> None:
        self.seen = 0
        """The last event that the follower has; a JournalGrew up to that does not wake it."""
        self._items: list[Item] = []
        self._ready = asyncio.Event()

    def put(self, item: Item) -> None:
        if isinstance(item, JournalGrew) and item.head is not None and item.head <= self.seen:
            return
        self._items.append(item)
        self._ready.set()

    async def take(self) -> list[Item]:
        """Takes all unread items; waits until there is one."""
        await self._ready.wait()
        self._ready.clear()
        items, self._items = self._items, []
        return items


@dataclass
class Bus:
    """The bus of a single process."""

    _followers: dict[str, list[Subscription]] = field(default_factory=lambda: defaultdict(list))
    _drafts: dict[str, Draft] = field(default_factory=dict)
    on_wake: list[Callable[[str], None]] = field(default_factory=list)
    on_append: list[Callable[[str], None]] = field(default_factory=list)
    """Called with every session that was appended to, or deleted."""
    on_stop: list[Callable[[str, int], None]] = field(default_factory=list)

    def wake(self, session_id: str) -> None:
        """The session may be runnable."""
        for callback in self.on_wake:
            callback(session_id)

    def appended(self, session_id: str, head: int) -> None:
        """Events were appended from outside: the session may be runnable, and its followers have something to read."""
        self.wake(session_id)
        self._notify_append(session_id)
        self.publish(session_id, JournalGrew(head))

    def noted(self, session_id: str, head: int) -> None:
        """Events were appended that give no worker anything to do."""
        self._notify_append(session_id)
        self.publish(session_id, JournalGrew(head))

    def stop(self, session_id: str, fence: int) -> None:
        """A run whose lease is older than `fence` has lost the session and must stop."""
        for callback in self.on_stop:
            callback(session_id, fence)

    def gone(self, session_id: str) -> None:
        """The session was deleted: its run stops, its followers end, and its projections are deleted too."""
        self.stop(session_id, NEVER)
        self._notify_append(session_id)
        self.publish(session_id, Gone())

    def _notify_append(self, session_id: str) -> None:
        for callback in self.on_append:
            callback(session_id)

    def publish(self, session_id: str, item: Item) -> None:
        if isinstance(item, Facts):
            self._notify_append(session_id)
        for follower in self._followers.get(session_id, ()):
            follower.put(item)

    @contextmanager
    def subscribed(self, session_id: str) -> Iterator[Subscription]:
        subscription = Subscription()
        self._followers[session_id].append(subscription)
        try:
            yield subscription
        finally:
            followers = self._followers[session_id]
            followers.remove(subscription)
            if not followers:
                del self._followers[session_id]

    @property
    def followed(self) -> list[str]:
        return list(self._followers)

    @contextmanager
    def drafting(self, session_id: str, draft: Draft) -> Iterator[None]:
        self._drafts[session_id] = draft
        try:
            yield
        finally:
            if self._drafts.get(session_id) is draft:
                del self._drafts[session_id]

    def draft(self, session_id: str) -> Draft | None:
        return self._drafts.get(session_id)
