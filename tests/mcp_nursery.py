"""MCP servers and readers of documents, forked from a process that has loaded what they need: that takes most of their
time, and tests start hundreds of them.

A test names `forked(script, …)` or `forked("-m", module, …)` as the command. That is a small program which hands its
channels, its variables and its arguments to the nursery, lives as long as the server that is forked for them, and takes
it along when it is killed.
"""

import atexit
import marshal
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path

# Without site-packages, and with modules that are part of the interpreter, it starts in no time.
ASK = """
import _socket, marshal, posix, sys
line = _socket.socket(_socket.AF_UNIX)
line.connect(sys.argv[1])
environment = {name.decode(): value.decode() for name, value in posix.environ.items()}
asked = marshal.dumps((sys.argv[2:], environment, posix.getcwd()))
channels = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
line.sendmsg([asked], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, channels)])
line.recv(1)
"""
MOST = 2**16
_started: list[subprocess.Popen[bytes]] = []
"""Kept for as long as this process lives: it is no child of those that are forked, and they wait for it in vain."""


def forked(script: str, *arguments: str) -> list[str]:
    """The command of such a server."""
    return [sys.executable, "-I", "-S", "-c", ASK, _nursery(), script, *arguments]


@cache
def _nursery() -> str:
    """Where it listens: one for each process that runs tests, or for all that are forked from it; it ends with it."""
    folder, owner = tempfile.mkdtemp(prefix="nursery-"), os.getpid()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen()
        process = subprocess.Popen(
            [sys.executable, __file__, str(listener.fileno())], stdin=subprocess.PIPE, pass_fds=[listener.fileno()]
        )
    _started.append(process)

    def leave() -> None:
        if os.getpid() == owner:
            process.communicate()
            shutil.rmtree(folder)

    atexit.register(leave)
    return f"{folder}/socket"


def share() -> None:
    """Starts it, for those that are forked from this process."""
    _nursery()


def main(listener: socket.socket) -> None:
    # Who only asks for a server loads none of it.
    import fastmcp.server.middleware  # noqa: F401, PLC0415

    from longhouse.memory.documents import detect, draft  # noqa: F401, PLC0415
    from longhouse.memory.documents.formats import html, markdown, text  # noqa: F401, PLC0415

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who are done
    while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _serve(line)
        line.close()


def _serve(line: socket.socket) -> None:
    asked, channels, _, _ = socket.recv_fds(line, MOST, 3)
    command, environment, folder = marshal.loads(asked)
    for number, channel in enumerate(channels):
        os.dup2(channel, number)
        os.close(channel)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    threading.Thread(target=_leave_with, args=(line,), daemon=True).start()
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path = command, [str(Path(command[0]).parent), *sys.path]
        runpy.run_path(command[0], run_name="__main__")
    sys.stdout.flush()
    os._exit(0)


def _leave_with(line: socket.socket) -> None:
    """Whoever asked for this server is gone."""
    line.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
