"""Variables of the environment, and of `.env`, that set nothing: a name with a mistake is told, not passed over."""

import difflib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import structlog
from dotenv import dotenv_values

from longhouse import secrets
from longhouse.settings import PREFIX, RENAMED, Settings, variable_of

ENV_FILE: Final = Path(".env")
ELSEWHERE: Final = ("LONGHOUSE_API_KEY", "LONGHOUSE_URL")
"""Variables of clients: the key that they send, and where they send it."""
LIKENESS: Final = 0.75


def problems(environ: Mapping[str, str], env_file: Path = ENV_FILE) -> Iterator[tuple[str, str]]:
    """Log key and sentence for each variable that nobody reads, or that has another name by now; never its value."""
    known = {variable_of(name) for name in Settings.model_fields}
    former = {variable_of(old): variable_of(name) for old, name in RENAMED.items()}
    for name, where in _given(environ, env_file):
        if name in former:
            yield "setting_renamed", f"{name} is called {former[name]} now{where}: the old name still works."
        elif name not in known and name not in ELSEWHERE and not name.startswith(secrets.PREFIX):
            like = difflib.get_close_matches(name, sorted(known), n=1, cutoff=LIKENESS)
            meant = f"did you mean {like[0]}?" if like else "docs/settings.md lists the settings."
            yield "setting_unknown", f"{name} is no setting, and does nothing{where}: {meant}"


def report() -> None:
    """Logs what was found, at the start of a process that stays."""
    for event, message in problems(os.environ):
        structlog.get_logger().warning(event, message=message)


def _given(environ: Mapping[str, str], env_file: Path) -> Iterator[tuple[str, str]]:
    """Our variables, in upper case as settings are read in any, and where they stand if not in the environment."""
    named = {name.upper() for name in environ}
    for name in sorted(named):
        if name.startswith(PREFIX):
            yield name, ""
    try:
        in_file = dotenv_values(env_file, interpolate=False) if env_file.is_file() else {}
    except (OSError, UnicodeDecodeError):
        return
    for name in sorted({name.upper() for name in in_file} - named):
        if name.startswith(PREFIX):
            yield name, f" ({env_file})"
