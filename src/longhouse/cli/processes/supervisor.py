"""`longhouse serve --workers N`: starts the processes that serve, starts one again that has died, and ends them.

The port is taken and the embedded Postgres started here, once. It loads little, and has no part in any request.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog
import typer

from longhouse.cli.house import POSTGRES_ENDED, open_ready
from longhouse.cli.processes.child import Child, ChildFailed, ChildReady, ChildReport
from longhouse.cli.processes.listening import check_start, greet, listening
from longhouse.errors import SetupError
from longhouse.settings import Settings

log = structlog.get_logger()

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
AGAIN_AFTER: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds before a process is started again that has died; longer each time."""
LEAVE_WITHIN: Final = 30.0
"""Seconds to leave after the first signal: more than a process needs whose event loop runs."""
STEADY: Final = 60.0
"""Seconds after which a process that dies counts as the first that does."""
MOST_FAILED: Final = 5
"""Starts of a process that may fail in a row while others serve."""
LONGEST_FOLDER: Final = 103 - len("/64")
"""Bytes: paths of sockets are bounded, on macOS by the fewest."""


async def supervise(settings: Settings) -> None:
    """Serves with several processes until a signal comes."""
    await check_start(settings)
    number = settings.serve_workers
    with (
        listening(settings.host, settings.port) as first,
        sharing(first, number) as listeners,
    ):
        async with open_ready(settings, create=True) as (_, postgres):
            with private_folder() as folder:
                supervisor = Supervisor(listeners, number, folder)
                await supervisor.run(postgres.gone if postgres else asyncio.Event())


@contextmanager
def sharing(first: socket.socket, number: int) -> Iterator[list[socket.socket]]:
    """Sockets on one port, one for each process: among these Linux spreads connections evenly.

    At a socket that all share, whoever wakes up first takes most of those that come together. Elsewhere they share one.
    """
    with ExitStack() as stack:
        sockets = [first]
        if sys.platform == "linux":
            # Only now: with this option from the beginning, a second server could take the same port.
            first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            for _ in range(number - 1):
                one = stack.enter_context(socket.socket(first.family, socket.SOCK_STREAM))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind(first.getsockname())
                one.listen()
                sockets.append(one)
        yield sockets


@contextmanager
def private_folder() -> Iterator[str]:
    """A folder that no other account may enter, for the sockets at which the processes reach each other."""
    try:
        made = tempfile.TemporaryDirectory(prefix="longhouse-", ignore_cleanup_errors=True)
    except OSError as error:
        raise SetupError(
            f"several processes need a folder for temporary files, and there is none ({error.strerror}): "
            "set TMPDIR to one that can be written."
        ) from error
    with made as folder:
        if len(os.fsencode(folder)) > LONGEST_FOLDER:
            raise SetupError(f"the path of {folder} is too long for sockets: set TMPDIR to a shorter one.")
        yield folder


