"""Fills a folder with programs: once, and completely or not at all."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def placed(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder, filled by the first process and readable for all accounts; abandoned drafts are removed."""
    if folder.exists():
        return folder
    with _locked(folder.parent):
        for abandoned in folder.parent.glob(f"{folder.name}.new-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        if folder.exists():
            return folder
        draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
        try:
            fill(draft)
            for path in (draft, *draft.rglob("*")):
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
            return draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = os.open(folder / "programs.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
