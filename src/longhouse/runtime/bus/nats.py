"""The bus between processes on NATS: wake-ups for one worker each, and the news of a session for whoever follows it.

Nothing on it is truth: without NATS everything is found in Postgres, only later.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
import nats
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error

from longhouse import background
from longhouse.runtime.bus.hints import Ask, Hint, News, Stop, Wake
from longhouse.runtime.bus.items import Written
from longhouse.runtime.bus.local import Bus
from longhouse.runtime.bus.outbox import Outbox
from longhouse.store import leases
from longhouse.store.database import Database

log = structlog.get_logger()

WORKERS: Final = "workers"
"""The queue group of wake-ups: NATS gives each to one of them."""
PASSED_ON: Final = 3
"""How many workers without room pass a wake-up on; then the sweep of one that has room finds the session."""
SNAPSHOT_WITHIN: Final = 0.5
"""Seconds in which a worker tells what it has written of a reply; else the whole reply brings it."""
RECONNECT_EVERY: Final = 0.25
PING_EVERY: Final = 5
"""Seconds after which a silent connection is tried; it is given up after two without an answer."""
LARGEST: Final = 512 * 1024
"""Bytes of a message; NATS refuses more than a megabyte. What is larger is found in Postgres."""

_HINTS: Final = msgspec.msgpack.Decoder(list[Hint])
_DRAFT: Final = msgspec.msgpack.Decoder(Written | None)


class NatsRelay:
    """The end of one process. It is connected in the background: a NATS that is away delays nothing."""

    def __init__(self, db: Database, bus: Bus, worker: str, house: str, *, works: bool) -> None:
        self._db = db
        self._bus = bus
        self._worker = worker
        self._works = works
        self._prefix = f"longhouse.{house}"
        self._client = Client()
        self._outbox = Outbox("bus_send", self._publish)
        self._followed: dict[str, Subscription | None] = {}
        self._changed: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        self.reconnects = 0

    @property
    def is_connected(self) -> bool:
        return bool(self._client.is_connected)

    def send(self, hint: Hint) -> None:
        if isinstance(hint, Ask):
            self._soon(self._ask(hint.session_id))
        elif self.is_connected:
            self._outbox.put(hint)

    def follow(self, session_id: str) -> None:
        self._followed[session_id] = None
        self._soon(self._follow(session_id))

    def unfollow(self, session_id: str) -> None:
        subscription = self._followed.pop(session_id, None)
        if subscription:
            self._soon(self._ended(subscription))

    def attend(self, session_id: str) -> None:
        if self.is_connected:
            self._outbox.put(Ask(session_id))

    @asynccontextmanager
    async def connected(self, servers: Sequence[str]) -> AsyncIterator[None]:
        """Stays connected while the block runs."""
        connecting = asyncio.create_task(background.repeat("bus_connect", lambda: self._connect(servers)))
        try:
            yield
        finally:
            self._is_leaving = True
            connecting.cancel()
            await asyncio.gather(connecting, *self._changed, return_exceptions=True)
            await self._outbox.close()
            with suppress(Error, OSError, TimeoutError):
                await self._client.drain() if self.is_connected else await self._client.close()

    async def _connect(self, servers: Sequence[str]) -> None:
        """Connects, subscribes, and waits for ever: from then on the client reconnects by itself."""
        self._client = await nats.connect(
            list(servers),
            name=self._worker,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_EVERY,
            ping_interval=PING_EVERY,
            max_outstanding_pings=2,
            no_echo=True,
            error_cb=_failed,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
        )
        log.info("bus_connected", message="hints go to the other processes through NATS")
        if self._works:
            await self._client.subscribe(f"{self._prefix}.wake", queue=WORKERS, cb=self._heard)
        await self._client.subscribe(f"{self._prefix}.stop", cb=self._heard)
        await self._client.subscribe(f"{self._prefix}.draft.{_token(self._worker)}", cb=self._tell_draft)
        for session_id in list(self._followed):
            await self._follow(session_id)
        await asyncio.Event().wait()

    async def _publish(self, hints: Sequence[Hint]) -> None:
        by_subject: dict[str, list[Hint]] = defaultdict(list)
        for hint in hints:
            if isinstance(hint, Wake):  # each is for one worker: they do not travel together
                await self._client.publish(f"{self._prefix}.wake", msgspec.msgpack.encode([hint]))
            else:
                by_subject[self._subject(hint)].append(hint)
        for subject, some in by_subject.items():
            payload = msgspec.msgpack.encode(some)
            if len(payload) <= LARGEST:
                await self._client.publish(subject, payload)

    def _subject(self, hint: Hint) -> str:
        is_for_all = isinstance(hint, Stop | Ask)  # whoever works on the session next should have heard it
        return f"{self._prefix}.stop" if is_for_all else self._of_session(hint.session_id)

    def _of_session(self, session_id: str) -> str:
        return f"{self._prefix}.session.{_token(session_id)}"

    async def _heard(self, message: Msg) -> None:
        for hint in _HINTS.decode(message.data):
            if not self._bus.receive(hint) and isinstance(hint, Wake) and hint.passed_on < PASSED_ON:
                self._outbox.put(Wake(hint.session_id, hint.passed_on + 1))

    async def _follow(self, session_id: str) -> None:
        if not self.is_connected or session_id not in self._followed or self._followed[session_id]:
            return
        subscription = await self._client.subscribe(self._of_session(session_id), cb=self._heard)
        if session_id in self._followed:
            self._followed[session_id] = subscription
            await self._ask(session_id)
        else:
            await self._ended(subscription)

    async def _ask(self, session_id: str) -> None:
        """Asks the worker of a session what it has written of its reply."""
        holder = await leases.holder(self._db, session_id)
        if not self.is_connected or holder is None or holder == self._worker:
            return
        subject = f"{self._prefix}.draft.{_token(holder)}"
        with suppress(Error, TimeoutError):
            answer = await self._client.request(subject, session_id.encode(), timeout=SNAPSHOT_WITHIN)
            if written := _DRAFT.decode(answer.data):
                self._bus.receive(News(session_id, written))

    async def _tell_draft(self, message: Msg) -> None:
        payload = msgspec.msgpack.encode(self._bus.written(message.data.decode()))
        await message.respond(payload if len(payload) <= LARGEST else msgspec.msgpack.encode(None))

    async def _ended(self, subscription: Subscription) -> None:
        with suppress(Error):
            await subscription.unsubscribe()

    async def _disconnected(self) -> None:
        if self._is_leaving:
            return
        log.warning("bus_disconnected", message="NATS is away: sessions go on, hints between processes come later")

    async def _reconnected(self) -> None:
        self.reconnects += 1
        log.info("bus_connected", message="NATS is back")
        for session_id in list(self._followed):
            self._soon(self._ask(session_id))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(background.guarded("bus_follow", work))
        self._changed.add(task)
        task.add_done_callback(self._changed.discard)


async def _failed(error: Exception) -> None:
    log.debug("bus_error", error=str(error) or type(error).__name__)


def _token(name: str) -> str:
    """A part of a subject; names may hold what a subject cannot."""
    return hashlib.blake2b(name.encode(), digest_size=10).hexdigest()
