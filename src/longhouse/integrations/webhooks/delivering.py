"""Sends what waits for webhooks: each webhook by one worker of the fleet at a time, each session in its order.

They are signed as by Standard Webhooks (https://www.standardwebhooks.com), version 1: HMAC-SHA256 with a shared secret.

A worker that is killed in the middle leaves its webhook to another; what it was sending is sent again.
"""

import asyncio
import base64
import hashlib
import hmac
import random
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
import structlog

from longhouse import background, clock
from longhouse.egress import Egress, Lookup, parse
from longhouse.integrations.webhooks.collector import Collector
from longhouse.models.http.client import Endpoint, StatusFailure, json_headers, open_pool
from longhouse.models.http.connection import Timeouts
from longhouse.models.http.failure import HttpFailure
from longhouse.models.http.pool import HttpPool
from longhouse.redaction import redaction_of
from longhouse.store.automation import webhook_deliveries, webhooks
from longhouse.store.automation.webhook_deliveries import ClaimedWebhook, DueDelivery
from longhouse.store.database import Database

log = structlog.get_logger()

AT_ONCE: Final = 4
"""Requests to one webhook, each about another session."""
MOST_AT_ONCE: Final = 64
"""Requests of one process, to all webhooks together: each has a socket."""
MOST_OF_OWNER: Final = 16
"""Of those, to webhooks of one owner: receivers that do not answer keep nobody else's waiting."""
LOOK_EVERY: Final = 1.0
SET_DUE_EVERY: Final = 60.0
"""Seconds between two looks at what was left behind by something that is gone."""
HELD_FOR: Final = 10.0
"""Seconds for which a webhook is held beyond those that a request may take."""
EXPIRE_EVERY: Final = 3600.0
MOST_ANSWER: Final = 64 * 2**10
JITTER: Final = 0.1
"""The share by which a delay may be longer: webhooks that failed together are not tried together."""
_RANDOM: Final = random.SystemRandom()
GONE: Final = 410
"""The answer by which a receiver says that it wants no more."""


MOST_THREADS: Final = 32

Ask = Callable[[str, int], Sequence[tuple[Any, ...]]]
_ask: Final[Ask] = partial(socket.getaddrinfo, type=socket.SOCK_STREAM)


class Resolver:
    """A `Lookup` in threads of its own: anybody with a key may name a host that is never resolved.

    The threads are shared with nothing else, so that only webhooks wait for them. A name is asked for once at a time,
    however many deliveries wait for it. Threads are not waited for when the process ends.
    """

    def __init__(self, ask: Ask = _ask, most: int = MOST_THREADS) -> None:
        self._ask = ask
        self._free = asyncio.Semaphore(most)
        self._asked: dict[tuple[str, int], asyncio.Task[list[str]]] = {}

    async def __call__(self, host: str, port: int) -> list[str]:
        asked = self._asked.get((host, port))
        if asked is None:
            asked = self._asked[host, port] = asyncio.create_task(self._found(host, port))
            asked.add_done_callback(lambda _: self._asked.pop((host, port), None))
        # Who gives up waiting leaves the answer to others.
        return await asyncio.shield(asked)

    async def _found(self, host: str, port: int) -> list[str]:
        async with self._free:  # until the thread has ended, whether somebody still waits or not
            found = await self._in_thread(host, port)
        return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))

    async def _in_thread(self, host: str, port: int) -> Sequence[tuple[Any, ...]]:
        answer: Future[Sequence[tuple[Any, ...]]] = Future()
        answer.set_running_or_notify_cancel()  # whoever waits may be cancelled; the thread is not

        def run() -> None:
            try:
                answer.set_result(self._ask(host, port))
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
                answer.set_exception(error)

        threading.Thread(target=run, name="webhook-resolver", daemon=True).start()
        return await asyncio.wrap_future(answer)


class DeliveryOptions(msgspec.Struct, frozen=True):
    retry_delays: Sequence[float]
    """Seconds before each further attempt; after the last one, the delivery has failed."""
    timeout: float
    pause_after: float
    """Seconds without a success after which a webhook is paused."""
    log_days: float


