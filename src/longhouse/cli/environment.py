"""Variables of the environment that set nothing: a name with a mistake is told, not passed over."""

import difflib
import os
from collections.abc import Iterator, Mapping
from typing import Final

import structlog

from longhouse import secrets
from longhouse.settings import PREFIX, RENAMED, Settings, variable_of

ELSEWHERE: Final = ("LONGHOUSE_API_KEY", "LONGHOUSE_URL")
"""Variables of clients: the key that they send, and where they send it."""
LIKENESS: Final = 0.75


def problems(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Log key and sentence for each variable that nobody reads, or that has another name by now; never its value."""
    known = {variable_of(name) for name in Settings.model_fields}
    former = {variable_of(old): variable_of(name) for old, name in RENAMED.items()}
    for name in sorted({name.upper() for name in environ if name.upper().startswith(PREFIX)}):
        if name in former:
            yield "setting_renamed", f"{name} is called {former[name]} now: the old name still works."
        elif name not in known and name not in ELSEWHERE and not name.startswith(secrets.PREFIX):
            like = difflib.get_close_matches(name, sorted(known), n=1, cutoff=LIKENESS)
            meant = f"did you mean {like[0]}?" if like else "docs/settings.md lists the settings."
            yield "setting_unknown", f"{name} is no setting, and does nothing: {meant}"


def report() -> None:
    """Logs what was found, at the start of a process that stays."""
    for event, message in problems(os.environ):
        structlog.get_logger().warning(event, message=message)
