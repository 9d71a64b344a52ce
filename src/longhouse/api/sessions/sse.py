"""A session's journal as server-sent events: facts with ids, fragments without."""

from collections.abc import AsyncGenerator, Iterable

from longhouse.api import streaming
from longhouse.api.sessions.tail import follow
from longhouse.api.sessions.waiting import waiting_status
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import fold
from longhouse.journal.session import Session
from longhouse.runtime.bus import Bus, Draft, Fragment
from longhouse.store import journals
from longhouse.store.database import Database


async def events_of(
    db: Database, bus: Bus, session_id: str, after: int, *, until_rest_of: Session | None, deltas: bool
) -> AsyncGenerator[bytes, None]:
    """Journal events after the id come first, then the draft of the running step, then live events.

    `until_rest_of`: the current session, folded along to end the stream when the session rests. Without it the stream
    never ends by itself, and a client that only listens costs no fold.
    """
    watch = Watch(db, until_rest_of)
    with bus.subscribed(session_id) as subscription:
        # A draft is sent after the events that its step is based on, even if they were appended during this read.
        while (page := await journals.read(db, session_id, after)) or is_ahead(bus.draft(session_id), after):
            yield b"".join(fact(session_id, record, record.seq) for record in page)
            watch.see(page)
            after = page[-1].seq if page else after
        if await watch.is_over():
            return
        if deltas and (draft := bus.draft(session_id)):
            yield snapshot(draft)
        async for batch in follow(db, session_id, subscription, after=after, beat=streaming.HEARTBEAT_EVERY):
            shown = [item for item in batch if isinstance(item, Recorded) or (deltas and isinstance(item, Fragment))]
            pieces = [_piece(session_id, item) for item in shown]
            if pieces or not batch:
                yield b"".join(pieces) or streaming.HEARTBEAT
            watch.see(item for item in batch if isinstance(item, Recorded))
            if await watch.is_over():
                return


class Watch:
    """Folds the events until the session rests; does nothing without a session."""

    def __init__(self, db: Database, session: Session | None) -> None:
        self._db = db
        self._session = session

    def see(self, records: Iterable[Recorded]) -> None:
        if self._session:
            head = self._session.head
            self._session = fold((record for record in records if record.seq > head), self._session)

    async def is_over(self) -> bool:
        """Does the session rest, and can no sub-agent that it waits for proceed without a person?"""
        if self._session is None or self._session.can_move:
            return False
        return (await waiting_status(self._db, self._session)).rests


def is_ahead(draft: Draft | None, seq: int) -> bool:
    return draft is not None and draft.after > seq


def _piece(session_id: str, item: Recorded | Fragment) -> bytes:
    return fact(session_id, item, item.seq) if isinstance(item, Recorded) else delta(item)


def fact(session_id: str, record: Recorded, event_id: int | str) -> bytes:
    """An event of the journal, with the id to resume from."""
    value = {
        "seq": record.seq,
        "at": record.at,
        "session_id": session_id,
        "trace_id": record.trace,
        "worker": record.worker,
        "fence": record.fence,
        "event": record.event,
    }
    return streaming.named(events.kind_of(record.event), value, event_id)


def delta(fragment: Fragment) -> bytes:
    value = {
        "after": fragment.after,
        "fence": fragment.fence,
        "offset": fragment.offset,
        "kind": fragment.kind,
        "text": fragment.text,
    }
    return streaming.named("delta", value)


def snapshot(draft: Draft) -> bytes:
    value = {"after": draft.after, "fence": draft.fence, "content": draft.content, "reasoning": draft.reasoning}
    return streaming.named("delta.snapshot", value)