class Deliverer:
    """The deliveries of one process."""

    def __init__(self, db: Database, worker: str, pool: HttpPool, options: DeliveryOptions) -> None:
        self._db = db
        self._worker = worker
        self._pool = pool
        self._options = options
        self._tasks: dict[str, asyncio.Task[str]] = {}
        self._wanted = asyncio.Event()
        self.has_webhooks: Callable[[], bool] = lambda: True
        """False: there are no webhooks at all, so nothing can wait."""
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._free_of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By owner; for as long as somebody has or awaits a place."""
        self.outcomes = Counter(delivered=0, retried=0, failed=0)
        """Attempts that ended: `retried` are followed by another one, `failed` were the last."""

    def nudge(self) -> None:
        """There is something new to send."""
        self._wanted.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        expire = partial(webhook_deliveries.expire, self._db, days=self._options.log_days)
        set_left_due = partial(webhook_deliveries.set_left_due, self._db)
        async with (
            background.running("webhook_deliveries", self.step),
            background.running("webhook_log", expire, every=EXPIRE_EVERY, after=0.4),
            background.running("webhook_queue", set_left_due, every=SET_DUE_EVERY, after=0.5),
        ):
            try:
                yield
            finally:
                for task in self._tasks.values():
                    task.cancel()
                await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def step(self) -> None:
        """Begins with the webhooks that have something to send; a slow one holds no other up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(background.until_tick(LOOK_EVERY)):
                await self._wanted.wait()
        self._wanted.clear()
        if not self.has_webhooks():
            return
        for webhook_id in await webhook_deliveries.with_work(self._db, self._worker):
            if webhook_id not in self._tasks:
                work = background.guarded("webhook_delivery", self._deliver(webhook_id))
                self._tasks[webhook_id] = task = asyncio.create_task(work)
                task.add_done_callback(lambda _, ended=webhook_id: self._tasks.pop(ended, None))  # type: ignore[misc]

    async def _deliver(self, webhook_id: str) -> None:
        """Sends what is due, until nothing is, or another worker has the webhook."""
        sending: dict[asyncio.Task[None], str] = {}
        try:
            while claim := await self._claim(webhook_id):
                if free := AT_ONCE - len(sending):
                    under_way = list(sending.values())
                    for one in await webhook_deliveries.due(self._db, webhook_id, under_way=under_way, limit=free):
                        sending[asyncio.create_task(self._send(webhook_id, claim, one))] = one.id
                if not sending:
                    await webhook_deliveries.release(self._db, webhook_id, self._worker)
                    return
                # What has come meanwhile, and the next of each session, are looked for again.
                done, _ = await asyncio.wait(sending, timeout=LOOK_EVERY, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del sending[task]
                    task.result()
        finally:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)

    async def _claim(self, webhook_id: str) -> ClaimedWebhook | None:
        seconds = self._options.timeout + HELD_FOR
        return await webhook_deliveries.claim(self._db, webhook_id, self._worker, seconds=seconds)

    async def _send(self, webhook_id: str, claim: ClaimedWebhook, one: DueDelivery) -> None:
        try:
            of_owner = self._free_of.setdefault(claim.owner, asyncio.Semaphore(MOST_OF_OWNER))
            async with of_owner, self._free:  # the receiver's time begins after it
                status = await self._post(claim, one)
        except HttpFailure as failure:
            answered = failure.status if isinstance(failure, StatusFailure) else None
            await self._failed(webhook_id, one, answered, failure.sentence("The receiver"))
        except ValueError as error:
            await self._failed(webhook_id, one, None, f"The address cannot be used: {error}")
        except Exception:
            # It waits as after any failure: else it would be tried at once, again and again, and keep all others back.
            log.exception("webhook_attempt_failed", webhook=webhook_id, delivery=one.id)
            await self._failed(webhook_id, one, None, "The request could not be made")
        else:
            await webhook_deliveries.delivered(self._db, one.id, status=status)
            self.outcomes["delivered"] += 1

    async def _post(self, claim: ClaimedWebhook, one: DueDelivery) -> int:
        payload = one.payload.encode()
        signed = headers_of(one.id, int(clock.now().timestamp()), payload, claim.secrets)
        # A receiver may quote them with their prefix or without.
        keys = [secret.removeprefix(webhooks.PREFIX) for secret in claim.secrets]
        endpoint = Endpoint(
            pool=self._pool,
            url=parse(claim.url),
            headers=json_headers() | signed,
            redaction=redaction_of([*keys, *signed.values()]),
        )
        try:
            async with (
                asyncio.timeout(self._options.timeout),
                endpoint.post(payload, most_bytes=MOST_ANSWER) as answer,
            ):
                return answer.status
        except TimeoutError:
            raise HttpFailure(f"did not answer within {self._options.timeout:g} seconds") from None

    async def _failed(self, webhook_id: str, one: DueDelivery, status: int | None, error: str) -> None:
        delays = self._options.retry_delays
        longer = _RANDOM.uniform(1, 1 + JITTER)
        delay = delays[one.attempts] * longer if one.attempts < len(delays) else None
        since = await webhook_deliveries.failed(
            self._db, one.id, status=status, error=error, delay=delay, pause_after=self._options.pause_after
        )
        self.outcomes["failed" if delay is None else "retried"] += 1
        if delay is None:
            message = "the last attempt of a delivery has failed"
            found = {"webhook": webhook_id, "delivery": one.id, "attempts": one.attempts + 1}
            log.warning("webhook_delivery_failed", message=message, **found)
        reason = ""
        if status == GONE:
            reason = f"The receiver answered {GONE}: it wants no more."
        elif since:
            reason = f"Nothing could be delivered since {since:%Y-%m-%d %H:%M} UTC. {error}"
        if reason and await webhooks.pause(self._db, webhook_id, reason):
            log.warning("webhook_paused", message="nothing is sent to this webhook any more", webhook=webhook_id)


def headers_of(delivery: str, timestamp: int, payload: bytes, secrets: Sequence[str]) -> dict[str, str]:
    """The headers by which a receiver knows that the payload is ours; one signature for each secret."""
    signed = f"{delivery}.{timestamp}.".encode() + payload
    keys = (base64.b64decode(secret.removeprefix(webhooks.PREFIX)) for secret in secrets)
    signatures = (hmac.digest(key, signed, hashlib.sha256) for key in keys)
    return {
        "webhook-id": delivery,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(one).decode()}" for one in signatures),
    }


class RunningWebhooks(msgspec.Struct, frozen=True):
    """What runs for webhooks in this process."""

    nudge: Callable[[str], None]
    """Takes hints of appends."""
    outcomes: Callable[[], Mapping[str, int]]
    """Attempts so far, by outcome."""


@asynccontextmanager
async def open_webhooks(
    db: Database, worker: str, egress: Egress, options: DeliveryOptions, *, lookup: Lookup | None = None
) -> AsyncIterator[RunningWebhooks]:
    """Finds and delivers while the block runs."""
    async with open_pool(egress, Timeouts(), lookup=lookup or Resolver(), limit=MOST_AT_ONCE) as pool:
        deliverer = Deliverer(db, worker, pool, options)
        collector = Collector(db, deliverer.nudge)
        deliverer.has_webhooks = lambda: collector.has_webhooks
        async with deliverer.running(), background.running("webhook_events", collector.step):
            yield RunningWebhooks(collector.nudge, lambda: deliverer.outcomes)
