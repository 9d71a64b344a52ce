"""Starts a program that cannot outlive us, under another account where asked.

One half of this file is called by us; the other half is the program's first moments: a small Python process gives up
its rights, ties its life to ours and becomes the program. It is a process of its own because code between fork and
exec is not safe beside threads, and because the order matters: a change of account clears the parent-death signal.
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

if TYPE_CHECKING:  # as a script this file stands alone
    from longhouse.store.postgres.account import Account

# `signal`: the kernel tells the program that we died; nothing else needs to live for that. `pipe`, where the kernel has
# no such signal: a watcher reads a pipe whose other end only we hold.
Tie = Literal["signal", "pipe"]
TIE: Tie = "signal" if sys.platform == "linux" else "pipe"

PR_SET_PDEATHSIG = 1
# To Postgres: end all sessions, write everything down, stop.
FAREWELL = signal.SIGINT


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
    """The program while it runs, with the open files it shares; whoever wants it to stop gently asks before leaving.

    Call it from a thread that stays: the parent-death signal comes when the *thread* that started the program ends.
    """
    with ExitStack() as stack:
        leash = _leash(stack) if tie == "pipe" else None
        # A session of its own: Ctrl-C at our terminal is for us, and we then stop Postgres in good order.
        process = subprocess.Popen(  # noqa: S603 - the commands are ours
            _arguments(command, account, leash),
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=share if leash is None else (*share, leash),
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _leash(stack: ExitStack) -> int:
    """The end of a pipe that a watcher reads; it reads the end of the file when our end goes, however we end."""
    theirs, ours = os.pipe()
    stack.callback(os.close, ours)
    stack.callback(os.close, theirs)
    return theirs


def _arguments(command: Sequence[str], account: "Account | None", leash: int | None) -> list[str]:
    uid, gid = (account.uid, account.gid) if account else (-1, -1)
    numbers = (os.getpid(), uid, gid, -1 if leash is None else leash)
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), *map(str, numbers), *command]


# From here on: the other half, in a process of its own.


def main(arguments: Sequence[str]) -> None:
    parent, uid, gid, leash = map(int, arguments[:4])
    command = arguments[4:]
    import ctypes  # noqa: PLC0415 - now, since the interpreter's own files may be closed to the account

    # A shell that starts us in the background lets us ignore this one; a program that does not hear it would stay.
    signal.signal(FAREWELL, signal.SIG_DFL)
    if uid >= 0:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if leash >= 0:
        tie_by_pipe(leash)
    elif ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, FAREWELL, 0, 0, 0) != 0:
        sys.exit("the kernel refused the parent-death signal")
    if os.getppid() != parent:
        sys.exit("the parent ended before its program began")
    os.execv(command[0], list(command))  # noqa: S606 - no shell is wanted


def tie_by_pipe(leash: int) -> None:
    """Leave a watcher behind; it is nobody's child, so that the program never waits for it."""
    program = os.getpid()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            watch(program, leash)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(leash)


def watch(program: int, leash: int) -> None:
    """Say farewell to the program when the pipe ends; leave when it has left. What it shares with us is not ours."""
    os.closerange(3, leash)
    os.closerange(leash + 1, 4096)
    with suppress(ProcessLookupError):
        while not select.select([leash], [], [], 1.0)[0]:
            os.kill(program, 0)
        os.kill(program, FAREWELL)


if __name__ == "__main__":
    main(sys.argv[1:])
