"""Starts a child program that ends when this process ends, under another account if asked.

The first half of this file runs in the parent. The second half runs as a small Python script in the child: it drops its
privileges, ties itself to the parent and becomes the program by exec. It is a separate process because code between
fork and exec is not safe with threads, and because of the order: changing the account clears the parent-death signal.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # as a script, this file imports nothing of the package
    from longhouse.store.postgres.account import Account

# `signal`: the kernel sends the program a signal when the parent dies. `pipe`, where the kernel has no such signal: a
# watcher process reads a pipe whose write end only the parent holds.
Tie = Literal["signal", "pipe"]
TIE: Tie = "signal" if sys.platform == "linux" else "pipe"

PR_SET_PDEATHSIG = 1
# Postgres's fast shutdown: it ends all sessions, writes a checkpoint and stops.
FAST_SHUTDOWN = signal.SIGINT


@contextmanager
def launched(
    command: Sequence[str],
    *,
    account: "Account | None",
    env: dict[str, str],
    log: int,
    share: Sequence[int] = (),
    tie: Tie = TIE,
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs the program with the open files in `share`; it is killed on exit, so stop it before for a clean shutdown.

    Call it from a thread that lives on: the parent-death signal comes when the *thread* that started the program ends.
    """
    with ExitStack() as stack:
        pipe_end = _parent_pipe(stack) if tie == "pipe" else None
        # A new process session: Ctrl-C reaches only this process, which then shuts Postgres down cleanly.
        process = subprocess.Popen(  # noqa: S603 - the commands are ours
            _arguments(command, account, pipe_end),
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=share if pipe_end is None else (*share, pipe_end),
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _parent_pipe(stack: ExitStack) -> int:
    """The read end of a pipe for the watcher: it reads end-of-file when this process ends, in whatever way."""
    read_end, write_end = os.pipe()
    stack.callback(os.close, write_end)
    stack.callback(os.close, read_end)
    return read_end


def _arguments(command: Sequence[str], account: "Account | None", pipe_end: int | None) -> list[str]:
    uid, gid = (account.uid, account.gid) if account else (-1, -1)
    numbers = (os.getpid(), uid, gid, -1 if pipe_end is None else pipe_end)
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *map(str, numbers), *command]


# From here on: the second half, which runs in the child process.


def main(arguments: Sequence[str]) -> None:
    parent, uid, gid, pipe_end = map(int, arguments[:4])
    command = arguments[4:]
    import ctypes  # noqa: PLC0415 - before the account changes, which may not read the interpreter's files

    # A shell that starts a process in the background makes it ignore SIGINT; the program could then not be stopped.
    signal.signal(FAST_SHUTDOWN, signal.SIG_DFL)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if pipe_end >= 0:
        tie_by_pipe(pipe_end)
    elif ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, FAST_SHUTDOWN, 0, 0, 0) != 0:
        sys.exit("the kernel refused the parent-death signal")
    if os.getppid() != parent:
        sys.exit("the parent ended before its program began")
    os.execv(command[0], list(command))  # noqa: S606 - no shell is wanted


def tie_by_pipe(pipe_end: int) -> None:
    """Starts a watcher process by a double fork, so that it is not a child that the program has to wait for."""
    program = os.getpid()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            watch(program, pipe_end)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(pipe_end)


def watch(program: int, pipe_end: int) -> None:
    """Stops the program when the pipe closes; ends when the program has ended. It closes the inherited files first."""
    os.closerange(3, pipe_end)
    os.closerange(pipe_end + 1, 4096)
    with suppress(ProcessLookupError):
        while not select.select([pipe_end], [], [], 1.0)[0]:
            os.kill(program, 0)
        os.kill(program, FAST_SHUTDOWN)


if __name__ == "__main__":
    main(sys.argv[1:])