@dataclass(slots=True)
class ChildPlace:
    """One of the processes, as long as the supervisor lives: another one takes its place when it dies."""

    number: int
    process: asyncio.subprocess.Process | None = None
    report: ChildReport | None = None
    """By the process that is there now."""

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal to the process; False if there is none."""
        if self.process is None or self.process.returncode is not None:
            return False
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        return True


class Supervisor:
    def __init__(self, listeners: Sequence[socket.socket], number: int, folder: str) -> None:
        self._listeners = listeners
        self._folder = folder
        self._places = [ChildPlace(nth) for nth in range(number)]
        self._is_ready = asyncio.Event()
        """All processes were ready once."""
        self._leaving = asyncio.Event()
        self._told_by = signal.SIGTERM
        """The signal that came first."""

    async def run(self, postgres_ended: asyncio.Event) -> None:
        """Until a signal comes, a process cannot be started, or Postgres has ended; then ends all processes."""
        self._on_signals()
        kept = [asyncio.create_task(self._keep(place)) for place in self._places]
        others = [asyncio.create_task(one.wait()) for one in (self._leaving, postgres_ended)]
        await asyncio.wait([*kept, *others], return_when=asyncio.FIRST_COMPLETED)
        failed = [place.report for place, task in zip(self._places, kept, strict=True) if task.done()]
        for one in others:
            one.cancel()
        if not self._leaving.is_set():
            self.leave()
        await asyncio.wait(kept, timeout=LEAVE_WITHIN)
        self._kill_late()
        codes = await asyncio.gather(*kept)
        if postgres_ended.is_set():
            raise SetupError(POSTGRES_ENDED)
        if failed and isinstance(failed[0], ChildFailed):
            raise SetupError(failed[0].sentence)
        if code := max(codes) or min(codes):
            # A process that was still starting died of our SIGTERM: the exit code tells the signal that we got.
            ended_by = self._told_by if code == -signal.SIGTERM else -code
            raise typer.Exit(code if code > 0 else 128 + ended_by)

    def leave(self) -> None:
        """Lets all processes leave; if called again, they end at once, also those that stand still."""
        how = signal.SIGKILL if self._leaving.is_set() else signal.SIGTERM
        self._leaving.set()
        for one in self._listeners:
            one.close()
        for place in self._places:
            place.send(how)

    def _kill_late(self) -> None:
        """Ends those that did not leave: one whose event loop stands still would keep all others waiting."""
        for place in self._places:
            if place.send(signal.SIGKILL):
                reason = f"it did not leave within {LEAVE_WITHIN:.0f} seconds"
                log.error("serving_process_ended", process=place.number + 1, reason=reason, again_in=None)

    def _on_signals(self) -> None:
        """The first signal lets all leave, the second ends them at once, the third ends this process too."""
        loop, came = asyncio.get_running_loop(), 0

        def on_signal(one: signal.Signals) -> None:
            nonlocal came
            came += 1
            self._told_by = one if came == 1 else self._told_by
            self.leave()
            if came > 1:
                for name in SIGNALS:
                    loop.remove_signal_handler(name)

        for name in SIGNALS:
            loop.add_signal_handler(name, on_signal, name)

    async def _keep(self, place: ChildPlace) -> int:
        """Keeps a process there until all leave; ends with its exit code, also if it cannot be started."""
        loop, failed, died = asyncio.get_running_loop(), 0, 0
        while True:
            began = loop.time()
            code = await self._one(place)
            if self._leaving.is_set():
                return code
            was_ready = isinstance(place.report, ChildReady)
            failed = 0 if was_ready else failed + 1
            is_over = failed > (MOST_FAILED if self._is_ready.is_set() else 0)
            died = 1 if was_ready and loop.time() - began > STEADY else died + 1
            seconds = None if is_over else AGAIN_AFTER[min(died, len(AGAIN_AFTER)) - 1]
            if not is_over or not isinstance(place.report, ChildFailed):
                reason = _reason(place, code)
                log.error("serving_process_ended", process=place.number + 1, reason=reason, again_in=seconds)
            if is_over:
                return code or 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), seconds)
            if self._leaving.is_set():
                return 0

    async def _one(self, place: ChildPlace) -> int:
        """Starts a process, and waits until it has ended."""
        place.report = None
        try:
            process, channel = await self._start(place)
        except OSError as error:  # there is no memory left for it, or there are no files
            place.report = ChildFailed(f"a process of `longhouse serve` cannot be started ({error.strerror}).")
            return 1
        if self._leaving.is_set():  # while it was started
            place.send(signal.SIGTERM)
        reader, writer = await asyncio.open_connection(sock=channel)
        if line := await reader.readline():
            place.report = msgspec.json.decode(line, type=ChildReport)
            self._on_report(place, place.report)
        code = await process.wait()
        writer.close()
        return code

    async def _start(self, place: ChildPlace) -> tuple[asyncio.subprocess.Process, socket.socket]:
        """A process, and the channel by which it tells what became of its start."""
        ours, theirs = socket.socketpair()
        with ExitStack() as unless_started, theirs:
            unless_started.enter_context(ours)
            child = Child(
                channel=theirs.fileno(),
                listeners=[one.fileno() for one in self._listeners],
                number=place.number,
                of=len(self._places),
                folder=self._folder,
            )
            # A new process session: Ctrl-C reaches only this process, which then lets the others leave.
            place.process = process = await asyncio.create_subprocess_exec(
                *_command(child), pass_fds=[child.channel, *child.listeners], start_new_session=True
            )
            unless_started.pop_all()
        return process, ours

    def _on_report(self, place: ChildPlace, report: ChildReport) -> None:
        if self._is_ready.is_set() and isinstance(report, ChildReady):
            assert place.process is not None
            log.info("serving_process_started", process=place.number + 1, pid=place.process.pid)
        elif all(isinstance(one.report, ChildReady) for one in self._places):
            self._is_ready.set()
            if self._leaving.is_set():  # the port is closed already
                return
            assert isinstance(report, ChildReady)
            greet(self._listeners[0], is_open=report.is_open, is_demo=report.is_demo)
            typer.echo(processes_line([place.process.pid for place in self._places if place.process]))


def _command(child: Child) -> list[str]:
    """This command again, for one process; what it is told last counts."""
    told = msgspec.json.encode(child).decode()
    # Python would look for modules in this folder, whosever it is, before all others; unless this process does so too.
    safe_path = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]
    return [sys.executable, *safe_path, "-m", "longhouse", *sys.argv[1:], "--workers", "1", "--child", told]


def _reason(place: ChildPlace, code: int) -> str:
    if isinstance(place.report, ChildFailed):
        return place.report.sentence
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def processes_line(pids: Sequence[int]) -> str:
    line, cores = f"{len(pids)} processes serve: {', '.join(map(str, pids))}", os.cpu_count() or 1
    return line if len(pids) <= cores else f"{line}; this machine has {cores} cores, and more processes gain nothing"
