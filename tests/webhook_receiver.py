"""A receiver of webhooks on a real socket: it verifies each request with the public library of Standard Webhooks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook


@dataclass(frozen=True)
class Received:
    id: str
    body: Any
    headers: dict[str, str]
    raw: bytes

    @property
    def type(self) -> str:
        return str(self.body["type"])

    @property
    def data(self) -> Any:
        return self.body["data"]


@dataclass
class Receiver:
    secret: str = ""
    """What it verifies with; whatever cannot be verified is refused with 401."""
    url: str = ""
    answers: list[int] = field(default_factory=list)
    """The status of the next requests, 0: none comes until the receiver is let go; after that all is well."""
    got: list[Received] = field(default_factory=list)
    """What was answered with 200, in this order."""
    held: int = 0
    """Requests that wait for an answer."""
    statuses: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    """Sent with each answer."""
    body: str = ""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        raw, headers = await request.read(), {name.lower(): value for name, value in request.headers.items()}
        try:
            body = Webhook(self.secret).verify(raw, headers)
        except Exception:  # noqa: BLE001 - whatever the library says: the request is refused
            return self._answer(401)
        status = self.answers.pop(0) if self.answers else 200
        if not status:
            self.held += 1
            await self.go_on.wait()
            return self._answer(503)
        if status == 200:
            self.got.append(Received(headers["webhook-id"], body, headers, raw))
        return self._answer(status)

    def _answer(self, status: int) -> web.Response:
        self.statuses.append(status)
        return web.Response(status=status, headers=self.headers, text=self.body)

    async def until(self, told: Callable[["Receiver"], bool], within: float = 30.0) -> None:
        async with asyncio.timeout(within):
            while not told(self):
                await asyncio.sleep(0.02)

    async def first(self, count: int) -> "list[Received]":
        """So many different events, in the order in which each first came."""
        await self.until(lambda one: len({each.id for each in one.got}) >= count)
        return list({each.id: each for each in reversed(self.got)}.values())[::-1]

    def of(self, session_id: str) -> list[str]:
        """What was told of a session, in the order in which each first came: types, with the state of a rest."""
        seen = dict[str, str]()
        for one in self.got:
            if one.data.get("session_id") == session_id:
                seen.setdefault(one.id, " ".join(filter(None, (one.type, one.data.get("state")))))
        return list(seen.values())


@asynccontextmanager
async def receiving(receiver: Receiver, port: int = 0) -> AsyncIterator[Receiver]:
    """Listens while the block runs."""
    runner = web.ServerRunner(web.Server(receiver.handle, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        yield receiver
    finally:
        receiver.go_on.set()
        await runner.cleanup()


def types(got: Sequence[Received]) -> list[str]:
    return [one.type for one in got]
