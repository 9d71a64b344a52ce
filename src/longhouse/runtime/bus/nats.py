"""The bus between processes on NATS: wake-ups for one worker each, and the news of a session for whoever follows it.

Nothing on it is truth: without NATS everything is found in Postgres, only later.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error, SecureConnWantedError

from longhouse import background
from longhouse.runtime.bus.hints import Ask, Hint, News, Stop, Wake, batches
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
"""Bytes of a message; NATS refuses more than a megabyte. A longer text travels in pieces."""
TRIED_FOR: Final = 5.0
"""Seconds in which a NATS that is only tried must answer."""
AWAY: Final = "NATS is away: sessions go on, hints between processes come later"
REFUSED: Final = "NATS refuses the user, password or token of LONGHOUSE_NATS_URL"
DENIED: Final = "NATS does not let its user publish and subscribe to all that Longhouse needs: longhouse.> and _INBOX.>"
NOT_SECURE: Final = "NATS offers no TLS, and LONGHOUSE_NATS_URL asks for it by tls://: nothing is sent there"

_HINTS: Final = msgspec.msgpack.Decoder(list[Hint])
_DRAFT: Final = msgspec.msgpack.Decoder(Written | None)


class _Client(Client):
    def _connect_command(self) -> bytes:
        """The first message to the server, sent after its greeting; it holds the password."""
        server = self._current_server
        if server and server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
            raise SecureConnWantedError
        return super()._connect_command()


class NatsRelay:
    """The end of one process. It is connected in the background: a NATS that is away delays nothing."""

    def __init__(self, db: Database, bus: Bus, worker: str, house: str, *, works: bool) -> None:
        self._db = db
        self._bus = bus
        self._worker = worker
        self._works = works
        self._prefix = f"longhouse.{house}"
        self._client: Client | None = None
        """None until NATS was reached for the first time."""
        self._outbox = Outbox("bus_send", self._publish)
        self._followed: dict[str, Subscription | None] = {}
        self._changed: set[asyncio.Task[str]] = set()
        self._logged: set[str] = set()
        """The kinds of errors that were logged since the connection was there last."""
        self._is_leaving = False
        self.reconnects = 0

    @property
    def is_connected(self) -> bool:
        return self._client is not None and bool(self._client.is_connected)

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
        connect = partial(self._connect, servers)
        async with background.running("bus_connect", connect, every=RECONNECT_EVERY, away=(Error, OSError)):
            try:
                yield
            finally:
                self._is_leaving = True
                await asyncio.gather(*self._changed, return_exceptions=True)
                await self._outbox.close()

    async def _connect(self, servers: Sequence[str]) -> None:
        """Connects, subscribes, and waits until the client gives up: up to then it reconnects by itself."""
        client, is_closed = _Client(), asyncio.Event()

        async def closed() -> None:
            is_closed.set()

        connecting = client.connect(
            list(servers),
            name=self._worker,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RECONNECT_EVERY,  # type: ignore[arg-type]  # it only sleeps so long
            ping_interval=PING_EVERY,
            max_outstanding_pings=2,
            no_echo=True,
            error_cb=self._failed,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            closed_cb=closed,
            **_credentials(servers),
        )
        try:
            await connecting
        except asyncio.CancelledError:
            await _close(client)
            raise
        try:
            self._client, self._followed = client, dict.fromkeys(self._followed)
            self._logged.clear()
            log.info("bus_connected", message="hints go to the other processes through NATS")
            if self._works:
                await client.subscribe(f"{self._prefix}.wake", queue=WORKERS, cb=self._heard)
            await client.subscribe(f"{self._prefix}.stop", cb=self._heard)
            await client.subscribe(f"{self._prefix}.draft.{_token(self._worker)}", cb=self._answer_draft)
            for session_id in self._followed:
                self._soon(self._follow(session_id))
            # The client ends itself when it is refused while it is connected, as after a password was changed.
            await is_closed.wait()
            if client.last_error:
                await self._failed(client.last_error)
        finally:
            await _close(client)

    async def _publish(self, hints: Sequence[Hint]) -> None:
        client = self._client
        if client is None:
            return
        by_subject: dict[str, list[Hint]] = defaultdict(list)
        for hint in hints:
            if isinstance(hint, Wake):  # each is for one worker: they do not travel together
                await client.publish(f"{self._prefix}.wake", msgspec.msgpack.encode([hint]))
            else:
                by_subject[self._subject(hint)].append(hint)
        for subject, some in by_subject.items():
            for batch in batches(some, LARGEST, msgspec.msgpack.encode):
                await client.publish(subject, msgspec.msgpack.encode(batch))

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
        client = self._client
        if client is None or not client.is_connected or session_id not in self._followed:
            return
        if self._followed[session_id]:
            return
        subscription = await client.subscribe(self._of_session(session_id), cb=self._heard)
        if session_id in self._followed:
            self._followed[session_id] = subscription
            await self._ask(session_id)
        else:
            await self._ended(subscription)

    async def _ask(self, session_id: str) -> None:
        """Asks the worker of a session what it has written of its reply."""
        holder = await leases.holder(self._db, session_id)
        client = self._client
        if client is None or not client.is_connected or holder is None or holder == self._worker:
            return
        subject = f"{self._prefix}.draft.{_token(holder)}"
        with suppress(Error, TimeoutError):
            answer = await client.request(subject, session_id.encode(), timeout=SNAPSHOT_WITHIN)
            if written := _DRAFT.decode(answer.data):
                self._bus.receive(News(session_id, written))

    async def _answer_draft(self, message: Msg) -> None:
        session_id = message.data.decode()
        written = self._bus.written(session_id)
        payload = msgspec.msgpack.encode(written)
        if written and len(payload) > LARGEST:
            self._outbox.put(News(session_id, written))  # in pieces, to all who follow
            payload = msgspec.msgpack.encode(None)
        await message.respond(payload)

    async def _ended(self, subscription: Subscription) -> None:
        with suppress(Error):
            await subscription.unsubscribe()

    async def _disconnected(self) -> None:
        """Also called of a connection that was refused while NATS is away: that is one outage, told once."""
        if self._is_leaving or AWAY in self._logged:
            return
        self._logged.add(AWAY)
        log.warning("bus_disconnected", message=AWAY)

    async def _failed(self, error: Exception) -> None:
        """Warns of the first error of each kind. Only the server is quoted: other texts may hold the address."""
        what = str(error) if isinstance(error, Error) else type(error).__name__
        message = _meaning(error, what.lower())
        if not message and not self.is_connected and not self._logged:
            message = AWAY
        is_new = bool(message) and message not in self._logged
        if is_new:
            self._logged.add(message)
        key = "bus_error" if self.is_connected else "bus_disconnected"
        (log.warning if is_new else log.debug)(key, message=message or "an error of the NATS client", error=what)

    async def _reconnected(self) -> None:
        self.reconnects += 1
        self._logged.clear()
        log.info("bus_connected", message="NATS is back")
        for session_id in list(self._followed):
            self._soon(self._ask(session_id))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(background.guarded("bus_follow", work))
        self._changed.add(task)
        task.add_done_callback(self._changed.discard)


async def problem(servers: Sequence[str]) -> str:
    """Why no hints can go through these servers, in words that hold no password; empty if they can."""
    client, errors = _Client(), list[Exception]()

    async def failed(error: Exception) -> None:
        errors.append(error)

    async def heard(message: Msg) -> None:
        pass

    try:
        async with asyncio.timeout(TRIED_FOR):
            await client.connect(list(servers), max_reconnect_attempts=1, error_cb=failed, **_credentials(servers))
            subject = f"longhouse.doctor.{_token(str(id(client)))}"
            # A permission is refused when it is used.
            await client.subscribe(subject, cb=heard)
            await client.publish(subject, b"")
            await client.flush()
    except (Error, OSError, TimeoutError) as error:
        errors.append(error)
    finally:
        await _close(client)
    meanings = (_meaning(one, str(one).lower()) for one in errors)
    return next(filter(None, meanings), AWAY) if errors else ""


def _meaning(error: Exception, text: str) -> str:
    """What an operator has to mend; empty if NATS is only away."""
    if isinstance(error, SecureConnWantedError):
        return NOT_SECURE
    if "permissions violation" in text:
        return DENIED
    return REFUSED if "authorization" in text or "authentication" in text else ""


async def _close(client: Client) -> None:
    with suppress(Error, OSError, TimeoutError):
        await client.drain() if client.is_connected else await client.close()


def _credentials(servers: Sequence[str]) -> dict[str, Any]:
    """Who we are, as the addresses say: the client itself would send it as it is written there, with percent signs."""
    for server in servers:
        found = urlsplit(server if "://" in server else f"nats://{server}")
        if found.username is not None:
            user = unquote(found.username)
            return {"token": user} if found.password is None else {"user": user, "password": unquote(found.password)}
    return {}


def _token(name: str) -> str:
    """A part of a subject; names may hold what a subject cannot."""
    return hashlib.blake2b(name.encode(), digest_size=10).hexdigest()
