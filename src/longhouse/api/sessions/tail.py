"""The live tail of a session: every journal event once and in order, with fragments between, even if hints are lost."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Final

from longhouse.journal.events import Recorded
from longhouse.journal.session import Session
from longhouse.runtime.bus.items import Facts, Fragment, Gone, Item, JournalGrew, SubagentsChanged, Written
from longhouse.runtime.bus.local import Subscription
from longhouse.store import journals
from longhouse.store.database import Database

Seen = Recorded | Fragment | SubagentsChanged | Written
_PASSED_ON: Final = (Fragment, SubagentsChanged, Written)


class Batch(list[Seen]):
    """What has happened since the last batch, in its order."""

    def __init__(self, items: Iterable[Seen] = ()) -> None:
        super().__init__(items)
        self.sessions: dict[int, Session] = {}
        """The session after some of the events, by their seq: those of which the recorder has told it."""


async def follow(
    db: Database, session_id: str, subscription: Subscription, *, after: int, beat: float
) -> AsyncGenerator[Batch, None]:
    """Batches of events after `after`; an empty batch every `beat` seconds as a heartbeat.

    It ends if the session is deleted.
    Heartbeats come also while hints bring nothing new or the reader skips events, so that the connection never idles.
    """
    heartbeat = _Heartbeat(subscription, beat)
    try:
        while True:
            subscription.seen = after
            items = await subscription.take()
            if heartbeat.is_due:
                heartbeat.begin()
                yield Batch()
            batch, after, is_gone = await _read(db, session_id, items, after)
            if batch or is_gone:
                yield batch
            if is_gone:
                return
            del items, batch  # nothing is kept while nothing happens
    finally:
        heartbeat.stop()


async def _read(db: Database, session_id: str, items: Sequence[Item], after: int) -> tuple[Batch, int, bool]:
    """The batch of the items, with events after `after` alone; the last seq then; whether the session was deleted."""
    batch = Batch()
    for item in items:
        if isinstance(item, _PASSED_ON):
            batch.append(item)
            continue
        if isinstance(item, Gone):
            return batch, after, True
        facts = _told(item, after)
        if facts is None:
            facts = await journals.read(db, session_id, after)
        batch += facts
        after = facts[-1].seq if facts else after
        if isinstance(item, Facts) and item.session:
            batch.sessions[item.session.head] = item.session
    return batch, after, False


class _Heartbeat:
    """Wakes the follower when a beat is due. The timer says so itself: clocks may round its moment differently."""

    def __init__(self, subscription: Subscription, seconds: float) -> None:
        self._subscription = subscription
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        self.is_due = False
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._beat)

    def stop(self) -> None:
        self._timer.cancel()

    def _beat(self) -> None:
        self.is_due = True
        self._subscription.wake()


def _told(item: Facts | JournalGrew, after: int) -> Sequence[Recorded] | None:
    """The new events of a hint, if they follow directly; None: they are to be read from the journal."""
    if isinstance(item, JournalGrew):
        return () if item.head is not None and item.head <= after else None
    first = item.recorded[0].seq
    if first > after + 1:
        return None
    return item.recorded[after + 1 - first :]
