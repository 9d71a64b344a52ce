"""The ledger as a projection of the journals: each event is written once, in whichever process comes first."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import asyncpg
import msgspec
import structlog
from msgspec.structs import replace

from longhouse.errors import UnknownShape
from longhouse.integrations.projector import Projector
from longhouse.journal.events import Noted, Recorded
from longhouse.memory.dates import date_words
from longhouse.memory.ledger_records import SessionProjection
from longhouse.search.bounded_embedder import EMBED_WITHIN, HURRIED_WITHIN
from longhouse.search.passages import Passage, PassageHit, PassageIndex, PreparedPassages
from longhouse.store import journals, projections
from longhouse.store.database import Database, Transaction
from longhouse.store.erasing import erasure
from longhouse.store.erasing.erasure import ErasedSession
from longhouse.store.memory import interactions
from longhouse.store.memory.interactions import EventRows, Key, LedgerRow
from longhouse.store.projections import ProjectionRow

log = structlog.get_logger()

LINGER: Final = 5.0
"""Seconds. Whoever reads the ledger brings it up to date first; others see it this much later."""
SWEEP_EVERY: Final = 10.0
"""Seconds; every process has its own hints, so a sweep only finds what a lost process has left."""
BATCH: Final = 16
"""Sessions: each has some forty rows of ten steps, and what is read of them is decoded at once."""
PAGE: Final = 200
"""Events of one session in one batch."""
INTERACTION: Final = "interaction"
NOTE: Final = "note"
"""The kinds of passages."""
CACHED_SESSIONS: Final = 128
EMPTY: Final = "{}[]\"' \t\r\n"
"""A content of nothing else, such as the arguments of a call that takes none, has no word to be found by."""
LONGEST_PASSAGE: Final = 4_000
"""Characters of an interaction by which it is found."""
LONGEST_OF_TOOLS: Final = 1_000
"""The same for calls of tools, which are many and long."""


class _Batch(msgspec.Struct, frozen=True):
    """What sessions were projected to, before it is written."""

    known: Mapping[str, ProjectionRow]
    rows: Mapping[str, Sequence[LedgerRow]] = msgspec.field(default_factory=dict)
    notes: Mapping[str, Sequence[tuple[Recorded, str | None]]] = msgspec.field(default_factory=dict)
    moved: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """From which event to which."""
    unfinished: Sequence[str] = ()
    """Those that have more."""


class LedgerProjector(Projector):
    """Keeps the ledger up to date. Rows and cursor are one transaction: nothing is lost, nothing is written twice."""

    name = interactions.PROJECTION
    place = "forgotten"
    sides = ("root", "sub", "external")
    batch = BATCH
    linger = LINGER

    def __init__(
        self, db: Database, index: PassageIndex, *, sweep_every: float = SWEEP_EVERY, page: int = PAGE
    ) -> None:
        super().__init__(db, sweep_every=sweep_every)
        self._page_size = page
        self.index = index
        self._sessions: OrderedDict[str, SessionProjection] = OrderedDict()
        self._turn = asyncio.Lock()
        self._under_way: list[str] = []
        """Taken from the hints, and not written yet."""

    async def catch_up(self, ids: Sequence[str]) -> None:
        """Projects these sessions to their present heads, without waiting for the next batch."""
        waiting = list(ids)
        while waiting:
            first, waiting = waiting[: self.batch], waiting[self.batch :]
            rows = await projections.rows(self._db, first, sides=self.sides)
            # Whoever comes next finds it written, and does not do it again.
            async with self._turn:
                batch = await self._batch(rows)
                await self._write(batch, within=HURRIED_WITHIN)
            waiting += batch.unfinished

    async def catch_up_hints(self) -> None:
        """Projects the sessions that this process has appended to and that are not written yet."""
        await self.catch_up(list(dict.fromkeys((*self._under_way, *self._hints))))

    async def catch_up_all(self, on_page: Callable[[int], object] = lambda number: None) -> int:
        """Projects every session that is behind; returns how many those were."""
        count, after = 0, ""
        while page := await projections.behind(
            self._db, self.name, sides=self.sides, epoch="", after=after, limit=self.batch
        ):
            await self.catch_up([row.id for row in page])
            count, after = count + len(page), page[-1].id
            on_page(len(page))
        return count

    async def find_tools(self, owner: str, conversation: str) -> None:
        """Lets `query` find the calls of tools in a conversation: most are never asked for."""
        for session_id, before, head in await interactions.unfound(self._db, owner, conversation):
            rows = [row for row in await interactions.of_tools(self._db, session_id, before, head) if is_found(row)]
            known = await projections.rows(self._db, [session_id])
            kept = rows if known and not known[0].is_ephemeral else []
            ready = await self.index.prepare([passage_of(row) for row in kept], within=HURRIED_WITHIN)
            ids = [row.interaction.id for row in kept]

            async def write(
                tx: Transaction,
                session_id: str = session_id,
                head: int = head,
                ids: Sequence[str] = ids,
                ready: PreparedPassages = ready,
            ) -> None:
                shown = {source_of((session_id, one)) for one in await interactions.found(tx, session_id, head, ids)}
                await self.index.store(tx, ready, lambda entry: entry.source in shown)

            await self._db.together(write)

    async def project(self, rows: Sequence[ProjectionRow]) -> None:
        try:
            async with self._turn:
                batch = await self._batch(rows)
            # A slow model holds up nobody: who needs the same meanwhile projects it too, and one of the two is written.
            await self._write(batch, within=EMBED_WITHIN)
        finally:
            self._under_way = []
        for one in batch.unfinished:
            self.nudge(one)

    def _next_hints(self) -> list[str]:
        self._under_way = super()._next_hints()
        return self._under_way

    async def remove(self, rows: Sequence[ProjectionRow]) -> None:
        """Nothing to do: a session's rows are erased with it, in one transaction."""

    async def forget(self, traces: Sequence[ErasedSession]) -> None:
        """Mostly there is nothing left to delete: only a process of an earlier release erases without the ledger."""
        ids = [trace.session_id for trace in traces]
        for session_id in ids:
            self._sessions.pop(session_id, None)
        await self._db.together(lambda tx: erasure.forget_derived(tx, ids))

    async def _batch(self, rows: Sequence[ProjectionRow]) -> _Batch:
        """Projects at most a page of each session."""
        known = {row.id: row for row in rows if self._unreadable.get(row.id) != row.head}
        heads = await interactions.cursors(self._db, list(known)) if known else {}
        behind = {one: head for one, head in heads.items() if head < known[one].head}
        if not behind:
            return _Batch(known)
        await self._warm({one: known[one] for one in behind}, behind)
        found = await interactions.events_since(self._db, behind, self._page_size)
        pages = {one: self._page(known[one], rows) for one, rows in found.items()}
        # Held here: an erasure may take a session away at any time.
        sessions = dict(self._sessions)
        projected = await self._rows_of({one: page for one, page in pages.items() if page}, known, sessions)
        moved = {one: (behind[one], sessions[one].seq) for one in projected}
        notes = {one: sessions[one].noted for one in projected}
        # What was added from outside and deleted since has left its journal.
        moved |= {one: (head, known[one].head) for one, head in behind.items() if one not in found}
        while len(self._sessions) > CACHED_SESSIONS:
            self._sessions.popitem(last=False)
        return _Batch(known, projected, notes, moved, [one for one in projected if len(found[one]) == self._page_size])

    async def _warm(self, known: Mapping[str, ProjectionRow], heads: Mapping[str, int]) -> None:
        """Brings each session to its cursor; those of the last batch mostly are there."""
        here = {one: session.seq for one, session in self._sessions.items()}
        cold = {one: head for one, head in heads.items() if here.get(one) != head}
        fresh = {one: SessionProjection(known[one]) for one in cold}
        self._sessions |= fresh
        begun = {one: head for one, head in cold.items() if head}
        if not begun:
            return
        found = await interactions.events_of_turn(self._db, begun)
        pages = {one: self._decoded(known[one], rows) for one, rows in found.items()}
        await self._rows_of(pages, known, fresh)
        for one, head in begun.items():
            fresh[one].seq = head

    async def _rows_of(
        self,
        pages: Mapping[str, Sequence[Recorded]],
        known: Mapping[str, ProjectionRow],
        sessions: Mapping[str, SessionProjection],
    ) -> dict[str, list[LedgerRow]]:
        there = {one: page for one, page in pages.items() if one in sessions}
        missing = [(one, seq) for one, page in there.items() for seq in sessions[one].missing(page)]
        for one, rows in (await interactions.events_at(self._db, missing) if missing else {}).items():
            sessions[one].prompts |= {record.seq: record for record in self._decoded(known[one], rows)}
        projected = {}
        for one, page in there.items():
            if self._unreadable.get(one) == known[one].head:
                continue  # a prompt of a newer process
            try:
                projected[one] = sessions[one].project(page)
            except UnknownShape as error:
                self._skip(known[one], error)
            await asyncio.sleep(0)  # a batch of long pages must not hold up requests
        return projected

    async def _write(self, batch: _Batch, *, within: float) -> None:
        """Writes the batch; if Postgres refuses something in it, one session after another."""
        if not batch.moved:
            return
        try:
            await self._write_together(batch, within)
        except asyncpg.DataError as error:
            if len(batch.moved) == 1:
                self._skip(batch.known[next(iter(batch.moved))], error)
                return
            for one, heads in batch.moved.items():
                await self._write(replace(batch, moved={one: heads}), within=within)

    async def _write_together(self, batch: _Batch, within: float) -> None:
        """Writes rows, the passages by which they are found, and cursors in one transaction.

        A passage whose vector takes longer than `within` seconds is found by its words until it has one.
        """
        rows = [row for one in batch.moved for row in batch.rows.get(one, ())]
        kept = {one for one in batch.moved if not batch.known[one].is_ephemeral}
        found_by = [passage_of(row) for row in rows if not is_late(row) and is_found(row) and row.session_id in kept]
        found_by += [passage_of_note(batch.known[one], *note) for one in kept for note in batch.notes.get(one, ())]
        ready = await self.index.prepare(found_by, within=within) if found_by else None

        async def write(tx: Transaction, *, are_new: bool) -> None:
            shown = set(map(source_of, await interactions.write(tx, rows, batch.moved, are_new=are_new)))
            if ready:
                await self.index.store(tx, ready, lambda entry: entry.kind == NOTE or entry.source in shown)

        try:
            await self._db.together(partial(write, are_new=True))
        except asyncpg.UniqueViolationError:  # a fork has copied them, or another process has told them just now
            await self._db.together(partial(write, are_new=False))

    def _page(self, row: ProjectionRow, rows: EventRows) -> list[Recorded]:
        """A page of events; if more follow, without a last append that may not be whole."""
        page = self._decoded(row, rows)
        if len(page) < self._page_size or page[0].at == page[-1].at:
            return page
        return [record for record in page if record.at != page[-1].at]

    def _decoded(self, row: ProjectionRow, rows: EventRows) -> list[Recorded]:
        """The events; none if a newer process wrote one of them."""
        try:
            return [journals.recorded(one) for one in rows]
        except UnknownShape as error:
            self._skip(row, error)
            return []

    def _skip(self, row: ProjectionRow, error: Exception) -> None:
        message = "A journal cannot be projected by this process."
        log.warning("journal_unreadable", message=message, projection=self.name, session=row.id, error=str(error))
        self._unreadable[row.id] = row.head
        self._sessions.pop(row.id, None)


