"""The account that Postgres runs under when we are root, and what that account may reach."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longhouse.errors import SetupError

# `postgres` exists to own databases and nothing else; `nobody` is shared with whatever else was given no account
# of its own, so it comes last, for machines that have no better one.
CANDIDATES = ("postgres", "_postgres", "nobody")
# Others may pass through to a name that they know, but list nothing.
PASSAGE = 0o711


@dataclass(frozen=True, slots=True)
class Account:
    """An account without rights, by its numbers: the owner of old data may have no name any more."""

    uid: int
    gid: int
    name: str

    def may_enter(self, folder: Path) -> bool:
        """Whether it gets through to the folder: the kernel is asked, since it knows access lists and mounts."""
        return run(["/bin/sh", "-c", 'test -x "$0"', str(folder)], self).returncode == 0


def unprivileged() -> Account:
    """Whom root gives new data to."""
    for name in CANDIDATES:
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(uid=entry.pw_uid, gid=entry.pw_gid, name=name)
    raise SetupError(
        "Postgres refuses to run as root and this machine has no account named postgres or nobody: "
        "start Longhouse as a plain user, or set LONGHOUSE_DATABASE_URL."
    )


def owner_of(folder: Path) -> Account:
    """Whom existing data belongs to: Postgres serves a folder only for its owner."""
    facts = folder.stat()
    try:
        name = pwd.getpwuid(facts.st_uid).pw_name
    except KeyError:
        name = f"number {facts.st_uid}"
    return Account(uid=facts.st_uid, gid=facts.st_gid, name=name)


def is_root() -> bool:
    return os.geteuid() == 0


def environment() -> dict[str, str]:
    """What Postgres needs of ours: no keys of model providers, no PG* that would change its mind."""
    return {"LC_ALL": "C"} | {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}


def run(
    command: Sequence[str],
    account: Account | None,
    env: dict[str, str] | None = None,
    *,
    said: str = "",
    within: float = 30,
) -> subprocess.CompletedProcess[str]:
    """Run a command that soon answers, under the account; PermissionError when it may not even start it."""
    return subprocess.run(  # noqa: S603 - the commands are ours
        command,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        cwd="/",
        env=environment() if env is None else env,
        input=said,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=within,
        check=False,
    )


def state_folder(data_dir: Path, account: Account | None) -> Path:
    """Where what several data folders share is kept, and what the account cannot reach elsewhere.

    It is the folder that systemd names to a service, else the system's for root and the user's own for others. Where
    we cannot write there, or the account cannot enter, the data folder holds all.
    """
    folder = _state_folder()
    if not folder.is_absolute():  # nobody's home
        return data_dir
    with suppress(OSError):
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(PASSAGE)  # ours, made a moment ago: whatever the umask is, the account passes
        if os.access(folder, os.W_OK | os.X_OK) and (account is None or account.may_enter(folder)):
            return folder
    return data_dir


def _state_folder() -> Path:
    if named := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        return Path(named)
    if is_root():
        return Path("/var/lib/longhouse")
    return Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "longhouse"
