"""The folder of Postgres data: where it lies, whom it belongs to, how it is made, how it is served."""

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
# What a socket's address may hold on every system (macOS has the least), less the name Postgres gives it.
LONGEST_SOCKET_FOLDER = 103 - len(f"/.s.PGSQL.{PORT}")
# Both asyncpg and Postgres read a comma as "and"; other unusual characters are not worth finding out.
PLAIN_PATH = re.compile(r"[\w/.+-]+", re.ASCII)

SETTINGS = {
    # Reached over the socket alone, whose folder is closed to others.
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    # A commit is on the disk before it is answered.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # `replica` and not `minimal`: an online backup stays possible, and a migration's commit writes log instead of
    # syncing every table it made.
    "wal_level": "replica",
    # A small machine's neighbour, not its master.
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_logical_replication_workers": "0",
    "jit": "off",
    "autovacuum": "on",
    # No transaction of ours stays open over anything but SQL.
    "idle_in_transaction_session_timeout": "30s",
    "timezone": "UTC",
    # The log tells what happened to the server; what users said stays out of it.
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """Data that is ready to be served."""

    home: Path
    socket: Path
    account: Account | None
    binaries: Binaries

    def command(self) -> list[str]:
        settings = SETTINGS | {"unix_socket_directories": str(self.socket)}
        if self.binaries.major >= 18:
            settings["io_method"] = "sync"  # its helper processes pay off on bigger machines than ours
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self.binaries.path("postgres"), "-D", str(self.home), *options]

    def tidy(self) -> None:
        """Remove the short folder of the socket, if there was one."""
        if self.socket != self.home:
            with suppress(OSError):  # a server that was killed leaves its socket there, for the next one to replace
                self.socket.rmdir()


def dsn(socket: Path | str, database: str = DATABASE) -> str:
    return f"postgresql://{USER}@/{database}?host={quote(str(socket), safe='/')}&port={PORT}"


def settle(data_dir: Path, say: Callable[[str], None]) -> Path:
    """Where the data lies: in the data folder, or behind a link there, so that it is found again after a move."""
    place = data_dir / "postgres"
    if accounts.is_root() and not os.path.lexists(place):
        account = accounts.unprivileged()
        if not account.may_enter(data_dir):
            place.symlink_to(_room(data_dir, account) / "postgres")
            say(f"Postgres runs as {account.name}, who may not enter {data_dir}: its data is in {place.readlink()}.")
    return place.resolve()


def _room(data_dir: Path, account: Account) -> Path:
    """A new folder each time: where the data folder was deleted, old data does not come back by its name."""
    room = Path(tempfile.mkdtemp(prefix=f"{_digest(data_dir)}-", dir=accounts.state_folder(data_dir, account)))
    room.chmod(accounts.PASSAGE)
    return room


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def holder(home: Path) -> Account | None:
    """The account that serves the data; None when that is us."""
    if not accounts.is_root():
        return None
    if not home.exists():
        return accounts.unprivileged()
    account = accounts.owner_of(home)
    if not account.may_enter(home.parent):
        raise SetupError(
            f"The data in {home} belongs to {account.name}, who may not enter {home.parent}: "
            f"move it to where that account may, or start Longhouse as {account.name}."
        )
    return account


def is_made(home: Path, binaries: Binaries) -> bool:
    """Whether there is data, and these programs can serve it."""
    try:
        major = int((home / "PG_VERSION").read_text())
    except FileNotFoundError:
        return False
    if major != binaries.major:
        raise SetupError(
            f"The data in {home} was written by Postgres {major}, but the programs in {binaries.folder} are "
            f"Postgres {binaries.major}: name those of Postgres {major} with LONGHOUSE_PG_BIN."
        )
    return True


Perform = Callable[[list[str], Account | None], Awaitable[None]]


async def make(home: Path, account: Account | None, binaries: Binaries, perform: Perform) -> None:
    """Make new data under another name; it takes its own when it is whole, so a crash leaves nothing that looks so."""
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
    _sync(home.parent)


def _initdb(draft: Path, binaries: Binaries) -> list[str]:
    """Bytes are compared as bytes, while upper and lower case are known for every script (since Postgres 17)."""
    letters = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if binaries.major >= 17 else []
    return [
        *(binaries.path("initdb"), "-D", str(draft), "--username", USER, "--data-checksums"),
        *("--encoding=UTF8", "--locale=C", *letters),
        *("--auth-local=trust", "--auth-host=reject"),  # the socket's folder is the guard
    ]


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def socket_folder(home: Path, account: Account | None) -> Path:
    """The data's own folder, which is closed to others already; a short one of ours where its path is too long."""
    if len(os.fsencode(home)) <= LONGEST_SOCKET_FOLDER and PLAIN_PATH.fullmatch(str(home)):
        return home
    folder = Path(tempfile.gettempdir()) / f"longhouse-{_digest(home)}"
    uid = account.uid if account else os.geteuid()
    try:
        folder.mkdir(mode=0o700)
        os.chown(folder, uid, account.gid if account else -1)
    except FileExistsError:
        _refuse_unless_private(folder, uid)
    return folder


def _refuse_unless_private(folder: Path, uid: int) -> None:
    """Anyone can make a name in the system's folder for temporary files before us."""
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != uid or facts.st_mode & 0o077:
        raise SetupError(
            f"{folder} is not a private folder of ours: remove it, or choose a shorter LONGHOUSE_DATA_DIR."
        )
