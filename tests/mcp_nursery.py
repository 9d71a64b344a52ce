"""MCP servers forked from a process that has loaded fastmcp: that takes seconds, and tests start many of them.

A test names `forked(script, …)` as the command. That is a small program which hands its channels, its variables and
its arguments to the nursery, lives as long as the server that is forked for them, and takes it along when it is killed.
"""

import atexit
import json
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

# Without site-packages it starts in no time.
ASK = """
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
asked = json.dumps({"command": sys.argv[2:], "environment": dict(os.environ)}).encode()
socket.send_fds(line, [asked], [0, 1, 2])
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
    import fastmcp.server.middleware  # noqa: F401, PLC0415 - who only asks for a server loads none of it

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who are done
    while 0 not in select.select([listener.fileno(), 0], [], [])[0]:
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            _serve(line)
        line.close()


def _serve(line: socket.socket) -> None:
    asked, channels, _, _ = socket.recv_fds(line, MOST, 3)
    told = json.loads(asked)
    for number, channel in enumerate(channels):
        os.dup2(channel, number)
        os.close(channel)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(told["environment"])
    threading.Thread(target=_leave_with, args=(line,), daemon=True).start()
    sys.argv, sys.path = told["command"], [str(Path(told["command"][0]).parent), *sys.path]
    runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)


def _leave_with(line: socket.socket) -> None:
    """Whoever asked for this server is gone."""
    line.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
