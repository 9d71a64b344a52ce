"""GET /v1/sessions/{id}/events: a session's journal, or those of its whole tree, as server-sent events.

Facts have ids and fragments have none; causes come before effects.
"""

import base64
import hashlib
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Final, Literal, TypedDict

import msgspec
from fastapi import Header, Query
from msgspec.structs import replace
from pydantic import Field

from longhouse.api import auth, wire
from longhouse.api.http import streaming
from longhouse.api.http.json_route import strict_router
from longhouse.api.http.streaming import Event, EventStream
from longhouse.api.pagination import Omittable, YesOrNo
from longhouse.api.sessions.routes import SESSION_PATH, Held
from longhouse.api.sessions.tail import Seen, follow
from longhouse.api.sessions.tree_reader import Activity, SubagentEvent, SubagentEventName, TreeReader
from longhouse.api.sessions.waiting import is_over
from longhouse.errors import CallerError
from longhouse.journal import events
from longhouse.journal.events import Recorded
from longhouse.journal.fold import fold
from longhouse.journal.session import Session
from longhouse.runtime.bus.items import Draft, Fragment, GrowingDraft, SubagentsChanged, Written
from longhouse.runtime.bus.local import Bus
from longhouse.store import journals
from longhouse.store.database import Database
from longhouse.store.delegation import tree
from longhouse.store.delegation.tree import Root
from longhouse.store.sessions import SessionRow

BEGINNING: Final = "0"
NOW: Final = "now"
LONGEST_ID: Final = 60_000
"""Characters of an id; servers and proxies refuse longer headers anyway."""

_Seq = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_decoder: Final = msgspec.json.Decoder(tuple[str, _Seq, dict[str, _Seq]])
POLL_EVERY: Final = 1.0
"""Seconds between polls: sub-agents in other processes send no hints, so their journals are polled."""


@dataclass(slots=True)
class SessionCursor:
    """How far a client has read the journal of a session."""

    root: str
    seen_heads: dict[str, int]

    @property
    def seq(self) -> int:
        """The seq of the top session."""
        return self.seen_heads.get(self.root, 0)

    @property
    def id(self) -> str:
        return str(self.seq)


class TreeCursor(SessionCursor):
    """How far a client has read each journal of a tree."""

    @property
    def id(self) -> str:
        subagents = {_mark(session): seq for session, seq in self.seen_heads.items() if session != self.root}
        encoded = msgspec.json.encode((_mark(self.root), self.seq, subagents))
        return base64.urlsafe_b64encode(encoded).decode().rstrip("=")


async def cursor_of(db: Database, row: SessionRow, text: str, *, is_tree: bool) -> SessionCursor:
    """Decodes a cursor; an invalid one, or one of another session, is refused."""
    if text == NOW:
        nodes = await tree.nodes(db, [Root(row.id, row.id, None)]) if is_tree else []
        heads = {**{node.id: node.head for node in nodes}, row.id: row.head}
        return TreeCursor(row.id, heads) if is_tree else SessionCursor(row.id, heads)
    if not is_tree:
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) <= row.head):
            raise _refusal()
        return SessionCursor(row.id, {row.id: int(text)})
    if text == BEGINNING:
        return TreeCursor(row.id, {})
    mark, seq, subagents = _decoded(text)
    known = {_mark(node.id): node for node in await tree.nodes(db, [Root(row.id, row.id, None)])}
    seqs = {mark: seq, **subagents}
    is_ours = mark == _mark(row.id) and mark not in subagents
    if not is_ours or any(key not in known or seqs[key] > known[key].head for key in seqs):
        raise _refusal()
    return TreeCursor(row.id, {known[key].id: seqs[key] for key in seqs})


def _decoded(text: str) -> tuple[str, int, dict[str, int]]:
    try:
        if len(text) > LONGEST_ID:
            raise _refusal()
        return _decoder.decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors too
        raise _refusal() from None


@lru_cache(maxsize=10_000)
def _mark(session_id: str) -> str:
    """A short form of a session id: each event carries those of its whole tree."""
    return base64.urlsafe_b64encode(hashlib.blake2s(session_id.encode(), digest_size=6).digest()).decode()


def _refusal() -> CallerError:
    return CallerError("The event id to continue from is not one of this session.", param="after")


router = strict_router("Sessions", auth.user)


class Following(wire.StrictModel):
    after: str = Field(BEGINNING, description="Continue after the event with this id, or `now`")
    until: Literal["rest", "never"] = Field("rest", description="Close when nobody can move, or never")
    tree: YesOrNo = Field("false", description="Also what the sub-agents do")
    deltas: YesOrNo = Field("true", description="Also what is being written")


