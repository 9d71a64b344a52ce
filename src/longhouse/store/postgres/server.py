"""Starts, attaches to and stops the embedded Postgres: the first process on a data folder owns it, others attach."""

import asyncio
import fcntl
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from longhouse.errors import SetupError
from longhouse.store.postgres import account as accounts
from longhouse.store.postgres import binaries as programs
from longhouse.store.postgres import cluster as clusters
from longhouse.store.postgres import launcher, unfinished
from longhouse.store.postgres.account import Account
from longhouse.store.postgres.binaries import Binaries
from longhouse.store.postgres.cluster import Cluster

TICK = 0.01
# Seconds between checks: an attached process notices within this time that the server has ended.
WATCH_EVERY = 0.2
# Replaying the WAL after a crash may take long; a server that has failed is noticed at once in any case.
START_WITHIN = 120.0
STOP_WITHIN = 10.0
LOG_LIMIT = 5_000_000


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server that accepts connections."""

    dsn: str
    owned: bool  # this process started it, so that no earlier worker can be alive, and it ends with this process
    gone: asyncio.Event  # set when it has ended
    vectors: bool | None  # the extension `vector` works; None: known only to the process that owns it


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The content of a server's `postmaster.pid`."""

    pid: int
    started: str
    socket: str
    status: str


def to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def holds_data(data_dir: Path) -> bool:
    """Whether a Postgres was made in this data folder."""
    with accounts.explained(data_dir):
        return (data_dir / "postgres").is_dir()


def require_data(data_dir: Path) -> None:
    """SetupError where no Postgres was made in this data folder: a command in the wrong folder makes none."""
    if not holds_data(data_dir):
        raise SetupError(
            f"there is no Longhouse in {data_dir.absolute()}: change to the folder where it was started, or"
            " set LONGHOUSE_DATA_DIR or LONGHOUSE_DATABASE_URL."
        )


@asynccontextmanager
async def open_postgres(
    data_dir: Path,
    *,
    binaries: Path | None = None,
    report: Callable[[str], None] = to_stderr,
    restores: bool = False,
    processes: int = 1,
) -> AsyncIterator[Postgres]:
    """A Postgres on this data folder: started by the first process, which owns it; the others attach to it.

    A folder whose restore was cut off is opened by a process that `restores` alone. `processes`: how many will serve
    from it, each with connections of its own.
    """
    data_dir = data_dir.absolute()  # noqa: ASYNC240 - no file is touched
    if not restores:
        unfinished.refuse(data_dir)
    with _lock(data_dir) as lock:
        other = await _other(data_dir, lock)
        server = _attached(data_dir, other) if other else _owned(data_dir, lock, binaries, report, processes)
        async with server as postgres:
            yield postgres


# The lock that decides which process owns the server


