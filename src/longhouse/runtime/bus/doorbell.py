"""The bus between processes without NATS: hints by NOTIFY on a connection of its own, never in a journal's commit.

A process that is alone rings nobody.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import asyncpg
import msgspec

from longhouse import background
from longhouse.runtime.bus.hints import Ask, Hint, batches
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.bus.outbox import Outbox
from longhouse.store.database import UNREACHABLE, Database
from longhouse.store.notifications import LARGEST, listen, notify

HELLO_EVERY: Final = 15.0
AWAY_AFTER: Final = 40.0
"""Seconds after which a process that said nothing is forgotten, and rung no more, when this one says hello next."""
RECONNECT_AFTER: Final = 0.5
ROOM: Final = LARGEST - 200
"""Bytes of a notification for its hints."""


class _Ring(msgspec.Struct, frozen=True):
    """One notification: who sends it, whether it wants to know who is there, and hints."""

    sender: str
    asks: bool = False
    hints: list[Hint] = []


class Doorbell:
    """The end of one process."""

    def __init__(self, db: Database, bus: Bus, worker: str) -> None:
        self._db = db
        self._bus = bus
        self._worker = worker
        self._outbox = Outbox("doorbell_ring", self._ring)
        self._peers: dict[str, float] = {}
        """Process -> when it was heard last."""
        self._connection: asyncpg.Connection | None = None
        self._channel = ""
        self._asked, self._lost = asyncio.Event(), asyncio.Event()
        self._saying = asyncio.Lock()
        self.reconnects = -1

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def is_alone(self) -> bool:
        return not self._peers

    def _forget_away(self) -> None:
        now = asyncio.get_running_loop().time()
        self._peers = {peer: heard for peer, heard in self._peers.items() if now - heard <= AWAY_AFTER}

    def send(self, hint: Hint) -> None:
        if self.is_connected and not self.is_alone:
            self._outbox.put(hint)

    def follow(self, session_id: str) -> None:
        self.send(Ask(session_id))

    def unfollow(self, session_id: str) -> None:
        pass

    def attend(self, session_id: str) -> None:
        self.send(Ask(session_id))

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Listens and rings while the block runs."""
        async with background.running("doorbell", self._listen, every=RECONNECT_AFTER):
            try:
                yield
            finally:
                await self._outbox.close()

    async def _listen(self) -> None:
        """Listens while the connection lasts, and says from time to time that this process is there."""
        async with self._db.connection() as connection:
            lost = self._lost = asyncio.Event()
            connection.add_termination_listener(lambda _: lost.set())
            self._channel = await listen(connection, self._rung)
            self._connection = connection
            self.reconnects += 1
            try:
                await self._say(asks=True)
                while not lost.is_set():
                    await self._wait(lost)
                    self._asked.clear()  # before it is answered: who asks meanwhile is answered again
                    self._forget_away()
                    await self._say()
            finally:
                self._connection = None

    async def _wait(self, lost: asyncio.Event) -> None:
        """Until somebody asks who is there, or it is time to say it again."""
        waits = [asyncio.create_task(event.wait()) for event in (lost, self._asked)]
        try:
            await asyncio.wait(waits, timeout=HELLO_EVERY, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _rung(self, payload: str) -> None:
        ring = msgspec.json.decode(payload, type=_Ring)
        if ring.sender == self._worker:
            return
        self._peers[ring.sender] = asyncio.get_running_loop().time()
        if ring.asks:
            self._asked.set()
        for hint in ring.hints:
            self._bus.receive(hint)

    async def _ring(self, hints: Sequence[Hint]) -> None:
        for some in batches(hints, ROOM, msgspec.json.encode):
            await self._say(some)

    async def _say(self, hints: Sequence[Hint] = (), *, asks: bool = False) -> None:
        payload = msgspec.json.encode(_Ring(self._worker, asks, list(hints))).decode()
        async with self._saying:
            if self._connection is None:
                return
            try:
                await notify(self._connection, self._channel, payload)
            except UNREACHABLE:
                self._lost.set()  # another connection is opened, also where this one only fell silent