def is_found(row: LedgerRow) -> bool:
    """Whether `query` finds it."""
    return row.shown and row.is_found and bool(row.interaction.content.strip(EMPTY))


def is_late(row: LedgerRow) -> bool:
    """Whether it is indexed only when somebody searches: calls of tools are many, and few are searched for."""
    one = row.interaction
    return bool(row.agent) and "tool" in (one.source_type, one.target_type)


def source_of(key: Key) -> str:
    """The name under which a record is found; ids from outside are unique in their conversation alone."""
    session_id, own = key
    return own if own.startswith(f"{session_id}:") else f"{session_id}/{own}"


def key_of(hit: PassageHit) -> Key:
    return hit.group, hit.source.removeprefix(f"{hit.group}/")


def recall_scope(owner: str, user: str | None, conversation: str) -> str:
    """The scope of a person's interactions and notes; without one, of the conversation, since an API key may stand for
    many people.

    Without API keys every session has a user: the owner, unless its request named another.
    """
    named = ("person", owner, user) if user and user.strip() else ("conversation", owner, conversation)
    # JSON keeps the parts apart: no name can be chosen to look like two parts.
    return msgspec.json.encode(named).decode()


def passage_of(row: LedgerRow) -> Passage:
    """The passage by which an interaction is found; a talk and the calls of tools in it are threads of their own.

    Its neighbours are no part of it: they count when a search ranks. It is written once, and leaves no word in others
    when it is deleted.
    """
    one = row.interaction
    parties = ((one.source, one.source_type), (one.target, one.target_type))
    is_talk = all(kind in ("user", "agent") for _, kind in parties)
    text = one.content[: LONGEST_PASSAGE if is_talk else LONGEST_OF_TOOLS]
    return Passage(
        scope=recall_scope(row.owner, row.user, one.conversation_id),
        kind=INTERACTION,
        source=source_of(row.key),
        group=row.session_id,
        text=text,
        title=one.source,
        context=date_words(one.timestamp, text),
        at=one.timestamp,
        thread=row.session_id if is_talk else f"{row.session_id}/tools",
        position=row.seq,
        facts={
            "conversation": one.conversation_id,
            "trace_id": one.trace_id,
            "type": one.type,
            "source_type": one.source_type,
            "target_type": one.target_type,
            "agent": [name for name, kind in parties if kind == "agent"],
        },
    )


def passage_of_note(row: ProjectionRow, record: Recorded, user: str | None) -> Passage:
    """The passage by which a note of an agent is found, by this user."""
    assert isinstance(record.event, Noted)
    return Passage(
        scope=recall_scope(row.owner, user, row.conversation_id),
        kind=NOTE,
        source=f"{row.id}:{record.seq:010}",
        group=row.id,
        text=record.event.text[:LONGEST_PASSAGE],
        title=row.agent,
        at=record.at,
        facts={
            "conversation": row.conversation_id,
            "agent": [row.agent],
            "trace_id": record.trace,
            "source_type": NOTE,
            "target_type": NOTE,
        },
    )