@contextmanager
def _lock(data_dir: Path) -> Iterator[int]:
    """The open lock file, which the owner and its Postgres both hold locked: if it is free, both have ended."""
    with accounts.explained(data_dir):
        data_dir.mkdir(mode=accounts.PASSAGE if accounts.is_root() else 0o700, parents=True, exist_ok=True)
        lock = os.open(data_dir / "postgres.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        yield lock
    finally:
        os.close(lock)


async def _other(data_dir: Path, lock: int) -> Postmaster | None:
    """The server of another process, once it answers; None once this process holds the lock."""
    deadline = time.monotonic() + START_WITHIN
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
        with accounts.explained(data_dir):
            server = _postmaster(data_dir / "postgres")
        if server and server.status == "ready" and await _answers(server):
            return server
        if time.monotonic() > deadline:
            raise SetupError(f"Another process holds {data_dir}, but its Postgres does not answer: end that process.")
        await asyncio.sleep(TICK)


async def _answers(server: Postmaster) -> bool:
    try:
        connection = await asyncpg.connect(clusters.dsn(server.socket), timeout=10)
    except (OSError, asyncpg.PostgresError):  # not yet, or no longer
        return False
    await connection.close()
    return True


# Attaching to the server of another process


@asynccontextmanager
async def _attached(data_dir: Path, server: Postmaster) -> AsyncIterator[Postgres]:
    def is_up() -> bool:
        return _postmaster(data_dir / "postgres") == server and _is_postgres(server.pid)

    async with _watched(server.pid, is_up) as gone:
        yield Postgres(dsn=clusters.dsn(server.socket), owned=False, gone=gone, vectors=None)


def _postmaster(home: Path) -> Postmaster | None:
    """The server that serves this data, or did last; it writes the file line by line, so lines may be missing."""
    try:
        lines = (home / "postmaster.pid").read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    if not lines or not lines[0].isdecimal():
        return None
    lines += [""] * (8 - len(lines))
    return Postmaster(pid=int(lines[0]), started=lines[2], socket=lines[4], status=lines[7].strip())


def _is_postgres(pid: int) -> bool:
    """Whether a Postgres runs under this number: after a crash it may have gone to another program."""
    try:
        return b"postgres" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return not Path("/proc/self").exists() and _exists(pid)  # macOS does not tell: better to wait in vain


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@asynccontextmanager
async def _watched(pid: int, is_up: Callable[[], bool]) -> AsyncIterator[asyncio.Event]:
    """An event that is set when the server, which runs under this number, is no longer up."""
    gone = asyncio.Event()

    def is_gone() -> bool:
        try:
            return not is_up()
        except OSError:  # for example too many open files: that says nothing about the server
            return False

    async def watch() -> None:
        await _exited(pid)
        await _until(is_gone, within=math.inf, every=WATCH_EVERY)
        gone.set()

    watching = asyncio.create_task(watch())
    try:
        yield gone
    finally:
        watching.cancel()
        await asyncio.wait((watching,))


async def _exited(pid: int) -> None:
    """Waits until the process has ended, without looking again and again; returns at once where the system cannot."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, an old kernel, or it has ended already
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        loop.add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)
    finally:
        os.close(handle)


# Starting and stopping the server that this process owns


@asynccontextmanager
async def _owned(
    data_dir: Path, lock: int, binaries: Path | None, report: Callable[[str], None], processes: int
) -> AsyncIterator[Postgres]:
    with _log(data_dir) as log:
        cluster = await _prepared(data_dir, lock, binaries, report, log)
        with _launched(cluster.command(processes), cluster.account, cluster.binaries, lock, log) as process:
            try:
                await _ready(process, cluster, log)
                await _create_database(cluster)
                async with _watched(process.pid, lambda: process.poll() is None) as gone:
                    dsn, vectors = clusters.dsn(cluster.socket), cluster.binaries.vectors
                    yield Postgres(dsn=dsn, owned=True, gone=gone, vectors=vectors)
            finally:
                await _stop(process)
                cluster.tidy()


def _launched(
    command: list[str], account: Account | None, binaries: Binaries, lock: int, log: "Log"
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A Postgres program that shares the lock: no other process can start while a program left behind still runs."""
    return launcher.launched(command, account=account, env=binaries.environment, log=log.handle, share=(lock,))


@dataclass(frozen=True, slots=True)
class Log:
    """The log file of Postgres, with the offset at which this start begins."""

    path: Path
    handle: int
    start: int

    def reason(self) -> str:
        """The log line that says why the start failed."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            lines = file.read().decode(errors="replace").splitlines() or ["it printed nothing"]
        errors = [line for line in lines if any(word in line for word in ("FATAL", "PANIC", "error:"))]
        return (errors or lines)[-1]


@contextmanager
def _log(data_dir: Path) -> Iterator[Log]:
    path = data_dir / "postgres.log"
    with accounts.explained(data_dir):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        if os.fstat(handle).st_size > LOG_LIMIT:
            os.ftruncate(handle, 0)
    try:
        yield Log(path=path, handle=handle, start=os.fstat(handle).st_size)
    finally:
        os.close(handle)


async def _prepared(
    data_dir: Path, lock: int, binaries: Path | None, report: Callable[[str], None], log: Log
) -> Cluster:
    """A data directory that is ready to be served; created if there is none."""

    async def perform(command: list[str], account: Account | None) -> None:
        with _launched(command, account, tools, lock, log) as process:
            if not await _until(lambda: process.poll() is not None, within=START_WITHIN) or process.returncode:
                raise SetupError(f"Postgres could not create its data: {log.reason()} (more in {log.path}).")

    with accounts.explained(data_dir):
        home = clusters.locate_data(data_dir, report)
        account = clusters.holder(home)
        source = programs.BinarySource(account, accounts.state_folder(data_dir, account), report)
        tools = source.find(binaries, major=clusters.major_of(home))
        if not clusters.is_made(home, tools):
            await clusters.make(home, account, tools, perform)
        _remove_stale_pid_file(home)
        return Cluster(home=home, socket=clusters.socket_folder(home, account), account=account, binaries=tools)


def _remove_stale_pid_file(home: Path) -> None:
    """Removes a stale `postmaster.pid` whose pid now belongs to another program, which Postgres takes for a server."""
    server = _postmaster(home)
    if server is None or not _exists(server.pid):
        return
    if _is_postgres(server.pid):
        raise SetupError(
            f"A Postgres that Longhouse did not start (process {server.pid}) serves {home}: stop it, "
            "or remove postmaster.pid there if it serves something else."
        )
    (home / "postmaster.pid").unlink(missing_ok=True)


async def _ready(process: subprocess.Popen[bytes], cluster: Cluster, log: Log) -> None:
    def is_decided() -> bool:
        server = _postmaster(cluster.home)
        return process.poll() is not None or (
            server is not None and (server.pid, server.status) == (process.pid, "ready")
        )

    if not await _until(is_decided, within=START_WITHIN) or process.poll() is not None:
        raise SetupError(f"Postgres did not start: {log.reason()} (more in {log.path}).")


async def _create_database(cluster: Cluster) -> None:
    connection = await asyncpg.connect(clusters.dsn(cluster.socket, "postgres"), timeout=10)
    try:
        if not await connection.fetch("SELECT FROM pg_database WHERE datname = $1", clusters.DATABASE):
            await connection.execute(f"CREATE DATABASE {clusters.DATABASE}")
    finally:
        await connection.close()


async def _stop(process: subprocess.Popen[bytes]) -> None:
    """Fast shutdown, so that the next start has no WAL to replay; if that takes too long, immediate shutdown."""
    for how in (signal.SIGINT, signal.SIGQUIT):
        if process.poll() is not None:
            return
        process.send_signal(how)
        await _until(lambda: process.poll() is not None, within=STOP_WITHIN)


async def _until(is_done: Callable[[], bool], *, within: float, every: float = TICK) -> bool:
    deadline = time.monotonic() + within
    while not is_done():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(every)
    return True
