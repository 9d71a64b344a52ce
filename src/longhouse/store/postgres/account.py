"""The unprivileged account that Postgres runs under when Longhouse runs as root, and the folders it may reach."""

import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from longhouse.errors import SetupError

# `postgres` exists only to own databases; `nobody` is shared with all services that have no account of their own, so it
# comes last, for machines without a better one.
CANDIDATES = ("postgres", "_postgres", "nobody")
# Other accounts may enter a path that they know, but cannot list the folder.
PASSAGE = 0o711


@dataclass(frozen=True, slots=True)
class Account:
    """An unprivileged account, by uid and gid: the owner of old data may no longer have a name."""

    uid: int
    gid: int
    name: str

    def may_enter(self, folder: Path) -> bool:
        """Whether the account can enter the folder; the kernel decides, since it knows access lists and mounts."""
        return run(["/bin/sh", "-c", 'test -x "$0"', str(folder)], self).returncode == 0


def unprivileged() -> Account:
    """The account that owns new data when Longhouse runs as root."""
    for name in CANDIDATES:
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return Account(uid=entry.pw_uid, gid=entry.pw_gid, name=name)
    raise SetupError(
        "Postgres refuses to run as root and this machine has no account named postgres or nobody: "
        "start Longhouse as a plain user, or set LONGHOUSE_DATABASE_URL."
    )


def owner_of(folder: Path) -> Account:
    """The account that owns existing data: Postgres serves a folder only as its owner."""
    facts = folder.stat()
    try:
        name = pwd.getpwuid(facts.st_uid).pw_name
    except KeyError:
        name = f"number {facts.st_uid}"
    return Account(uid=facts.st_uid, gid=facts.st_gid, name=name)


@contextmanager
def explained(data_dir: Path) -> Iterator[None]:
    """Turns an OSError about files of a data folder into one sentence that says what to do."""
    try:
        yield
    except OSError as error:
        raise SetupError(
            f"The data folder {data_dir} cannot be used ({error.strerror}: {error.filename}): "
            "start as the account it belongs to, or choose another with LONGHOUSE_DATA_DIR."
        ) from error


def is_root() -> bool:
    return os.geteuid() == 0


def environment() -> dict[str, str]:
    """The environment variables for Postgres: without API keys of model providers, and without PG* variables."""
    return {"LC_ALL": "C"} | {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}


def run(
    command: Sequence[str],
    account: Account | None,
    env: dict[str, str] | None = None,
    *,
    stdin: str = "",
    timeout: float = 30,
) -> subprocess.CompletedProcess[str]:
    """Runs a short command under the account; PermissionError if the account may not execute it."""
    return subprocess.run(  # noqa: S603 - the commands are ours
        command,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        cwd="/",
        env=environment() if env is None else env,
        input=stdin,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def state_folder(data_dir: Path, account: Account | None) -> Path:
    """The folder for files that several data folders share, and for those that the account cannot reach elsewhere.

    It is the state directory that systemd gives to a service, else /var/lib for root and the XDG state folder for other
    users. If it is not writable, or the account cannot enter it, the data folder is used.
    """
    if named := os.environ.get("STATE_DIRECTORY", "").partition(":")[0]:
        folder = Path(named)
    elif is_root():
        folder = Path("/var/lib/longhouse")
    else:
        folder = Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "longhouse"
    if not folder.is_absolute():  # the user has no home directory
        return data_dir
    with suppress(OSError):
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(PASSAGE)  # just created by this process: the account may pass, whatever the umask is
        if os.access(folder, os.W_OK | os.X_OK) and (account is None or account.may_enter(folder)):
            return folder
    return data_dir
