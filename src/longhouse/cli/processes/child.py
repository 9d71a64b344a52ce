"""What a process of `longhouse serve --workers N` has to do with the supervisor that started it."""

import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

HELP_EVERY: Final = 0.25
"""Seconds between two looks at the connections that other processes have not accepted."""
END_WITHIN: Final = 15.0
"""Seconds to leave once the supervisor is gone: a process needs 13 at most, unless its event loop stands still, or it
waits for the Postgres that went with the supervisor."""
LONGEST_SENTENCE: Final = 10_000


# Their tags stay, whatever the classes are called: a supervisor whose files were updated starts processes of new code.
class ChildReady(msgspec.Struct, frozen=True, tag="Ready"):
    is_open: bool
    is_demo: bool


class ChildFailed(msgspec.Struct, frozen=True, tag="Failed"):
    sentence: str

    @staticmethod
    def of(error: Exception) -> "ChildFailed":
        """The error, cut to a line's length; file names may hold bytes that are not text."""
        return ChildFailed(str(error).encode("utf-8", "replace").decode()[:LONGEST_SENTENCE])


ChildReport = ChildReady | ChildFailed
"""What a child tells its supervisor, once."""


class Child(msgspec.Struct, frozen=True):
    """What the supervisor tells a child: the inherited file descriptors, and which child it is."""

    channel: int
    listeners: list[int]
    number: int
    of: int
    folder: str
    """Where the processes of this supervisor reach each other."""

    def end_with_supervisor(self) -> None:
        """Ends this process when the supervisor ends, however that happens.

        In a thread: the event loop may stand still, in a tool of somebody.
        """
        threading.Thread(target=self._end_with_channel, daemon=True, name="supervisor").start()

    def _end_with_channel(self) -> None:
        """Nobody writes to the channel; it ends with the process at its other side."""
        os.set_inheritable(self.channel, False)
        while os.read(self.channel, 1):
            pass
        with suppress(OSError):  # another one of them was faster
            for number in range(self.of):
                Path(self.socket_of(number)).unlink(missing_ok=True)
            Path(self.folder).rmdir()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_WITHIN)
        os._exit(1)

    def tell(self, told: ChildReport) -> None:
        with suppress(OSError):  # the supervisor is gone, and this process is about to be
            os.write(self.channel, msgspec.json.encode(told) + b"\n")

    def socket_of(self, number: int) -> str:
        """Where a process is reached by the others."""
        return f"{self.folder}/{number + 1}"

    @contextmanager
    def listening(self) -> Iterator[tuple[socket.socket, list[socket.socket]]]:
        """The socket of this process, and those of the others."""
        sockets = [socket.socket(fileno=number) for number in self.listeners]
        try:
            for one in sockets:
                one.set_inheritable(False)
                one.setblocking(False)
            own = sockets[self.number % len(sockets)]
            yield own, [one for one in sockets if one is not own]
        finally:
            for one in sockets:
                one.close()


@contextmanager
def reached_at(path: str) -> Iterator[socket.socket]:
    """A socket by which the other processes reach this one; the one of its predecessor may still be there."""
    Path(path).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.setblocking(False)
        yield listener


async def help_out(others: Iterable[socket.socket], take: Callable[[socket.socket], Awaitable[None]]) -> None:
    """Accepts what waits at the sockets of other processes: one may stand still, or just be started again."""
    for one in others:
        while connection := _accepted(one):
            await take(connection)


def _accepted(listener: socket.socket) -> socket.socket | None:
    try:
        return listener.accept()[0]
    except OSError:  # nobody waits, or this process leaves, or it has no more files
        return None
