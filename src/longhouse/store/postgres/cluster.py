"""The Postgres data directory (the cluster): its location, owner, creation with initdb, and server settings."""

import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from longhouse.errors import SetupError
from longhouse.store.postgres import account as accounts
from longhouse.store.postgres.account import Account
from longhouse.store.postgres.binaries import Binaries

USER = "longhouse"
DATABASE = "longhouse"
PORT = 5432
# The longest socket address that every system allows (macOS has the shortest), less the socket's file name.
LONGEST_SOCKET_FOLDER = 103 - len(f"/.s.PGSQL.{PORT}")
# asyncpg and Postgres both read a comma as a separator; other unusual characters are avoided too.
PLAIN_PATH = re.compile(r"[\w/.+-]+", re.ASCII)

# Enough for a process that serves, and for workers and commands beside it.
CONNECTIONS = 100
CONNECTIONS_OF_EACH = 25  # further process that serves: 22 at most, and some to spare

SETTINGS = {
    # Reachable only through the Unix socket, whose folder is closed to other accounts.
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    # A commit is on disk before it is acknowledged.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # `replica` and not `minimal`: an online backup stays possible, and a migration's commit writes WAL instead of
    # syncing every table that it created.
    "wal_level": "replica",
    # Modest use of a small machine that also runs other programs.
    "shared_buffers": "128MB",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "autovacuum": "on",
    # No transaction of Longhouse stays open while something other than SQL runs.
    "idle_in_transaction_session_timeout": "30s",
    "timezone": "UTC",
    # The log has events of the server; statements with users' texts stay out of it.
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A data directory that is ready to be served."""

    home: Path
    socket: Path
    account: Account | None
    binaries: Binaries

    def command(self, processes: int = 1) -> list[str]:
        most = CONNECTIONS + CONNECTIONS_OF_EACH * (processes - 1)
        settings = SETTINGS | {"unix_socket_directories": str(self.socket), "max_connections": str(most)}
        if self.binaries.major >= 18:
            settings["io_method"] = "sync"  # worker processes for I/O pay off only on big machines
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self.binaries.path("postgres"), "-D", str(self.home), *options]

    def tidy(self) -> None:
        """Removes the separate folder of the socket, if there is one."""
        if self.socket != self.home:
            with suppress(OSError):  # a killed server leaves its socket there, and the next one replaces it
                self.socket.rmdir()


def dsn(socket: Path | str, database: str = DATABASE) -> str:
    return f"postgresql://{USER}@/{database}?host={quote(str(socket), safe='/')}&port={PORT}"


def locate_data(data_dir: Path, report: Callable[[str], None]) -> Path:
    """The location of the data: in the data folder, or elsewhere behind a symlink in it, which moves along with it."""
    place = data_dir / "postgres"
    if accounts.is_root() and not os.path.lexists(place):
        account = accounts.unprivileged()
        if not account.may_enter(data_dir):
            # A random name: if the data folder is deleted and made again, it does not get the old data.
            state = accounts.state_folder(data_dir, account)
            folder = Path(tempfile.mkdtemp(prefix=f"{_digest(data_dir)}-", dir=state))
            folder.chmod(accounts.PASSAGE)
            place.symlink_to(folder / "postgres")
            report(f"Postgres runs as {account.name}, who may not enter {data_dir}: its data is in {place.readlink()}.")
    return place.resolve()


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def holder(home: Path) -> Account | None:
    """The account that serves the data; None for the account of this process."""
    if not accounts.is_root():
        return None
    if not home.exists():
        return accounts.unprivileged()
    account = accounts.owner_of(home)
    if account.uid == 0:
        name = accounts.unprivileged().name
        raise SetupError(
            f"The data in {home} belongs to root, and Postgres does not run as root: chown -R {name} {home}"
        )
    if not account.may_enter(home.parent):
        raise SetupError(
            f"The data in {home} belongs to {account.name}, who may not enter {home.parent}: "
            f"move it to where that account may, or start Longhouse as {account.name}."
        )
    return account


def major_of(home: Path) -> int | None:
    """The major version of the Postgres that wrote the data; None if there is none."""
    try:
        return int((home / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def is_made(home: Path, binaries: Binaries) -> bool:
    """Whether there is data; refuses data of another major version than that of the programs."""
    major = major_of(home)
    if major is not None and major != binaries.major:
        raise SetupError(
            f"The data in {home} was written by Postgres {major}, but the programs in {binaries.folder} are "
            f"Postgres {binaries.major}: run `longhouse backup FILE` with the Longhouse that wrote it, or here with "
            f"programs of Postgres {major} named by LONGHOUSE_PG_BIN, and then `longhouse restore FILE` with a new "
            "LONGHOUSE_DATA_DIR."
        )
    return major is not None


Perform = Callable[[list[str], Account | None], Awaitable[None]]


async def make(home: Path, account: Account | None, binaries: Binaries, perform: Perform) -> None:
    """Creates the data under a temporary name and renames it when complete, so that a crash leaves no partial data."""
    for abandoned in home.parent.glob(f"{home.name}.new-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{home.name}.new-", dir=home.parent))
    try:
        if account is not None:
            os.chown(draft, account.uid, account.gid)
        await perform(_initdb(draft, binaries), account)
        os.rename(draft, home)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    handle = os.open(home.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _initdb(draft: Path, binaries: Binaries) -> list[str]:
    """The initdb command: text sorts by bytes; upper and lower case work for every script (since Postgres 17)."""
    letters = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if binaries.major >= 17 else []
    return [
        *(binaries.path("initdb"), "-D", str(draft), "--username", USER, "--data-checksums"),
        *("--encoding=UTF8", "--locale=C", *letters),
        *("--auth-local=trust", "--auth-host=reject"),  # access is controlled by the socket's folder
    ]


def socket_folder(home: Path, account: Account | None) -> Path:
    """The data directory, which is closed to other accounts; a short private folder where its path is too long."""
    if len(os.fsencode(home)) <= LONGEST_SOCKET_FOLDER and PLAIN_PATH.fullmatch(str(home)):
        return home
    folder = Path(tempfile.gettempdir()) / f"longhouse-{_digest(home)}"
    uid = account.uid if account else os.geteuid()
    try:
        folder.mkdir(mode=0o700)
        os.chown(folder, uid, account.gid if account else -1)
    except FileExistsError:
        # Another account may have created the name first: the system's temporary folder is open to all.
        facts = folder.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != uid or facts.st_mode & 0o077:
            raise SetupError(
                f"{folder} is not a private folder of Longhouse: remove it, or choose a shorter LONGHOUSE_DATA_DIR."
            ) from None
    return folder
