"""Server processes of the shared Postgres that serve one test after another: a new one costs it a process, and reads
the whole catalog once more, for each of the four connections of a house.

When Longhouse ends a connection of this process, its socket is kept instead, and Postgres is told to forget all that
belonged to it: transactions, locks, prepared statements, settings, channels. In the next test, a connection that is
asked for in the same words is given that socket, and hears what Postgres said when the first one was opened. One that
was broken off in the middle of anything, or that does not answer as it should, is closed.
"""

import asyncio
import socket
from asyncio.unix_events import _UnixSelectorEventLoop
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakSet

from asyncpg.protocol import Protocol

Loop: Any = _UnixSelectorEventLoop
MOST: Final = 6
"""Sockets that are kept: a house has four connections, and Postgres room for a hundred."""
WITHIN: Final = 10.0
"""Seconds in which Postgres has to forget."""
OURS: Final = b"\0application_name\0longhouse\0"
"""In the words of Longhouse; connections of the tests themselves are what they say."""
END: Final = b"X\0\0\0\4"
READY: Final = b"Z\0\0\0\5I"
"""Nothing is under way."""


def _query(text: bytes) -> bytes:
    return b"Q" + (len(text) + 5).to_bytes(4, "big") + text + b"\0"


# What was counted is told at once, not a second later: by it is seen whether a database may be used again.
FORGET: Final = _query(b"SELECT pg_stat_force_next_flush()") + _query(b"DISCARD ALL")
FORGOTTEN: Final = [(b"C", b"DISCARD ALL\0"), (b"Z", b"I")]
UNASKED: Final = (b"S", b"N", b"A")
"""Settings as they are now, notices, notifications."""


@dataclass(eq=False)
class Kept:
    """A socket, and what was said when its connection was opened."""

    sock: socket.socket
    asked: bytes
    greeting: bytes
    said: bytes = b""
    is_free: bool = False
    """The test is over whose connection it was."""

    @property
    def pid(self) -> int:
        [key] = [content for kind, content in _messages(self.greeting) if kind == b"K"]
        return int.from_bytes(key[:4], "big")

    def is_silent(self) -> bool:
        """Whether nothing was heard of Postgres since then, not even its end."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def has_forgotten(self) -> bool:
        """Waits until Postgres says so; False: it says anything else."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(WITHIN):
                while self.said.count(READY) < 2:
                    if not (more := await asyncio.get_running_loop().sock_recv(self.sock, 2**16)):
                        return False
                    self.said += more
        told = [message for message in _messages(self.said) if message[0] not in UNASKED]
        return told[-2:] == FORGOTTEN and all(kind != b"E" for kind, _ in told)


def _messages(said: bytes) -> Iterator[tuple[bytes, bytes]]:
    while len(said) >= 5:
        end = 1 + int.from_bytes(said[1:5], "big")
        yield said[:1], said[5:end]
        said = said[end:]


class Backends:
    """The sockets that are kept, of connections to the server at one address."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._kept: list[Kept] = []
        self.lines: WeakSet[Line] = WeakSet()
        self._connect: Any = Loop.create_unix_connection

    def share(self) -> None:
        """From now on, connections of this process are kept."""
        backends, plain = self, self._connect

        async def connect(loop: Any, factory: Any, path: Any = None, **options: Any) -> Any:
            if options or path != backends.path:
                return await plain(loop, factory, path, **options)
            protocol = factory()
            if not isinstance(protocol, Protocol):
                # Somebody asks to break off a statement, and nobody knows when that arrives.
                for line in backends.lines:
                    line.may_be_kept = False
                return await plain(loop, lambda: protocol, path)
            return await backends.line(loop, protocol), protocol

        Loop.create_unix_connection = connect

    async def line(self, loop: Any, protocol: Any) -> "Line":
        line = Line(self, protocol)
        protocol.connection_made(line)  # it says what it asks for
        if kept := self._taken(line.asked):
            await self._connect(loop, lambda: line, sock=kept.sock)
            line.data_received(kept.greeting)
        else:
            await self._connect(loop, lambda: line, self.path)
            line.write(line.asked)
        return line

    def _taken(self, asked: bytes) -> Kept | None:
        for kept in [one for one in self._kept if one.is_free and one.asked == asked]:
            self._kept.remove(kept)
            if kept.is_silent():
                return kept
            kept.sock.close()
        return None

    def keep(self, kept: Kept) -> None:
        self._kept.append(kept)
        if len(self._kept) > MOST:
            self._close(self._kept[0])

    async def free(self, database: str) -> list[int]:
        """Lets others have those of a test that is over: their process ids. Whoever has not forgotten is closed."""
        mine = self._of(database)
        for kept in mine:
            kept.is_free = await kept.has_forgotten()
            if not kept.is_free:
                self._close(kept)
        return [kept.pid for kept in mine if kept.is_free]

    def clear(self, database: str) -> None:
        """Keeps none in this database any longer."""
        for kept in self._of(database):
            self._close(kept)

    def _of(self, database: str) -> list[Kept]:
        name = b"\0database\0%b\0" % database.encode()
        return [kept for kept in self._kept if name in kept.asked]

    def _close(self, kept: Kept) -> None:
        with suppress(ValueError):  # databases are emptied in another thread than tests run in
            self._kept.remove(kept)
        kept.sock.close()

    def close(self) -> None:
        Loop.create_unix_connection = self._connect
        for kept in list(self._kept):
            self._close(kept)


class Line(asyncio.Protocol):
    """Between asyncpg and its socket: passes everything on, but keeps the socket in the end."""

    def __init__(self, backends: Backends, protocol: Any) -> None:
        self._backends, self._protocol = backends, protocol
        self._transport: Any = None
        self.asked = b""
        self._greeting = b""
        """What Postgres said until it was ready for the first time."""
        self._is_greeted = False
        self._is_idle = False
        self.may_be_kept = True
        backends.lines.add(self)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._is_idle = data.endswith(READY)
        if not self._is_greeted:
            self._greeting += data
            self._is_greeted = self._is_idle
        self._protocol.data_received(data)

    def eof_received(self) -> Any:
        return self._protocol.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def write(self, data: Any) -> None:
        if self._transport is None:
            self.asked = bytes(data)
        elif data == END and self._is_kept():
            self._transport.abort()  # it lets go of the socket
        else:
            self._is_idle = False
            self._transport.write(data)

    def writelines(self, buffers: Any) -> None:
        self._is_idle = False
        self._transport.writelines(buffers)

    def _is_kept(self) -> bool:
        if not (self._is_idle and self.may_be_kept and OURS in self.asked) or self._transport.is_closing():
            return False
        kept = Kept(self._transport.get_extra_info("socket").dup(), self.asked, self._greeting)
        kept.sock.setblocking(False)
        try:
            kept.sock.sendall(FORGET)
        except OSError:  # Postgres has ended the connection
            kept.sock.close()
            return False
        self._backends.keep(kept)
        return True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default) if self._transport else default

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