class Fact(TypedDict):
    """An event of the journal."""

    seq: int
    at: datetime
    session_id: str
    trace_id: str
    worker: str
    fence: int
    event: events.Event


class WrittenPart(TypedDict):
    """A piece of the reply that is being written."""

    after: int
    fence: int
    offset: int
    kind: str
    text: str


class Retrying(TypedDict):
    reason: str


class PausedSession(TypedDict):
    """The session waits for a budget of its key."""

    reason: str
    until: datetime


class RestartedStep(TypedDict):
    """What was written of the step so far counts no more."""

    after: int
    fence: int


SessionEvents = (
    Event[events.Event, Fact]
    | Event[Literal["delta"], WrittenPart]
    | Event[Literal["delta.snapshot"], Draft]
    | Event[Literal["step.restarted"], RestartedStep]
    | Event[Literal["retrying"], Retrying]
    | Event[Literal["paused"], PausedSession]
    | Event[SubagentEventName, Activity]
    | Event[Literal["error"], wire.Envelope]
)
LastEventId = Annotated[Omittable[str], Header(alias="Last-Event-ID", description="The same; it wins over `after`")]


@router.get(f"{SESSION_PATH}/events")
async def get_events(
    caller: auth.User,
    sessions: Held,
    session_id: str,
    asked: Annotated[Following, Query()],
    last_event_id: LastEventId = None,
) -> EventStream[SessionEvents]:
    """The session's events as server-sent events; resume with `Last-Event-ID` or `after`."""
    db, deltas, is_tree = sessions.db, asked.deltas == "true", asked.tree == "true"
    row = await sessions.find(caller, session_id)
    after = last_event_id or asked.after or BEGINNING
    cursor = await cursor_of(db, row, after, is_tree=is_tree)
    reader = TreeReader.of_session(db, row.id, row.conversation_id, cursor.seen_heads) if is_tree else None
    resting = await journals.load(db, row.id, row.head) if asked.until == "rest" else None
    return EventStream(
        events_of(db, sessions.bus, cursor, reader, until_rest_of=resting, deltas=deltas, tells_start=after == NOW)
    )


async def events_of(
    db: Database,
    bus: Bus,
    cursor: SessionCursor,
    reader: TreeReader | None = None,
    *,
    until_rest_of: Session | None,
    deltas: bool,
    tells_start: bool = False,
) -> AsyncGenerator[bytes, None]:
    """Journal events after the cursor come first, then the draft of the running step, then live events.

    `reader`: reads the sub-agents too; without it, the stream shows the session alone. `until_rest_of`: the current
    session, folded along to end the stream when the session rests, and with a reader when no session of the tree can
    proceed. Without it the stream never ends by itself, and a client that only listens costs no fold. `tells_start`:
    the id to continue from is sent first, before anything happens.
    """
    if tells_start:
        yield f"id: {cursor.id}\n\n".encode()
    top, watch, silent = cursor.root, _Watch(db, until_rest_of, has_subagents=reader is not None), 0
    beat, sent = POLL_EVERY if reader else streaming.HEARTBEAT_EVERY, _SentDraft()
    with bus.subscribed(top) as subscription:
        # A draft is sent after the events that its step is based on, even if they were appended during this read.
        while (items := await _so_far(db, cursor, reader)) or _is_written_after(bus.draft(top), cursor.seq):
            watch.add(items)
            if pieces := b"".join(_pieces(cursor, items, deltas=deltas)):
                yield pieces
        is_over = await watch.is_over()
        if pieces := sent.snapshot(bus.draft(top)) if deltas and not is_over else b"":
            yield pieces
        pieces = b""  # what was sent is not kept while nothing happens
        if is_over:
            subscription.put(SubagentsChanged())
        async for hints in follow(db, top, subscription, after=cursor.seq, beat=beat):
            is_beat = not hints
            batch: list[Seen] = hints if deltas else [one for one in hints if not isinstance(one, Fragment | Written)]
            del hints
            if not batch and not is_beat:
                continue
            watch.add(batch)
            batch = [*sent.without_known(batch)]
            pieces = b"".join(_pieces(cursor, await reader.since(batch) if reader else batch, deltas=deltas))
            silent = silent + 1 if is_beat else silent
            if pieces or silent * beat >= streaming.HEARTBEAT_EVERY:
                yield pieces or streaming.HEARTBEAT
                silent = 0
            is_whole = reader is None or reader.is_whole
            if is_over and is_whole and all(isinstance(item, SubagentsChanged) for item in batch):
                return
            is_over = await watch.is_over()
            if (reader and reader.is_cut) or (is_over and is_whole):
                # Events beyond the page, or appended just before the rest, are still to be sent.
                subscription.put(SubagentsChanged())
            del batch, pieces


