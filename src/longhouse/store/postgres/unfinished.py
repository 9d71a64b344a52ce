"""A note in a data folder that a restore has begun: until it ends, no other process opens the folder."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from longhouse.errors import LonghouseError, SetupError
from longhouse.store.postgres import account as accounts

NOTE: Final = "RESTORE-UNFINISHED.txt"


def refuse(data_dir: Path) -> None:
    """Refuses a folder in which a restore was cut off, with what to do about it."""
    with accounts.explained(data_dir):
        try:
            said = (data_dir / NOTE).read_text("utf-8", errors="replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return
    raise SetupError(said)


@contextmanager
def noted(data_dir: Path, source: Path) -> Iterator[None]:
    """Leaves the note while this lasts, and for good if the process is killed or interrupted.

    An error that was told removes it, unless an earlier restore had left one.
    """
    note = data_dir / NOTE
    sentence = (
        f"A restore of {source.absolute()} into {data_dir.absolute()} was cut off, and nothing of it was kept: "
        f"run `longhouse restore` with that file again, or delete {note.absolute()} to go on with what was here before."
    )
    with accounts.explained(data_dir):
        data_dir.mkdir(mode=accounts.PASSAGE if accounts.is_root() else 0o700, parents=True, exist_ok=True)
        was_there = note.exists()
        with note.open("w", encoding="utf-8") as file:
            file.write(f"{sentence}\n")
            file.flush()
            os.fsync(file.fileno())
    try:
        yield
    except LonghouseError:
        if not was_there:
            note.unlink(missing_ok=True)
        raise
    note.unlink(missing_ok=True)
