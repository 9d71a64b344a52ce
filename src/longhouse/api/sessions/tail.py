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
    loop = asyncio.get_running_loop()
    beats_at = loop.time() + beat
    timer = loop.call_at(beats_at, subscription.wake)
    try:
        while True:
            subscription.seen = after
            items = await subscription.take()
            if loop.time() >= beats_at:
                beats_at = loop.time() + beat
                timer.cancel()
                timer = loop.call_at(beats_at, subscription.wake)
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
        timer.cancel()


async def _facts(db: Database, session_id: str, item: Facts | JournalGrew, after: int) -> list[Recorded]:
    """The new events of a hint: taken from the hint if they follow directly, else read from the journal."""
    if isinstance(item, Facts) and item.recorded[0].seq <= after + 1:
        return [record for record in item.recorded if record.seq > after]
    if isinstance(item, JournalGrew) and item.head is not None and item.head <= after:
        return []
    return await journals.read(db, session_id, after)
