"""Session logs as a projection of the journals: the requests, loads, saves and answers of each conversation."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Final

import structlog

from longhouse.agents.naming import AGENT
from longhouse.errors import UnknownShape
from longhouse.integrations.projector import SWEEP_EVERY, Projector
from longhouse.integrations.redis import keys
from longhouse.integrations.session_log import get_session_logger, path_of, write
from longhouse.integrations.session_log_lines import RULE, Language, line
from longhouse.journal import conversation as plain
from longhouse.journal import events
from longhouse.journal.events import Output, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.messages import text_of
from longhouse.journal.transcript import Step
from longhouse.store import erasure, journals, projections, sessions
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.erasure import ErasedSession
from longhouse.store.projections import ProjectionRow

log = structlog.get_logger()

NAME: Final = "session_log"
CONTEXT_WINDOW: Final = 50
"""Messages of its history that a sub-agent gets."""

Confirmed = Callable[[str, int], Awaitable[bool]]
Subagents = Callable[[ProjectionRow], Awaitable[Iterable[str]]]


async def _never(session_id: str, seq: int) -> bool:
    return False


async def _none(row: ProjectionRow) -> Iterable[str]:
    return ()


def subagents_in(catalog: Catalog) -> Subagents:
    """Returns a function that lists the sub-agents named by a session's template."""

    async def named(row: ProjectionRow) -> Iterable[str]:
        template = await catalog.templates.find(row.agent, owner=row.owner)
        tools = template.tool_policy.named if template else ()
        return [name.removeprefix(AGENT) for name in tools if name.startswith(AGENT)]

    return named


@dataclass(frozen=True, slots=True)
class _NewEvent:
    row: ProjectionRow
    record: Recorded


