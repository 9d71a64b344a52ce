"""Requests that create something, with an idempotency key: a repeated one gets what the first one has made."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Final, TypeVar

from fastapi import Header
from pydantic import Field

from longhouse.api.caller import Caller
from longhouse.api.pagination import Omittable
from longhouse.errors import CallerError
from longhouse.store import sessions
from longhouse.store.database import Database
from longhouse.store.requests import Repeated, RequestIdentity
from longhouse.store.sessions import AcceptedRequest

MAX_KEY: Final = 255

IdempotencyKey = Annotated[
    Omittable[Annotated[str, Field(min_length=1, max_length=MAX_KEY, pattern=r"^[ -~]+$")]],
    Header(alias="Idempotency-Key", description="A request that is repeated with it creates nothing more"),
]
T = TypeVar("T")


class RequestsInProgress:
    """Requests that this process is writing to a journal: a racing retry waits for the first one."""

    def __init__(self) -> None:
        self._done: dict[asyncio.Event, RequestIdentity] = {}

    @contextmanager
    def writing(self, accepted: RequestIdentity) -> Iterator[None]:
        """Registers the request while it is being written, whether or not that succeeds."""
        done = asyncio.Event()
        self._done[done] = accepted
        try:
            yield
        finally:
            del self._done[done]
            done.set()

    async def others(self, accepted: RequestIdentity) -> bool:
        """Waits for identical requests in progress; returns whether there were any."""
        mine = (accepted.owner, accepted.digest)
        identical = [done for done, one in self._done.items() if (one.owner, one.digest) == mine]
        for done in identical:
            await done.wait()
        return bool(identical)


def accepted(caller: Caller, key: str | None, *what: str) -> RequestIdentity | None:
    """A request as it is stored; None: it may be repeated as often as its client likes. `what`: all that it asks."""
    if key is None:
        return None
    return RequestIdentity(owner=caller.owner, digest=hashlib.sha256("\x00".join(what).encode()).hexdigest(), key=key)


async def accepted_before(db: Database, asked: RequestIdentity | None) -> AcceptedRequest | None:
    """The same request, if it was accepted before; raises if its key came with another one."""
    if asked is None:
        return None
    before = await sessions.request_by_key(db, asked.owner, asked.key or "")
    if before and before.digest != asked.digest:
        raise CallerError("This Idempotency-Key was used with another body.", status=422, code="key_reused")
    return before


async def made_once(
    db: Database, before: Callable[[], Awaitable[T | None]], write: Callable[[], Awaitable[T | None]]
) -> T | None:
    """What `write` makes; or what `before` finds, if the same request was first meanwhile and nothing more is made."""
    try:
        return await write() or await before()
    except Repeated:
        # Another one was first; or the key is that of an expired request.
        await sessions.forget_requests(db)
        return await before() or await write()
