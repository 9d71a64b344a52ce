"""Requests that become events once, although their clients send them again."""

import hashlib
from dataclasses import dataclass
from typing import Final

import asyncpg

from longhouse.store import sessions
from longhouse.store.database import Asked, Within

LOCKS: Final = 0x72717374
"""The class of our advisory locks, "rqst"; each is for the requests of one owner that say the same."""
LOCK: Final = "SELECT pg_advisory_xact_lock($1, $2)"


class Repeated(Exception):  # noqa: N818
    """The same request was accepted before."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request that an append answers for, kept so that a repeat finds its turn."""

    owner: str
    digest: str
    key: str | None = None
    is_retry: bool | None = None
    """Does the client say that it has sent this before? None: it says nothing of retries."""
    follows: str | None = None
    """The trace of the turn that its client follows, where the event belongs to another: that of an agent beneath."""

    @property
    def lock(self) -> int | None:
        """What a retry has to wait for; None where no retry is to be expected, or a key tells it."""
        if self.key or self.is_retry is None:
            return None
        digest = hashlib.sha256(f"{self.owner}\x00{self.digest}".encode()).digest()
        return int.from_bytes(digest[:4], signed=True)


def under_way(parameter: str) -> str:
    """A condition that is always true: a statement with it holds the request's lock until what it writes is there.

    It takes no round trip of its own, and first tries do not wait for each other.
    """
    taken = f"(SELECT pg_advisory_xact_lock_shared({LOCKS}, {parameter})::text) IS NOT NULL"
    return f"({parameter}::integer IS NULL OR {taken})"


async def accept(db: Asked, accepted: Accepted | None, sql: str, *args: object) -> asyncpg.Record | None:
    """Sends the statement that writes a request down; raises Repeated for a retry of one that is there already.

    A retry may come while the first try still waits for Postgres, sent by another process: it waits for that one.
    """
    if accepted is None or not accepted.is_retry or accepted.lock is None or isinstance(db, Within):
        return await db.row(sql, *args)

    async def look_first(tx: Within) -> asyncpg.Record | None:
        await tx.run(LOCK, LOCKS, accepted.lock)
        if await tx.row(sessions.BY_DIGEST, accepted.owner, accepted.digest):
            raise Repeated
        return await tx.row(sql, *args)

    return await db.together(look_first)
