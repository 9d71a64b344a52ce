"""Agent logs as files, for those who look for them in a folder: one for each session, written anew after each turn."""

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
    """Of agents whose logs have a folder of their own."""

    async def keep(self, session: Session) -> None:
        """Writes the log of a session whose turn ended. Where that cannot be done, the log is missing, nothing else."""
        folder = self.others.get(session.agent, self.path)
        if folder is None or session.turn is None or not session.turn.ended:
            return
        content = msgspec.json.format(msgspec.json.encode(await log_of(self.db, self.catalog, session)), indent=2)
        name = file_name(session.id)
        try:
            await asyncio.to_thread(_write, folder, name, content)
            if await erasure.gone(self.db, [session.id]):
                # Forgotten while we wrote: whoever takes such files away may have been there before us.
                (folder / name).unlink(missing_ok=True)
        except OSError as error:
            log.warning("an agent log cannot be written", session=session.id, error=str(error))


async def log_of(db: Database, catalog: Catalog, session: Session) -> dict[str, Any]:
    turn = session.turn
    template = await catalog.templates.find(session.agent, turn.version if turn else session.opened_version)
    recorded: list[Recorded] = []
    while page := await journals.read(db, session.id, recorded[-1].seq if recorded else 0):
        recorded += page
    return agent_log(session.id, recorded, template)


def file_name(session_id: str) -> str:
    """Named after its session; an id that is no plain name gets one that stays in the folder, and is nobody else's."""
    if _SAFE.fullmatch(session_id):
        return f"{session_id}-log.json"
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", session_id)[:150]
    return f"{plain}-{hashlib.sha256(session_id.encode(errors='surrogatepass')).hexdigest()[:12]}-log.json"


def _write(folder: Path, name: str, content: bytes) -> None:
    """As a whole or not at all, and for our own eyes: a log holds what people said."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f".{uuid.uuid4().hex}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        draft.replace(folder / name)
    finally:
        draft.unlink(missing_ok=True)