class SessionLog:
    """Writes the log of each conversation as its journals grow; each event once, in whichever process comes first."""

    name = NAME

    def __init__(
        self,
        db: Database,
        folder: Path,
        *,
        language: Language = "en",
        subagents: Subagents = _none,
        confirmed: Confirmed = _never,
        sweep_every: float = SWEEP_EVERY,
    ) -> None:
        """`subagents`: lists what a root session may call. `confirmed`: whether Redis has a session up to an event."""
        self._db = db
        self._folder = folder
        self._language = language
        self._subagents = subagents
        self._confirmed = confirmed
        self._unreadable: dict[str, int] = {}
        self.place = f"forgotten {socket.gethostname()} {folder.absolute()}"
        self._projector = Projector(db, self, sweep_every=sweep_every)
        self.nudge = self._projector.nudge

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SessionLog"]:
        async with self._projector.running():
            yield self

    async def epoch(self) -> str:
        return ""

    async def carry(self, rows: Sequence[ProjectionRow]) -> None:
        news: dict[tuple[str, str], list[_NewEvent]] = defaultdict(list)
        # Sub-agents first: the parents' events that led to theirs are then read as well.
        for row in sorted(rows, key=lambda row: row.side == "root"):
            claimed = await self._claimed(row)
            if not row.is_ephemeral:
                news[row.owner, row.conversation_id] += [_NewEvent(row, record) for record in claimed]
        for (owner, conversation), happened in news.items():
            happened.sort(key=lambda one: one.record.at)
            lines = [text for one in happened for text in await self._lines(one)]
            await asyncio.to_thread(_write, self._folder, owner, conversation, lines)
        if gone := await erasure.gone(self._db, [row.id for row in rows]):
            # Erased while it was written: the eraser may have removed the logs before this write.
            await self._remove((row.owner, row.conversation_id) for row in rows if row.id in gone)

    async def forget(self, traces: Sequence[ErasedSession]) -> None:
        """Removes the logs of their conversations: the lines of single sessions cannot be told apart in them."""
        await self._remove((trace.owner, trace.conversation_id) for trace in traces)

    async def _remove(self, conversations: Iterable[tuple[str, str]]) -> None:
        names = {(owner, name) for owner, name in conversations if keys.CHAT_ID.fullmatch(name)}
        for owner, name in sorted(names):
            path = path_of(self._folder, name, owner)
            try:
                await asyncio.to_thread(path.unlink, missing_ok=True)
            except OSError as error:
                message = "The log of an erased session cannot be removed."
                log.warning("erased_file_not_removed", message=message, path=str(path), error=error.strerror)

    async def _claimed(self, row: ProjectionRow) -> list[Recorded]:
        """The events that no process has logged yet. They are claimed first: a line may be lost, never doubled."""
        if self._unreadable.get(row.id) == row.head:
            return []
        before = await projections.cursor(self._db, NAME, row.id)
        try:
            recorded = await journals.read(self._db, row.id, before)
        except UnknownShape as error:
            message = "A journal cannot be logged by this process."
            log.warning("journal_unreadable", message=message, projection=NAME, session=row.id, error=str(error))
            self._unreadable[row.id] = row.head
            return []
        if not recorded or not await projections.claim(self._db, NAME, row.id, before=before, head=recorded[-1].seq):
            return []
        if len(recorded) == journals.PAGE:
            self.nudge(row.id)
        return recorded

    async def _lines(self, news: _NewEvent) -> list[tuple[datetime, str]]:
        record, is_root = news.record, news.row.side == "root"
        match record.event:
            case events.Prompted(content=content):
                text = "\n\n".join(text_of(one) for one in content)
                lines = self._request_lines(text) if is_root else [line(self._language, "task", text=text)]
            case events.Started() if is_root:
                lines = [*await self._saved(news), *await self._loaded(news)]
            case events.Returned(outcome=Output(content=text)) if await self._is_answer(news):
                lines = [*self._request_lines(text), *await self._saved(news)]
            case events.Finished(answer=answer) if not is_root:
                lines = [line(self._language, "answer", text=answer)]
            case _:
                lines = []
        return [(record.at, text) for text in lines]

    def _request_lines(self, text: str) -> list[str]:
        return [RULE, line(self._language, "request", text=text)]

    async def _saved(self, news: _NewEvent) -> list[str]:
        return [line(self._language, "saved")] if await self._confirmed(news.row.id, news.record.seq) else []

    async def _loaded(self, news: _NewEvent) -> list[str]:
        """The history sizes of all sub-agents when the turn started."""
        lines = []
        for name in await self._subagents(news.row):
            count = await self._remembered(news, name)
            lines.append(line(self._language, "loaded", name=name, count=count))
            if not count:
                lines.append(line(self._language, "empty"))
        return lines

    async def _remembered(self, news: _NewEvent, name: str) -> int:
        owner, conversation = news.row.owner, news.row.conversation_id
        child = await sessions.find(self._db, owner=owner, conversation=conversation, agent=name, side="sub")
        if child is None:
            return 0
        session, began = blank(child), news.record.at
        while page := await journals.read(self._db, child, session.head):
            then = list(takewhile(lambda record: record.at <= began, page))
            session = fold(then, session)
            if len(then) < len(page):
                break
        return min(len(plain.messages_of(session)), CONTEXT_WINDOW)

    async def _is_answer(self, news: _NewEvent) -> bool:
        """Whether this event is a person's answer to a question."""
        event = news.record.event
        if not isinstance(event, events.Returned) or event.by != "user":
            return False
        session = await journals.load(self._db, news.row.id)
        uses = (use for entry in session.transcript if isinstance(entry, Step) for use in entry.uses)
        return any(use.question and use.call == event.call for use in uses)


def _write(folder: Path, owner: str, conversation: str, lines: Sequence[tuple[datetime, str]]) -> None:
    if lines and keys.CHAT_ID.fullmatch(conversation):
        logger = get_session_logger(conversation, owner=owner, folder=folder)
        for at, text in lines:
            write(logger, at, text)
