"""Session logs: one file for each conversation, for people who watch what is remembered.

Each line opens, appends and closes the file: no file stays open, however many conversations there are.
"""

import hashlib
import logging
import os
import re
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final

import structlog

from longhouse.errors import CallerError
from longhouse.integrations.redis import keys

log = structlog.get_logger()

FOLDER: Final = "memory_sessions"
LOG_DIRS: Final = ("LONGHOUSE_SESSION_LOG_DIR", "LONGHOUSE_LOG_DIR")
"""The variables that name the folder: the second is its former name."""
_BREAKS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def get_session_logger(chat_id: int | str, *, owner: str = keys.LOCAL, folder: Path | None = None) -> logging.Logger:
    """The logger of one conversation: `{folder}/memory_sessions/memory_{chat_id}.log`.

    The folder is LONGHOUSE_SESSION_LOG_DIR, or `logs`. Each owner but the local one has a folder of its own in it.
    """
    name = str(chat_id)
    if not keys.CHAT_ID.fullmatch(name):
        allowed = "1 to 128 of the characters A-Z a-z 0-9 . _ : @ -, and not dots alone"
        raise CallerError(f"chat_id must be {allowed}.", param="chat_id")
    named = next((found for one in LOG_DIRS if (found := os.environ.get(one))), "logs")
    return _logger(name, owner, folder or Path(named))


@lru_cache(maxsize=256)
def _logger(name: str, owner: str, folder: Path) -> logging.Logger:
    # Not from the registry of `logging`, which would keep the logger of every conversation for ever.
    logger = logging.Logger(f"session_{name}", logging.INFO)
    logger.addHandler(_Lines(path_of(folder, name, owner)))
    return logger


def path_of(folder: Path, name: str, owner: str) -> Path:
    """The path of a conversation's log: the name was validated, and the owner is encoded."""
    home = folder / FOLDER
    return (home if owner == keys.LOCAL else home / f"owner_{_short(keys.plain_owner(owner))}") / f"memory_{name}.log"


def _short(word: str) -> str:
    """Shortens a name to fit the file system's limit of 255 bytes."""
    return word if len(word) <= 200 else f"{word[:150]}_{hashlib.sha256(word.encode()).hexdigest()[:32]}"


def write(logger: logging.Logger, at: datetime, text: str) -> None:
    """Logs a line with the given time."""
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, text, (), None)
    record.created = at.timestamp()
    logger.handle(record)


class _Lines(logging.Handler):
    """Appends each record to a file that is open only during the write."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.setFormatter(logging.Formatter("%(asctime)s - %(message)s", datefmt="%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        # One record is one line: user text must not look like records of this program.
        line = _BREAKS.sub(" ", self.format(record)) + "\n"
        # Readable by the owner only, as a log holds what people said; symbolic links are not followed.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(self._path, flags, 0o600), "ab") as file:
                file.write(line.encode(errors="replace"))
        except OSError as error:
            message = "A session log cannot be written."
            log.warning("session_log_write_failed", message=message, path=str(self._path), error=str(error))
