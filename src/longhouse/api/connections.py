"""Connection limits: bounds on the size of a request, the time to receive it, and the number of connections.

All limits are about receiving. Responses have none: event streams last for hours, and clients may read slowly.
"""

import asyncio
import resource
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

log = structlog.get_logger()

FILES: Final = 65_536
"""The highest file limit that is set: programs that iterate over all descriptors become slow with a higher one."""
RESERVED: Final = 384
"""File descriptors that connections must not use: Postgres, models, MCP servers and tools need some 100, and the whole
backlog is accepted at once before it can be counted."""
BACKLOG: Final = 256
"""Connections that the kernel queues until they are accepted."""
WARN_EVERY: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits of a request, which hold before its caller is known."""

    head: int = 32 * 1024
    """Bytes of a request line and its headers: twice the limit of Node, the same as nginx."""
    header: int = 16 * 1024
    """Bytes of one header; browsers send all cookies of a host in one."""
    headers: int = 100
    pipelined: int = 16
    """Pipelined requests on one connection; hardly any client pipelines."""
    head_within: float = 10.0
    """Seconds for a head, from its first byte on; also the seconds to wait for that byte."""
    pause_within: float = 30.0
    """Seconds without a byte while a body is awaited."""
    request_within: float = 300.0
    """Seconds for a whole request: the largest accepted body at a quarter of a megabit per second."""
    linger: float = 2.0
    """Seconds for a refused client to read the response: closing the connection at once would discard it."""
    look_every: float = 1.0
    waiting: int = 1_000
    """Connections without a complete request at once."""
    grace: float = 1.0
    """Seconds that a connection may wait, however many there are: its first bytes may not have been read yet."""
    connections: int = 10_000
    """Connections at once; fewer if the limit of open files is lower."""


class ClientConnection(Protocol):
    """The part of a connection that this module uses."""

    since: float
    loop: asyncio.AbstractEventLoop

    @property
    def is_known(self) -> bool:
        """Is the caller of the awaited request authenticated?"""

    def look(self, now: float) -> None:
        """Closes the connection if one of its timeouts has passed."""

    def drop(self) -> None:
        """Closes the connection without a response."""

    def turn_away(self) -> None:
        """Closes the connection with a 503: the server has too many connections."""


class Connections:
    """All connections of a server; idle ones can be closed to make room, the longest waiting first."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.waiting: dict[ClientConnection, None] = {}
        """Connections without a complete request, in the order in which they began to wait."""
        self._inside: set[ClientConnection] = set()
        self._most = min(self.bounds.connections, _room())
        self._looking: asyncio.TimerHandle | None = None
        self._warned_at = -WARN_EVERY

    def enter(self, one: ClientConnection) -> None:
        """Adds a connection; at the limit, closes the longest waiting one, or else the new one."""
        self._inside.add(one)
        self.wait(one)
        if len(self._inside) > self._most:
            self._make_room(one)
        elif len(self.waiting) > self.bounds.waiting:
            longest = self._longest()
            if longest.since < one.since - self.bounds.grace:
                self._drop(longest)

    def leave(self, one: ClientConnection) -> None:
        self._inside.discard(one)
        self.waiting.pop(one, None)

    def wait(self, one: ClientConnection) -> None:
        """The connection now waits for its next request, or for the rest of one."""
        self.waiting[one] = None
        if self._looking is None:
            self._looking = one.loop.call_later(self.bounds.look_every, self._look, one.loop)

    def served(self, one: ClientConnection) -> None:
        """The request is complete: the connection no longer counts as waiting."""
        self.waiting.pop(one, None)

    def _make_room(self, one: ClientConnection) -> None:
        longest = self._longest()
        if longest is one:
            longest = next(iter(self.waiting))  # an authenticated client is dropped only if there is no other
        if longest is one:
            self._warn(one, "connection_turned_away", "Every connection is in use; a new one was turned away.")
            one.turn_away()
        else:
            self._drop(longest)

    def _longest(self) -> ClientConnection:
        """The longest waiting connection that is not authenticated; the newest connection is among them."""
        return next(one for one in self.waiting if not one.is_known)

    def _drop(self, one: ClientConnection) -> None:
        self._warn(one, "connection_dropped", "Connections without a request were dropped to make room.")
        self.leave(one)
        one.drop()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for one in list(self.waiting):
            one.look(now)
        self._looking = loop.call_later(self.bounds.look_every, self._look, loop) if self.waiting else None

    def _warn(self, one: ClientConnection, event: str, message: str) -> None:
        now = one.loop.time()
        if now > self._warned_at + WARN_EVERY:
            self._warned_at = now
            log.warning(
                event, message=message, connections=len(self._inside), waiting=len(self.waiting), most=self._most
            )


def raise_files() -> None:
    """Raises the limit of open files for this process: each connection is a file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _room() -> int:
    """How many connections fit into the limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES if soft == resource.RLIM_INFINITY else max(soft - RESERVED, soft // 3)
