"""Agent logs as JSON files: one for each session, rewritten after each turn."""

import asyncio
import hashlib
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog

from longhouse.integrations.agent_log import agent_log
from longhouse.journal.events import Recorded
from longhouse.journal.session import Session
from longhouse.store import erasure, journals
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database

log = structlog.get_logger()

_SAFE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class LogFolder:
    db: Database
    catalog: Catalog
    path: Path | None
    others: Mapping[str, Path] = field(default_factory=dict)
    """Folders of single agents, by agent name."""

    async def keep(self, session: Session) -> None:
        """Writes the log of a session whose turn ended. A failure is only logged: the session goes on."""
        folder = self.others.get(session.agent, self.path)
        if folder is None or session.turn is None or not session.turn.ended:
            return
        content = msgspec.json.format(msgspec.json.encode(await log_of(self.db, self.catalog, session)), indent=2)
        name = file_name(session.id)
        try:
            await asyncio.to_thread(_write, folder, name, content)
            if await erasure.gone(self.db, [session.id]):
                # Erased while it was written: the eraser may have removed the file before this write.
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            message = "An agent log cannot be written."
            log.warning("agent_log_write_failed", message=message, session=session.id, error=str(error))


async def log_of(db: Database, catalog: Catalog, session: Session) -> dict[str, Any]:
    turn = session.turn
    template = await catalog.templates.find(session.agent, turn.version if turn else session.version)
    recorded: list[Recorded] = []
    while page := await journals.read(db, session.id, recorded[-1].seq if recorded else 0):
        recorded += page
    return agent_log(session.id, recorded, template)


def file_name(session_id: str) -> str:
    """The file name of a session; an id with other characters gets a safe and unique name."""
    if _SAFE.fullmatch(session_id):
        return f"{session_id}-log.json"
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", session_id)[:150]
    return f"{plain}-{hashlib.sha256(session_id.encode(errors='surrogatepass')).hexdigest()[:12]}-log.json"


def _write(folder: Path, name: str, content: bytes) -> None:
    """Writes atomically, and readable by the owner only: a log holds what people said."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f".{uuid.uuid4().hex}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        draft.replace(folder / name)
    finally:
        draft.unlink(missing_ok=True)
