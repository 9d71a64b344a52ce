"""A module of a user, beside the files that name what is in it."""

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def own_module(folder: Path, code: str) -> Iterator[str]:
    """Writes a module under a name that no other test has; what it was found and loaded by is taken back."""
    name, before = f"own_{uuid.uuid4().hex[:12]}", list(sys.path)
    (folder / f"{name}.py").write_text(code)
    yield name
    sys.path[:] = before
    sys.modules.pop(name, None)
