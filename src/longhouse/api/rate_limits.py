"""Rate limits, counted in this process: what a key may use, and how many keys an address may try."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from longhouse.errors import CallerError

GUESSES: Final = 10
"""Keys that one address may try in a minute, of those that could be guessed."""
ADDRESSES: Final = 1_000
"""Addresses whose guesses are counted; the one that was heard of longest ago is forgotten."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    rate_limit: int = 600
    """Requests per minute."""
    max_concurrent: int = 100
    """Concurrent requests; an open stream counts as one."""
    sessions_per_hour: int = 1_000
    """New sessions per hour."""


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


class Meter:
    """The usage of one key against its limits."""

    def __init__(self, limits: KeyLimits) -> None:
        self._requests = Bucket(limits.rate_limit, 60.0)
        self._sessions = Bucket(limits.sessions_per_hour, 3600.0)
        self._max_concurrent = limits.max_concurrent
        self._concurrent = 0

    def enter(self) -> None:
        """Counts a new request, or raises; each successful call needs a `leave`."""
        if self._concurrent >= self._max_concurrent:
            raise _too_many(f"This key has {self._max_concurrent} open requests, which is its limit.", 1.0)
        if wait := self._requests.take():
            raise _too_many(f"This key may send {self._requests.size} requests a minute.", wait)
        self._concurrent += 1

    def leave(self) -> None:
        self._concurrent -= 1

    def open_session(self) -> None:
        if wait := self._sessions.take():
            raise _too_many(f"This key may open {self._sessions.size} sessions an hour.", wait)

    @property
    def used(self) -> dict[str, int]:
        """What of each limit is used now, under the names of `KeyLimits`."""
        return {
            "rate_limit": self._requests.size - self._requests.left,
            "max_concurrent": self._concurrent,
            "sessions_per_hour": self._sessions.size - self._sessions.left,
        }

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """The rate limit headers that OpenAI's clients read."""
        return [
            (b"x-ratelimit-limit-requests", b"%d" % self._requests.size),
            (b"x-ratelimit-remaining-requests", b"%d" % self._requests.left),
            (b"x-ratelimit-reset-requests", b"%ds" % math.ceil(self._requests.full_in)),
        ]


def _too_many(message: str, wait: float) -> CallerError:
    retry_after = math.ceil(wait)
    return CallerError(
        f"{message} Try again in {retry_after} s.",
        status=429,
        kind="rate_limit_error",
        code="rate_limit_exceeded",
        retry_after=retry_after,
    )
