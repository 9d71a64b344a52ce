"""Session logs as a projection of the journals: the requests, loads, saves and answers of each conversation."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final

import structlog

from longhouse.agents.naming import AGENT_PREFIX
from longhouse.integrations.projector import SWEEP_EVERY, Projector
from longhouse.integrations.redis.keys import CHAT_ID
from longhouse.integrations.session_log import get_session_logger, path_of, write
from longhouse.integrations.session_log_lines import RULE, Language, line
from longhouse.journal import conversation as plain
from longhouse.journal import events
from longhouse.journal.events import Output, Recorded
from longhouse.journal.fold import blank, fold
from longhouse.journal.messages import text_of
from longhouse.store import journals, projections, sessions
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from longhouse.store.erasing.erasure import ErasedSession
from longhouse.store.projections import ProjectionRow

log = structlog.get_logger()

CONTEXT_WINDOW: Final = 50
"""Messages of its history that a sub-agent gets."""

Confirmed = Callable[[str, int], Awaitable[bool]]
"""Whether Redis holds a session up to an event."""


class SessionLog(Projector):
    """Writes the log of each conversation as its journals grow; each event once, in whichever process comes first."""

    name = "session_log"

    def __init__(
        self,
        db: Database,
        folder: Path,
        *,
        language: Language = "en",
        confirmed: Confirmed | None = None,
        sweep_every: float = SWEEP_EVERY,
    ) -> None:
        super().__init__(db, sweep_every=sweep_every)
        self._folder = folder
        self._language = language
        self._catalog = Catalog(db)
        self._confirmed = confirmed
        self.place = f"forgotten {socket.gethostname()} {folder.absolute()}"

    async def project(self, rows: Sequence[ProjectionRow]) -> None:
        news: dict[tuple[str, str], list[tuple[ProjectionRow, Recorded]]] = defaultdict(list)
        # Sub-agents first: the parents' events that led to theirs are then read as well.
        for row in sorted(rows, key=lambda row: row.side == "root"):
            claimed = await self._claimed(row)
            if not row.is_ephemeral:
                news[row.owner, row.conversation_id] += [(row, record) for record in claimed]
        for (owner, conversation), happened in news.items():
            happened.sort(key=lambda one: one[1].at)
            lines = [text for row, record in happened for text in await self._lines(row, record)]
            await asyncio.to_thread(_write, self._folder, owner, conversation, lines)

    async def forget(self, traces: Sequence[ErasedSession]) -> None:
        await self.remove(traces)

    async def remove(self, rows: Sequence[ProjectionRow | ErasedSession]) -> None:
        """Removes the logs of their conversations: the lines of single sessions cannot be told apart in them."""
        logged = {
            path_of(self._folder, one.conversation_id, one.owner)
            for one in rows
            if CHAT_ID.fullmatch(one.conversation_id)
        }
        for path in sorted(logged):
            try:
                await asyncio.to_thread(path.unlink, missing_ok=True)
            except OSError as error:
                message = "The log of an erased session cannot be removed."
                log.warning("erased_file_not_removed", message=message, path=str(path), error=error.strerror)

    async def _claimed(self, row: ProjectionRow) -> list[Recorded]:
        """The events that no process has logged yet. They are claimed first: a line may be lost, never doubled."""
        before = await projections.cursor(self._db, self.name, row.id)
        recorded = await self.readable([row], partial(journals.read, self._db, row.id, before))
        if not recorded or not await projections.claim(
            self._db, self.name, row.id, before=before, head=recorded[-1].seq
        ):
            return []
        if len(recorded) == journals.PAGE:
            self.nudge(row.id)
        return recorded

    async def _lines(self, row: ProjectionRow, record: Recorded) -> list[tuple[datetime, str]]:
        is_root = row.side == "root"
        match record.event:
            case events.Prompted(content=content):
                text = "\n\n".join(text_of(one) for one in content)
                lines = self._request_lines(text) if is_root else [line(self._language, "task", text=text)]
            case events.Started() if is_root:
                lines = [*await self._saved(row, record), *await self._loaded(row, record.at)]
            case events.Returned(outcome=Output(content=text)) as event if await self._is_answer(row, event):
                lines = [*self._request_lines(text), *await self._saved(row, record)]
            case events.Finished(answer=answer) if not is_root:
                lines = [line(self._language, "answer", text=answer)]
            case _:
                lines = []
        return [(record.at, text) for text in lines]

    def _request_lines(self, text: str) -> list[str]:
        return [RULE, line(self._language, "request", text=text)]

    async def _saved(self, row: ProjectionRow, record: Recorded) -> list[str]:
        is_saved = self._confirmed and await self._confirmed(row.id, record.seq)
        return [line(self._language, "saved")] if is_saved else []

    async def _loaded(self, row: ProjectionRow, began: datetime) -> list[str]:
        """The history sizes of all sub-agents when the turn started."""
        lines = []
        for name in await subagents_of(row, self._catalog):
            count = await self._remembered(row, name, began)
            lines.append(line(self._language, "loaded", name=name, count=count))
            if not count:
                lines.append(line(self._language, "empty"))
        return lines

    async def _remembered(self, row: ProjectionRow, name: str, began: datetime) -> int:
        child = await sessions.find(self._db, owner=row.owner, conversation=row.conversation_id, agent=name, side="sub")
        if child is None:
            return 0
        session = blank(child)
        while page := await journals.read(self._db, child, session.head):
            then = list(takewhile(lambda record: record.at <= began, page))
            session = fold(then, session)
            if len(then) < len(page):
                break
        return min(len(plain.messages_of(session)), CONTEXT_WINDOW)

    async def _is_answer(self, row: ProjectionRow, event: events.Returned) -> bool:
        """Whether this event is a person's answer to a question."""
        if event.by in ("", "agent", events.BY_MEMORY):
            return False
        session = await journals.load(self._db, row.id)
        return any(use.question and use.call == event.call for use in session.uses)


async def subagents_of(row: ProjectionRow, catalog: Catalog) -> list[str]:
    """The sub-agents that the template of a session names."""
    template = await catalog.templates.find(row.agent, owner=row.owner)
    tools = template.tool_policy.named if template else ()
    return [name.removeprefix(AGENT_PREFIX) for name in tools if name.startswith(AGENT_PREFIX)]


def _write(folder: Path, owner: str, conversation: str, lines: Sequence[tuple[datetime, str]]) -> None:
    if lines and CHAT_ID.fullmatch(conversation):
        logger = get_session_logger(conversation, owner=owner, folder=folder)
        for at, text in lines:
            write(logger, at, text)
