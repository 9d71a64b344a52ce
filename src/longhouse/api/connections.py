"""Who has connected and keeps us waiting: how much of a request we take, how long we wait for it, and for how many.

All of it is about receiving. An answer takes as long as it takes: event streams last for hours, and may be read slowly.
"""

import asyncio
import resource
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

log = structlog.get_logger()

FILES: Final = 65_536
"""As many files as we ask for at most: more of them only cost those who count through all they might have."""
RESERVED: Final = 384
"""Files that connections leave alone: Postgres, models, MCP servers and tools need some 100, and what lies in the
backlog is accepted at one go before we can count it."""
BACKLOG: Final = 256
"""Connections that the kernel holds until we come to them."""
WARN_EVERY: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a request may be before we know who sends it."""

    head: int = 32 * 1024
    """Bytes of a request line and its headers: twice what Node takes, and as much as nginx does."""
    header: int = 16 * 1024
    """Bytes of one header; browsers send all cookies of a host in one."""
    headers: int = 100
    pipelined: int = 16
    """Requests that a client may send ahead on one connection; hardly any client sends one."""
    head_within: float = 10.0
    """Seconds for a head, from its first byte on; also until that byte comes."""
    pause_within: float = 30.0
    """Seconds without a byte of a body that we wait for."""
    request_within: float = 300.0
    """Seconds for a whole request: the longest body that we take, over a line of a quarter of a megabit a second."""
    linger: float = 2.0
    """Seconds in which whoever was refused may read why: a connection that is closed at once takes its answer along."""
    look_every: float = 1.0
    waiting: int = 1_000
    """Connections without a whole request that we bear with."""
    grace: float = 1.0
    """Seconds that a connection may wait however many there are: what was sent at once may not have been read yet."""
    connections: int = 10_000
    """Connections at once, as far as there are files for them."""


class ClientConnection(Protocol):
    """A connection, as far as it matters here."""

    since: float
    loop: asyncio.AbstractEventLoop

    @property
    def is_known(self) -> bool:
        """Do we know who sends the request that we wait for?"""

    def look(self, now: float) -> None:
        """Ends the connection if it has kept us waiting for too long."""

    def drop(self) -> None:
        """Ends the connection without a word."""

    def turn_away(self) -> None:
        """Ends the connection in words: there is no room."""


class Connections:
    """All connections of a server; those that keep us waiting can be asked to leave, the longest waiting first."""

    def __init__(self, bounds: Bounds | None = None) -> None:
        self.bounds = bounds or Bounds()
        self.waiting: dict[ClientConnection, None] = {}
        """Without a whole request, in the order in which they began to wait."""
        self._inside: set[ClientConnection] = set()
        self._most = min(self.bounds.connections, _room())
        self._looking: asyncio.TimerHandle | None = None
        self._warned_at = -WARN_EVERY

    def enter(self, one: ClientConnection) -> None:
        """A new connection; where there is no room for it, somebody else leaves, or it does."""
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
        """The connection waits for its next request, or for the rest of one."""
        self.waiting[one] = None
        if self._looking is None:
            self._looking = one.loop.call_later(self.bounds.look_every, self._look, one.loop)

    def served(self, one: ClientConnection) -> None:
        """The connection's request is here: from now on it waits for us."""
        self.waiting.pop(one, None)

    def _make_room(self, one: ClientConnection) -> None:
        longest = self._longest()
        if longest is one:
            longest = next(iter(self.waiting))  # whoever is known leaves only where there is nobody else
        if longest is one:
            self._warn(one, "every connection is in use, a new one was turned away")
            one.turn_away()
        else:
            self._drop(longest)

    def _longest(self) -> ClientConnection:
        """Who has waited longest of those whom we do not know; the one that has just come is among them."""
        return next(one for one in self.waiting if not one.is_known)

    def _drop(self, one: ClientConnection) -> None:
        self._warn(one, "connections without a request were dropped to make room")
        self.leave(one)
        one.drop()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for one in list(self.waiting):
            one.look(now)
        self._looking = loop.call_later(self.bounds.look_every, self._look, loop) if self.waiting else None

    def _warn(self, one: ClientConnection, what: str) -> None:
        now = one.loop.time()
        if now > self._warned_at + WARN_EVERY:
            self._warned_at = now
            log.warning(what, connections=len(self._inside), waiting=len(self.waiting), most=self._most)


def raise_files() -> None:
    """Lets this process open as many files as it may: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _room() -> int:
    """How many connections there are files for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES if soft == resource.RLIM_INFINITY else max(soft - RESERVED, soft // 3)
