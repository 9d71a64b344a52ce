"""The live tail of a session: every journal event once and in order, with fragments between, even if hints are lost."""

import asyncio
from collections.abc import AsyncGenerator

from longhouse.journal.events import Recorded
from longhouse.runtime.bus.items import Facts, Fragment, Gone, JournalGrew, SubagentsChanged, Written
from longhouse.runtime.bus.local import Subscription
from longhouse.store import journals
from longhouse.store.database import Database

Seen = Recorded | Fragment | SubagentsChanged | Written


async def follow(
    db: Database, session_id: str, subscription: Subscription, *, after: int, beat: float
) -> AsyncGenerator[list[Seen], None]:
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
                yield []
            batch: list[Seen] = []
            for item in items:
                if isinstance(item, Fragment | SubagentsChanged | Written):
                    batch.append(item)
                    continue
                if isinstance(item, Gone):
                    yield batch
                    return
                facts = await _facts(db, session_id, item, after)
                batch += facts
                after = facts[-1].seq if facts else after
            if batch:
                yield batch
    finally:
        heartbeat.stop()


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


async def _facts(db: Database, session_id: str, item: Facts | JournalGrew, after: int) -> list[Recorded]:
    """The new events of a hint: taken from the hint if they follow directly, else read from the journal."""
    if isinstance(item, Facts) and item.recorded[0].seq <= after + 1:
        return [record for record in item.recorded if record.seq > after]
    if isinstance(item, JournalGrew) and item.head is not None and item.head <= after:
        return []
    return await journals.read(db, session_id, after)
