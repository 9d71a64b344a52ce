"""Idempotency of requests: a retry does not append its events twice, even while the first try is under way."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg
import msgspec

from longhouse.store import sessions
from longhouse.store.database import Database, Executor, Transaction, advisory_key
from longhouse.store.limits import budgets
from longhouse.store.openai import responses
from longhouse.store.openai.responses import NewResponse

LOCKS: Final = 0x72717374
"""The class of these advisory locks, "rqst"; one lock covers the requests of one owner with the same digest."""

# Always true: it takes the request's lock (shared) until the transaction commits. It needs no round trip of its own,
# and first tries do not wait for each other.
UNDER_WAY: Final = f"""
    (:lock::integer IS NULL OR (SELECT pg_advisory_xact_lock_shared({LOCKS}, :lock)::text) IS NOT NULL)
"""
ADD: Final = "INSERT INTO requests (owner, digest, key, session_id, trace_id, seq, at)"
"""What a request has made is told by its id: a session, or a schedule."""
_ACCEPTED: Final = f"""
, accepted AS (
    {ADD}
    SELECT :owner, :digest, :key, moved.id, COALESCE(:follows::text, :trace), moved.head, :at FROM moved
)
"""
_RESPONDED: Final = f"""
, responded AS (
    {responses.RESPOND}
), used AS (
    {responses.USE_ITEMS}
)
"""


class Repeated(Exception):  # noqa: N818
    """The same request has already been accepted."""


class RequestIdentity(msgspec.Struct, frozen=True):
    """The request behind an append, stored so that a retry finds its turn."""

    owner: str
    digest: str
    key: str | None = None
    is_retry: bool | None = None
    """Does the client say that this is a retry? None: it sends no retry count."""
    api_key: str | None = None
    """The id of the API key that sent it; None: no keys are set."""
    has_turn_budget: bool = False
    """Whether turns of this key are limited."""
    follows: str | None = None
    """The trace of the turn that the client follows, where the event belongs to another trace: that of a sub-agent."""
    response: NewResponse | None = None
    """The response that begins with it, if it came by /v1/responses."""

    @property
    def lock(self) -> int | None:
        """The advisory lock that a retry waits for; None where no retry is expected or a key detects it."""
        if self.key or self.is_retry is None:
            return None
        return advisory_key(f"{self.owner}\x00{self.digest}".encode())


@contextmanager
def repeated() -> Iterator[None]:
    """Raises Repeated where a request would be stored whose idempotency key is taken."""
    try:
        yield
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name == "requests_key":
            raise Repeated from error
        raise


@functools.cache
def _storing(sql: str, *, accepts: bool, responds: bool, takes_turn: bool) -> str:
    """The statement with what this request needs: Postgres prepares every part, be it one that does nothing."""
    more = (_ACCEPTED if accepts else "") + (_RESPONDED if responds else "")
    if takes_turn:
        sql, more = sql.replace(UNDER_WAY, f"{UNDER_WAY} AND {budgets.TURNS_LEFT}"), more + budgets.TAKE_TURN
    return sql.replace("{accepted}", more)


async def accept(
    db: Executor, accepted: RequestIdentity | None, sql: str, *, takes_turn: bool = False, **values: object
) -> asyncpg.Record | None:
    """Runs the statement that stores a request, where it says `{accepted}`; raises Repeated for a retry of a request
    that is stored already.

    `takes_turn`: of the budget of its key; nothing is written if none is left.

    A retry may arrive, perhaps in another process, while the first try still waits for Postgres: it waits for the
    first one's lock.
    """
    values |= {"lock": accepted and accepted.lock, "api_key": accepted and accepted.api_key}
    if accepted:
        request = {name: getattr(accepted, name) for name in ("owner", "digest", "key", "follows")}
        values = {**request, **values}
    if response := accepted and accepted.response:
        values |= msgspec.structs.asdict(response)
    sql = _storing(sql, accepts=accepted is not None, responds=response is not None, takes_turn=takes_turn)
    if accepted is None or not accepted.is_retry or (lock := accepted.lock) is None or not isinstance(db, Database):
        return await db.row(sql, **values)

    async def insert_unless_repeated(tx: Transaction) -> asyncpg.Record | None:
        await tx.lock(LOCKS, lock)
        if await tx.row(sessions.BY_DIGEST, owner=accepted.owner, digest=accepted.digest):
            raise Repeated
        return await tx.row(sql, **values)

    return await db.together(insert_unless_repeated)
