"""Rate limits: what a key may use, counted for all gateways together, and how many keys an address may try."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from longhouse.errors import CallerError
from longhouse.store.database import Database
from longhouse.store.limits import permits
from longhouse.store.limits.permits import KeyUse

GUESSES: Final = 10
"""Keys that one address may try in a minute, of those that could be guessed."""
ADDRESSES: Final = 1_000
"""Addresses whose guesses are counted; the one that was heard of longest ago is forgotten."""
BLOCKS: Final = 10
"""A gateway takes a tenth of a limit at once."""
KEPT_FOR: Final = 5.0
"""Seconds after which permits that nobody used go back."""
REFUSED_FOR: Final = 1.0
"""Seconds for which a used-up limit is not queried again: a flood of requests costs no statements."""
REPORTED_EVERY: Final = 1.0
"""Seconds between two reports of open requests to the other gateways."""


class KeyLimits(msgspec.Struct, frozen=True):
    rate_limit: int = 600
    """Requests per minute."""
    max_concurrent: int = 100
    """Concurrent requests; an open stream counts as one."""
    sessions_per_hour: int = 1_000
    """New sessions per hour."""
    max_running: int | None = None
    """Sessions that the key prompted and that run at once; None: any number. The workers see to it."""


class Bucket:
    """A token bucket: holds at most `size` permits and refills evenly, completely within `seconds`."""

    def __init__(self, size: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self.size = size
        self._pace = size / seconds
        self._now = now
        self._level, self._at = float(size), now()

    def take(self) -> float:
        """Takes a permit and returns 0; if there is none, returns the seconds until the next one."""
        if self._fill() < 1:
            return (1 - self._level) / self._pace
        self._level -= 1
        return 0.0

    @property
    def left(self) -> int:
        return int(self._fill())

    @property
    def full_in(self) -> float:
        """Seconds until the bucket is full."""
        return (self.size - self._fill()) / self._pace

    def _fill(self) -> float:
        now = self._now()
        self._level = min(float(self.size), self._level + (now - self._at) * self._pace)
        self._at = now
        return self._level


class GuessLimit:
    """Bounds how many different keys an address may try, of those that could be guessed."""

    def __init__(self, size: int = GUESSES, addresses: int = ADDRESSES) -> None:
        self._size = size
        self._addresses = addresses
        self._buckets: dict[str, tuple[Bucket, deque[str]]] = {}

    def has_some(self, address: str) -> bool:
        """May the address try another key?"""
        known = self._buckets.get(address)
        return known is None or known[0].left > 0

    def take(self, address: str, digest: str) -> None:
        """Counts a wrong key, or raises; a program that sends the same one again and again guesses once."""
        new = Bucket(self._size, 60.0), deque[str](maxlen=self._size)
        bucket, tried = self._buckets[address] = self._buckets.pop(address, new)
        if len(self._buckets) > self._addresses:
            del self._buckets[next(iter(self._buckets))]
        if digest in tried:
            return
        if wait := bucket.take():
            raise _too_many("Too many keys were tried from this address.", wait)
        tried.append(digest)


class PermitBlock:
    """The permits of a key that this gateway has taken from the bucket of all gateways, and not used yet."""

    def __init__(
        self, db: Database, key_id: str, kind: Literal["requests", "sessions"], size: int, seconds: float
    ) -> None:
        self.size = size
        self.unused = 0
        self._db, self._key_id, self._kind = db, key_id, kind
        self._seconds = seconds
        self._left, self._at = float(size), time.monotonic()
        """What was left for all gateways, and when."""
        self._used_at = self._refused_at = -math.inf
        self._asking = asyncio.Lock()

    async def take(self) -> float:
        """Takes a permit and returns 0; if there is none, returns the seconds until the next one."""
        if not self.unused:
            async with self._asking:
                # Somebody else may have asked meanwhile.
                if not self.unused and time.monotonic() > self._refused_at + REFUSED_FOR:
                    await self._ask()
        if not self.unused:
            return max(0.001, (1 - self._level) * self._seconds / self.size)
        self.unused -= 1
        self._used_at = time.monotonic()
        return 0.0

    async def give_back(self, *, idle: float = KEPT_FOR) -> None:
        """Gives back what nobody has used for a while."""
        if self.unused and time.monotonic() - self._used_at >= idle:
            number, self.unused = self.unused, 0
            await permits.give_back(self._db, self._key_id, self._kind, number)
            self._left = self._level + number
            self._at = time.monotonic()

    @property
    def left(self) -> int:
        """Permits that are left for the key, as far as this gateway knows."""
        return min(self.size, self.unused + int(self._level))

    @property
    def full_in(self) -> float:
        """Seconds until all permits are there again."""
        return max(0.0, self.size - self.unused - self._level) * self._seconds / self.size

    @property
    def _level(self) -> float:
        filled = (time.monotonic() - self._at) * self.size / self._seconds
        return min(float(self.size), self._left + filled)

    async def _ask(self) -> None:
        block = max(1, self.size // BLOCKS)
        granted = await permits.take(
            self._db, self._key_id, self._kind, size=self.size, seconds=self._seconds, block=block
        )
        self.unused += granted.permits
        self._left, self._at = granted.left, time.monotonic()
        if not granted.permits:
            self._refused_at = self._at


class Meter:
    """The usage of one key against its limits: what this gateway knows of it, and takes of it."""

    def __init__(
        self,
        db: Database,
        gateway: str,
        key_id: str,
        limits: KeyLimits,
        report_soon: Callable[[], None] = lambda: None,
    ) -> None:
        """`report_soon`: called when a request ends for which other gateways may still refuse others."""
        self._report_soon = report_soon
        self.requests = PermitBlock(db, key_id, "requests", limits.rate_limit, 60.0)
        self.sessions = PermitBlock(db, key_id, "sessions", limits.sessions_per_hour, 3600.0)
        self.open = 0
        self.reported = 0
        """What the other gateways know of `open`."""
        self.others = 0
        """Open requests at the other gateways, when they last reported."""
        self._db, self._gateway, self._key_id = db, gateway, key_id
        self._max_concurrent = limits.max_concurrent
        self._reported_at = -math.inf

    def adopt(self, limits: KeyLimits) -> None:
        """The limits of the key, which may have been changed."""
        self.requests.size, self.sessions.size = limits.rate_limit, limits.sessions_per_hour
        self._max_concurrent = limits.max_concurrent

    async def enter(self) -> None:
        """Counts a new request, or raises; each successful call needs a `leave`."""
        self.open += 1
        try:
            if time.monotonic() > self._reported_at + 2 * REPORTED_EVERY:
                self.hear(await permits.report_open(self._db, self._gateway, {self._key_id: self.open}))
            if self.open + self.others > self._max_concurrent:
                raise _too_many(f"This key has {self._max_concurrent} open requests, which is its limit.", 1.0)
            if wait := await self.requests.take():
                raise _too_many(f"This key may send {self.requests.size} requests a minute.", wait)
        except BaseException:
            self.open -= 1
            raise

    def leave(self) -> None:
        self.open -= 1
        if self.reported + self.others >= self._max_concurrent:
            self._report_soon()

    def hear(self, others: dict[str, int]) -> None:
        """The open requests at other gateways, in answer to the report of this one."""
        self.reported, self.others = self.open, others.get(self._key_id, 0)
        self._reported_at = time.monotonic()

    async def open_session(self) -> None:
        if wait := await self.sessions.take():
            raise _too_many(f"This key may open {self.sessions.size} sessions an hour.", wait)

    async def give_back(self, *, idle: float = KEPT_FOR) -> None:
        await self.requests.give_back(idle=idle)
        await self.sessions.give_back(idle=idle)

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The rate limit headers that OpenAI's clients read."""
        return [
            (b"x-ratelimit-limit-requests", b"%d" % self.requests.size),
            (b"x-ratelimit-remaining-requests", b"%d" % self.requests.left),
            (b"x-ratelimit-reset-requests", b"%ds" % math.ceil(self.requests.full_in)),
        ]


def used(limits: KeyLimits, known: KeyUse, meter: Meter | None) -> dict[str, int]:
    """What of each limit is used now by all gateways, under the names of `KeyLimits`."""

    def taken(size: int, left: float | None, block: PermitBlock | None) -> int:
        unused = block.unused if block else 0
        return max(0, size - min(size, math.floor((size if left is None else left) + unused)))

    return {
        "rate_limit": taken(limits.rate_limit, known.requests_left, meter.requests if meter else None),
        "max_concurrent": known.open + (meter.open if meter else 0),
        "sessions_per_hour": taken(limits.sessions_per_hour, known.sessions_left, meter.sessions if meter else None),
        "max_running": known.running,
    }


def _too_many(message: str, wait: float) -> CallerError:
    retry_after = math.ceil(wait)
    return CallerError(
        f"{message} Try again in {retry_after} s.",
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=retry_after,
    )
