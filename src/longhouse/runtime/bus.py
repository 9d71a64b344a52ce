"""Wake-ups and fragments. Everything here is a hint: lost or doubled, the truth is still in Postgres."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal

from longhouse.journal.events import Recorded

NEVER: Final = 2**63 - 1
"""A fence that no claim has."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Events that were just recorded; a follower takes them only if they join what it has."""

    recorded: tuple[Recorded, ...]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A piece of a reply that is still being written; forgotten once the reply is recorded."""

    after: int
    """The head that the step was decided at."""
    fence: int
    kind: Literal["content", "reasoning"]
    offset: int
    text: str


@dataclass(frozen=True, slots=True)
class JournalGrew:
    """Somebody appended; look at the journal, unless you know it up to `head`."""

    head: int | None = None


@dataclass(frozen=True, slots=True)
class SubagentsChanged:
    """Something moved in the agents beneath; whoever follows them looks at them again."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The session was forgotten: there is nothing to follow any more."""


Item = Facts | Fragment | JournalGrew | SubagentsChanged | Gone


@dataclass(slots=True)
class Draft:
    """The reply that a session is writing now, for those who join in the middle."""

    after: int
    fence: int
    content: str = ""
    reasoning: str = ""


class Subscription:
    """What a follower has not read yet. It reads in batches, so a slow one costs no more than a long one."""

    def __init__(self) -> None:
        self.seen = 0
        """The last event that the follower knows; a look at no more than that is not worth waking it."""
        self._items: list[Item] = []
        self._ready = asyncio.Event()

    def put(self, item: Item) -> None:
        if isinstance(item, JournalGrew) and item.head is not None and item.head <= self.seen:
            return
        self._items.append(item)
        self._ready.set()

    async def take(self) -> list[Item]:
        """Everything that came since the last look; waits until there is something."""
        await self._ready.wait()
        self._ready.clear()
        items, self._items = self._items, []
        return items


@dataclass
class Bus:
    """The bus of a single process."""

    _followers: dict[str, list[Subscription]] = field(default_factory=lambda: defaultdict(list))
    _drafts: dict[str, Draft] = field(default_factory=dict)
    _on_wake: list[Callable[[str], None]] = field(default_factory=list)
    _on_news: list[Callable[[str], None]] = field(default_factory=list)
    _on_stop: list[Callable[[str, int], None]] = field(default_factory=list)

    def on_wake(self, heard: Callable[[str], None]) -> None:
        self._on_wake.append(heard)

    def on_stop(self, heard: Callable[[str, int], None]) -> None:
        self._on_stop.append(heard)

    def wake(self, session_id: str) -> None:
        """This session may be able to move."""
        for heard in self._on_wake:
            heard(session_id)

    def appended(self, session_id: str, head: int) -> None:
        """Somebody from outside appended: the session may be able to move, and its followers have something to read."""
        self.wake(session_id)
        self._tell(session_id)
        self.publish(session_id, JournalGrew(head))

    def stop(self, session_id: str, fence: int) -> None:
        """Whoever advances this session by a claim older than `fence` has been deposed and need not go on."""
        for heard in self._on_stop:
            heard(session_id, fence)

    def gone(self, session_id: str) -> None:
        """The session was forgotten: nobody goes on with it, nobody follows it, and its copies are to go too."""
        self.stop(session_id, NEVER)
        self._tell(session_id)
        self.publish(session_id, Gone())

    def on_news(self, heard: Callable[[str], None]) -> None:
        """Hears of every session that something was appended to."""
        self._on_news.append(heard)

    def _tell(self, session_id: str) -> None:
        for heard in self._on_news:
            heard(session_id)

    def publish(self, session_id: str, item: Item) -> None:
        if isinstance(item, Facts):
            self._tell(session_id)
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

    def is_followed(self, session_id: str) -> bool:
        return session_id in self._followers

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
