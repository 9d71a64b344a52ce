"""Longhouses in processes of their own, forked from one that has loaded the modules: that takes most of a start."""

import asyncio
import codecs
import fcntl
import multiprocessing
import os
import pty
import re
import resource
import runpy
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

# In a process that was forked, before it loads it itself.
IS_PRELOADED: Final = "longhouse.cli.processes.preload" in sys.modules

from longhouse.cli.main import cli  # noqa: E402

_CONTEXT = multiprocessing.get_context("forkserver")
# A module that every Python here finds: the server that forks knows nothing of pytest's `pythonpath`. What it cannot
# import it silently goes without, and then every process loads everything by itself.
_CONTEXT.set_forkserver_preload(["longhouse.cli.processes.preload"])

WITHIN: Final = 60.0
"""Seconds that a command may take."""


def share() -> None:
    """Starts the server that forks, for those that are forked from this process: by itself, each would start one."""
    forkserver.ensure_running()
    # It is no child of theirs, whom they could ask whether it lives.
    os.register_at_fork(after_in_child=lambda: setattr(forkserver._forkserver, "ensure_running", lambda: None))


class Forked:
    """As much of `asyncio.subprocess.Process` as tests need."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        files: int | None,
        folder: Path | str | None = None,
    ) -> None:
        reading, writing = multiprocessing.Pipe(duplex=False)
        self._process = _CONTEXT.Process(target=_run, args=(list(command), dict(environment), files, folder, writing))
        self._process.start()
        writing.close()
        self._output = os.fdopen(os.dup(reading.fileno()), "rb")
        reading.close()
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._process.sentinel, self._end)
        assert self._process.pid is not None
        self.pid = self._process.pid

    async def output(self) -> asyncio.StreamReader:
        """What it says, on both channels."""
        reader = asyncio.StreamReader(limit=2**20)
        protocol = asyncio.StreamReaderProtocol(reader)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, self._output)
        return reader

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._process.sentinel)
        self._process.join()
        self._ended.set()


def completed(*arguments: str, folder: Path, typed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A `longhouse` command that ends by itself, run in this folder with these variables: what it said, and where."""
    with tempfile.TemporaryDirectory() as name:
        channels = [Path(name, channel) for channel in ("in", "out", "err")]
        channels[0].write_text(typed, "utf-8")
        process = _CONTEXT.Process(
            target=_run_in, args=(["longhouse", *arguments], {**os.environ, **environment}, folder, channels)
        )
        process.start()
        process.join(WITHIN)
        if process.exitcode is None:
            process.kill()
            process.join()
        code, said = process.exitcode, [channel.read_text("utf-8") for channel in channels[1:]]
        assert code is not None
        return subprocess.CompletedProcess(arguments, code, *said)


def _run_in(command: list[str], environment: dict[str, str], folder: Path, channels: list[Path]) -> None:
    assert IS_PRELOADED
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, channel in enumerate(channels):
        os.dup2(os.open(channel, os.O_RDWR | os.O_CREAT), number)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - multiprocessing has closed the former one
    sys.argv = command
    cli(prog_name="longhouse")


class Terminal:
    """A `longhouse` command on a pseudo-terminal of its own: what it draws can be awaited, and keys can be pressed."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._screen, self._inside = pty.openpty()
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        known = {"TERM": "xterm-256color", **os.environ, **environment}
        name = os.ttyname(self._inside)
        self.process = _CONTEXT.Process(target=_run_on, args=(["longhouse", *arguments], known, name))
        self.process.start()
        self.drawn = ""
        """Everything that was written to the terminal, with its control sequences."""
        self._place = 0
        self._grew = asyncio.Event()
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        asyncio.get_running_loop().add_reader(self._screen, self._read)

    def _read(self) -> None:
        self.drawn += self._decode(os.read(self._screen, 65_536))
        self._grew.set()

    @property
    def text(self) -> str:
        """The same without control sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|\x1b[=>]|\r", "", self.drawn)

    def press(self, keys: str) -> None:
        """Keys as a terminal sends them: `\\r` is Enter, `\\x03` Ctrl-C."""
        os.write(self._screen, keys.encode())

    async def until(self, words: str) -> str:
        """What was drawn since the last call, up to these words."""
        async with asyncio.timeout(WITHIN):
            while (found := self.text.find(words, self._place)) < 0:
                self._grew.clear()
                await self._grew.wait()
        start, self._place = self._place, found + len(words)
        return self.text[start : self._place]

    def interrupt(self) -> None:
        """A signal from elsewhere, not the key."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGINT)

    async def ended(self) -> int | None:
        await asyncio.to_thread(self.process.join, WITHIN)
        return self.process.exitcode

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._screen)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        for descriptor in (self._screen, self._inside):
            os.close(descriptor)


def _run_on(command: list[str], environment: dict[str, str], terminal: str) -> None:
    assert IS_PRELOADED
    os.environ.clear()
    os.environ.update(environment)
    os.setsid()
    opened = os.open(terminal, os.O_RDWR)  # the first terminal of a new session is the one that sends it Ctrl-C
    for number in range(3):
        os.dup2(opened, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.argv = command
    cli(prog_name="longhouse")


def _run(
    command: list[str], environment: dict[str, str], files: int | None, folder: Path | str | None, output: Connection
) -> None:
    """`longhouse` with these arguments, or a program of the tests."""
    assert IS_PRELOADED
    if folder is not None:
        os.chdir(folder)
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    os.environ.clear()
    os.environ.update(environment)
    for channel in (1, 2):
        os.dup2(output.fileno(), channel)
    output.close()
    if command[0] == "longhouse":
        sys.argv = command
        cli(prog_name="longhouse")
    sys.argv, sys.path = command, [str(Path(command[0]).parent), *sys.path]
    runpy.run_path(command[0], run_name="__main__")