def _is_written_after(draft: GrowingDraft | None, seq: int) -> bool:
    return draft is not None and draft.after > seq


async def _so_far(db: Database, cursor: SessionCursor, reader: TreeReader | None) -> list[Seen | SubagentEvent]:
    return await reader.so_far() if reader else [*await journals.read(db, cursor.root, cursor.seq)]


class _SentDraft:
    """How much of the running reply the client has: no part is sent twice, or out of order."""

    def __init__(self) -> None:
        self._step = (-1, -1)
        self._lengths = {"content": 0, "reasoning": 0}

    def snapshot(self, draft: GrowingDraft | None) -> bytes:
        """The event with what is written so far, if the client lacks some of it."""
        return streaming.named("delta.snapshot", draft.so_far) if draft and self.is_news(draft) else b""

    def is_news(self, whole: GrowingDraft | Written) -> bool:
        """Whether the client lacks some of this text; if so, it counts as sent."""
        step, lengths = (whole.after, whole.fence), {name: len(getattr(whole, name)) for name in self._lengths}
        if step < self._step or (step == self._step and all(lengths[one] <= self._lengths[one] for one in lengths)):
            return False
        self._step, self._lengths = step, lengths
        return True

    def without_known(self, items: Iterable[Seen]) -> Iterator[Seen]:
        for item in items:
            if isinstance(item, Fragment) and item.kind != "retry":
                yield from self._new_part(item)
            elif not isinstance(item, Written) or self.is_news(item):
                yield item

    def _new_part(self, fragment: Fragment) -> Iterator[Fragment]:
        step, kind = (fragment.after, fragment.fence), fragment.kind
        if step > self._step:
            self._step, self._lengths = step, dict.fromkeys(self._lengths, 0)
        known = self._lengths[kind]
        text = fragment.text[known - fragment.offset :]
        # Where something is missing before it, the bus asks for the whole.
        if step == self._step and fragment.offset <= known and text:
            self._lengths[kind] += len(text)
            yield replace(fragment, offset=known, text=text)


class _Watch:
    """Folds the events until the session rests; does nothing without a session."""

    def __init__(self, db: Database, session: Session | None, *, has_subagents: bool) -> None:
        self._db = db
        self._session = session
        self._has_subagents = has_subagents

    def add(self, items: Iterable[Seen | SubagentEvent]) -> None:
        if self._session:
            head = self._session.head
            new = (item for item in items if isinstance(item, Recorded) and item.seq > head)
            self._session = fold(new, self._session)

    async def is_over(self) -> bool:
        """Whether nothing that the stream shows can proceed without a person; False without a session."""
        session = self._session
        return session is not None and await is_over(self._db, session, has_subagents=self._has_subagents)


def _pieces(cursor: SessionCursor, items: Iterable[Seen | SubagentEvent], *, deltas: bool) -> Iterator[bytes]:
    """The encoded events, each journal event with the id to resume from."""
    for item in items:
        match item:
            case Fragment(kind="retry", until=datetime() as until):
                paused: PausedSession = {"reason": f"{item.text}.", "until": until}
                yield streaming.named("paused", paused)
            case Fragment(kind="retry"):
                retrying: Retrying = {"reason": item.text}
                yield streaming.named("retrying", retrying)
            case Fragment():
                yield _delta(item)
            case Written():
                yield streaming.named("delta.snapshot", Draft(item.after, item.fence, item.content, item.reasoning))
            case Recorded():
                cursor.seen_heads[cursor.root] = item.seq
                yield encode_event(cursor.root, item, cursor.id)
                if deltas and isinstance(item.event, events.Resumed):
                    restarted: RestartedStep = {"after": item.seq, "fence": item.fence}
                    yield streaming.named("step.restarted", restarted)
            case SubagentEvent():
                cursor.seen_heads[item.session] = item.record.seq
                if item.shown:
                    yield streaming.named(item.shown["event"], item.shown, cursor.id)


def encode_event(session_id: str, record: Recorded, event_id: str) -> bytes:
    """An event of the journal, with the id to resume from."""
    return streaming.named(events.kind_of(record.event), fact(session_id, record), event_id)


def fact(session_id: str, record: Recorded) -> Fact:
    """An event of the journal with where, when and by whom it was written."""
    return {
        "seq": record.seq,
        "at": record.at,
        "session_id": session_id,
        "trace_id": record.trace,
        "worker": record.worker,
        "fence": record.fence,
        "event": record.event,
    }


def _delta(fragment: Fragment) -> bytes:
    value: WrittenPart = {
        "after": fragment.after,
        "fence": fragment.fence,
        "offset": fragment.offset,
        "kind": fragment.kind,
        "text": fragment.text,
    }
    return streaming.named("delta", value)
