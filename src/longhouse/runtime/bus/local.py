"""The bus of a process: wake-ups, and what followers of sessions are told. Hints that may be lost or repeated.

Postgres is the source of truth. What other processes should know goes to the relay, where there is one.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol

from longhouse.journal.session import Session
from longhouse.runtime.bus.growing_text import GrowingText
from longhouse.runtime.bus.hints import Ask, Hint, News, Stop, Wake
from longhouse.runtime.bus.items import (
    Facts,
    Fragment,
    Gone,
    GrowingDraft,
    Item,
    JournalGrew,
    SubagentsChanged,
    Written,
)
from longhouse.runtime.workers.reservation import Reservation

NEVER: Final = 2**63 - 1
"""A fence higher than that of any lease."""
ATTENDED_FOR: Final = 60.0
"""Seconds after which somebody in another process who followed a session, and did not say so again, has left."""
MOST_ATTENDED: Final = 10_000
LINGER: Final = 0.1
"""The longest, in seconds, that events in the middle of a turn wait for others: to tell each by itself costs as much as
to record it, and nobody sees it. Text, questions and the end of the turn wait for nothing."""
FEW: Final = 4
"""Followed sessions up to which events wait no longer than until the model is asked next: there is time to tell them
then, and the first words come alone. With more, to tell of each step by itself takes a twentieth of its CPU."""
KEPT: Final = 100
"""Unread items with which the session after them is kept: each of those is as large as the session is long."""
_MAY_WAIT: Final = (Facts, SubagentsChanged)
"""Items that say whether more follows (`more_follow`)."""


class Relay(Protocol):
    """Carries hints to the other processes, and brings theirs to `Bus.receive`."""

    reconnects: int
    """How often the connection was lost and is there again."""

    @property
    def is_connected(self) -> bool: ...

    def send(self, hint: Hint) -> None: ...

    def follow(self, session_id: str) -> None:
        """This process has a follower of the session from now on."""

    def unfollow(self, session_id: str) -> None: ...

    def attend(self, session_id: str) -> None:
        """Tells all processes that somebody here follows the session."""


class Subscription:
    """The unread items of a follower. It reads in batches, so a slow follower costs only a longer list."""

    def __init__(self) -> None:
        self.seen = 0
        """The last event that the follower has; a JournalGrew up to that does not wake it."""
        self._items: list[Item] = []
        self._ready = asyncio.Event()
        self._soon: asyncio.TimerHandle | None = None

    def put(self, item: Item) -> None:
        if isinstance(item, JournalGrew) and item.head is not None and item.head <= self.seen:
            return
        if len(self._items) >= KEPT and isinstance(item, Facts):
            item = Facts(item.recorded, item.more_follow)
        self._items.append(item)
        if not isinstance(item, _MAY_WAIT) or not item.more_follow:
            self._ready.set()
        elif self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(LINGER, self._ready.set)

    def flush(self) -> None:
        """Releases events that were held back."""
        if self._soon:
            self._ready.set()

    def wake(self) -> None:
        """Ends a wait for items, even if there are none."""
        self._ready.set()

    async def take(self) -> list[Item]:
        """Takes all unread items; waits until there is one, or for `wake`."""
        await self._ready.wait()
        self._ready.clear()
        if self._soon:
            self._soon.cancel()
            self._soon = None
        items, self._items = self._items, []
        return items


class Drafting:
    """The block in which a reply is written."""

    __slots__ = ("_draft", "_drafts", "_session_id")

    def __init__(self, drafts: dict[str, GrowingDraft], session_id: str, draft: GrowingDraft) -> None:
        self._drafts, self._session_id, self._draft = drafts, session_id, draft

    def __enter__(self) -> None:
        self._drafts[self._session_id] = self._draft

    def __exit__(self, *_: object) -> None:
        if self._drafts.get(self._session_id) is self._draft:
            del self._drafts[self._session_id]


@dataclass
class Bus:
    """The bus of a single process, and its end of the relay."""

    relay: Relay | None = None
    _followers: dict[str, list[Subscription]] = field(default_factory=lambda: defaultdict(list))
    _drafts: dict[str, GrowingDraft] = field(default_factory=dict)
    _distant: dict[str, GrowingDraft] = field(default_factory=dict)
    """What other processes are writing in sessions that are followed here."""
    _asked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Session -> the step (after, fence) of which the whole was asked for, and has not come."""
    _attended: dict[str, float] = field(default_factory=dict)
    """Session -> when another process said that somebody follows it there."""
    on_wake: list[Callable[[str], bool | None]] = field(default_factory=list)
    """Called with a session that may be runnable; True from one that has room for it."""
    on_open: list[Callable[[str], Reservation | None]] = field(default_factory=list)
    """Called with a session that is about to be opened; a slot from one that has room for it now."""
    on_append: list[Callable[[str], None]] = field(default_factory=list)
    """Called with every session that was appended to here, or deleted."""
    on_stop: list[Callable[[str, int], None]] = field(default_factory=list)
    on_turn_end: list[Callable[[Session], None]] = field(default_factory=list)
    """Called with every session whose turn was ended here."""

    def wake(self, session_id: str) -> None:
        """The session may be runnable."""
        if not self._wakes(session_id):
            self._send(Wake(session_id))

    def reserve(self, session_id: str) -> Reservation | None:
        """A slot for a session that is about to be opened; None: it is opened, and whoever has room claims it."""
        for callback in self.on_open:
            if reservation := callback(session_id):
                return reservation
        return None

    def appended(self, session_id: str, head: int) -> None:
        """Events were appended from outside: the session may be runnable, and its followers have something to read."""
        self.wake(session_id)
        self.noted(session_id, head)

    def noted(self, session_id: str, head: int) -> None:
        """Events were appended that give no worker anything to do."""
        self._notify_append(session_id)
        self.publish(session_id, JournalGrew(head))

    def stop(self, session_id: str, fence: int) -> None:
        """A run whose lease is older than `fence` has lost the session and must stop."""
        self._stop(session_id, fence)
        self._send(Stop(session_id, fence))

    def gone(self, session_id: str) -> None:
        """The session was deleted: its run stops, its followers end, and its projections are deleted too."""
        self.stop(session_id, NEVER)
        self._notify_append(session_id)
        self.publish(session_id, Gone())

    def turn_ended(self, session: Session) -> None:
        for callback in self.on_turn_end:
            callback(session)

    def publish(self, session_id: str, item: Item) -> None:
        """Tells the followers of a session, here and in other processes."""
        if isinstance(item, Facts):
            self._notify_append(session_id)
        if self.relay:
            told = JournalGrew(item.recorded[-1].seq) if isinstance(item, Facts) else item
            self.relay.send(News(session_id, told))
        for follower in self._followers.get(session_id, ()):
            follower.put(item)

    def deliver(self, session_id: str, item: Item) -> None:
        """Tells the followers in this process alone."""
        for follower in self._followers.get(session_id, ()):
            follower.put(item)

    def receive(self, hint: Hint) -> bool:
        """A hint of another process; False if it is a wake-up and no worker here has room."""
        match hint:
            case Wake(session_id):
                return self._wakes(session_id)
            case Stop(session_id, fence):
                self._stop(session_id, fence)
            case Ask(session_id):
                self._note_follower(session_id)
                if written := self.written(session_id):
                    self._send(News(session_id, written))
            case News(session_id, item) if session_id in self._followers:
                if self._mirror(session_id, item):
                    self.deliver(session_id, item)
                if self.relay and isinstance(item, Fragment) and item.kind == "retry":
                    self.relay.attend(session_id)
        return True

    def written(self, session_id: str) -> Written | None:
        """What a worker of this process has written of a reply until now."""
        draft = self._drafts.get(session_id)
        return Written(draft.after, draft.fence, str(draft.content), str(draft.reasoning)) if draft else None

    @contextmanager
    def subscribed(self, session_id: str) -> Iterator[Subscription]:
        subscription = Subscription()
        self._followers[session_id].append(subscription)
        if self.relay and len(self._followers[session_id]) == 1:
            self.relay.follow(session_id)
        try:
            yield subscription
        finally:
            followers = self._followers[session_id]
            followers.remove(subscription)
            if not followers:
                del self._followers[session_id]
                self._distant.pop(session_id, None)
                self._asked.pop(session_id, None)
                if self.relay:
                    self.relay.unfollow(session_id)

    @property
    def followed(self) -> list[str]:
        return list(self._followers)

    def is_attended(self, session_id: str) -> bool:
        """Does somebody follow the session? Who follows it elsewhere says so whenever it is told of a retry."""
        heard = self._attended.get(session_id)
        return session_id in self._followers or (heard is not None and self._now() - heard < ATTENDED_FOR)

    def drafting(self, session_id: str, draft: GrowingDraft) -> "Drafting":
        """The model is asked for a reply."""
        if len(self._followers) <= FEW:
            for follower in self._followers.get(session_id, ()):
                follower.flush()
        return Drafting(self._drafts, session_id, draft)

    def draft(self, session_id: str) -> GrowingDraft | None:
        """The reply that is being written, here or in another process."""
        return self._drafts.get(session_id) or self._distant.get(session_id)

    def _note_follower(self, session_id: str) -> None:
        self._attended.pop(session_id, None)
        self._attended[session_id] = self._now()
        if len(self._attended) > MOST_ATTENDED:
            del self._attended[next(iter(self._attended))]

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _mirror(self, session_id: str, item: Item) -> bool:
        """Keeps along what another process writes; False if the followers here know it already."""
        known = self._distant.get(session_id)
        match item:
            case Written(after, fence, content, reasoning):
                self._asked.pop(session_id, None)
                if known and known.step == (after, fence) and known.begins_with(content, reasoning):
                    return False  # somebody elsewhere had asked
                self._distant[session_id] = GrowingDraft(after, fence, content, reasoning)
            case Fragment(after, fence, "content" | "reasoning" as kind, offset, text):
                if known is None or known.step != (after, fence):
                    known = self._distant[session_id] = GrowingDraft(after, fence)
                before: GrowingText = getattr(known, kind)
                if offset > len(before):  # a fragment was lost: the whole is asked for, once
                    del self._distant[session_id]
                    if self._asked.get(session_id) != (after, fence):
                        self._asked[session_id] = (after, fence)
                        self._send(Ask(session_id))
                elif offset == len(before):
                    before.add(text)
                elif text and str(before).startswith(text, offset):
                    return False
                elif len(before) < offset + len(text):
                    setattr(known, kind, GrowingText(str(before)[:offset] + text))
            case JournalGrew(head=head) if known and (head is None or head > known.after):
                del self._distant[session_id]
        return True

    def _wakes(self, session_id: str) -> bool:
        """Tells the workers of this process; has one of them room?"""
        has_room = [callback(session_id) for callback in self.on_wake]
        return any(has_room)

    def _stop(self, session_id: str, fence: int) -> None:
        for callback in self.on_stop:
            callback(session_id, fence)

    def _notify_append(self, session_id: str) -> None:
        for callback in self.on_append:
            callback(session_id)

    def _send(self, hint: Hint) -> None:
        if self.relay:
            self.relay.send(hint)
