"""Several processes behind one port, for what only one of them knows: its metrics, and its sessions of MCP.

They reach each other by sockets in a folder of their own. Everything else is in Postgres, and any of them answers.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import aiohttp
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longhouse.api import wire

MCP_SESSION: Final = "mcp-session-id"
WITHIN: Final = 5.0
"""Seconds for the metrics of a process: one that stands still is left out."""
CLIENT: Final = "longhouse-client"
"""The header with the client's address, for a process that counts guessed keys. It is believed only on the sockets
between processes; what clients send under this name is dropped."""
HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "expect"})


class Siblings:
    """In front of the application of one of the processes."""

    def __init__(self, app: ASGIApp, sockets: Sequence[str], number: int, root_path: str = "") -> None:
        """`sockets`: where each process is reached by the others. `number`: which of them this is, counted from 0."""
        self._app = app
        self._sockets, self._number = sockets, number
        self._root = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(self._root) if scope["type"] == "http" else ""
        # By the socket at which it came: who asks may be unknown, or be what a proxy says.
        is_from_sibling = (scope.get("server") or (None, 0))[1] is None
        if is_from_sibling:
            scope = {**scope, "client": (Headers(scope=scope).get(CLIENT, ""), 0)}
        if path == "/metrics" and not is_from_sibling:
            await self._metrics(scope, receive, send)
        elif path == "/mcp":
            await self._mcp(scope, receive, send, may_forward=not is_from_sibling)
        else:
            await self._app(scope, receive, send)

    # Metrics

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The metrics of all processes on one page; a request that this one refuses is not passed on."""
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        await self._app(scope, receive, keep)
        start, *rest = answer
        if start["status"] != 200:
            for message in answer:
                await send(message)
            return
        pages = await asyncio.gather(*(self._fetched(number, scope) for number in range(len(self._sockets))))
        pages[self._number] = b"".join(message.get("body", b"") for message in rest)
        texts = {str(number + 1): page.decode() for number, page in enumerate(pages) if page is not None}
        page = merged(texts).encode()
        MutableHeaders(scope=start)["content-length"] = str(len(page))
        await send(start)
        await send({"type": "http.response.body", "body": page})

    async def _fetched(self, number: int, scope: Scope) -> bytes | None:
        """The page of another process."""
        if number != self._number:
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with asyncio.timeout(WITHIN), self._asked(number, scope) as answer:
                    return await answer.read() if answer.status == 200 else None
        return None

    # Sessions of MCP: their ids say which process has them

    async def _mcp(self, scope: Scope, receive: Receive, send: Send, *, may_forward: bool) -> None:
        headers = MutableHeaders(scope=scope)
        named = re.fullmatch(r"(\d{1,3})-(.+)", headers.get(MCP_SESSION, ""))
        number = int(named[1]) - 1 if named else self._number
        if number != self._number and 0 <= number < len(self._sockets) and may_forward:
            await self._forward(number, scope, receive, send)
            return
        if named and number == self._number:
            scope = {**scope, "headers": list(scope["headers"])}
            MutableHeaders(scope=scope)[MCP_SESSION] = named[2]

        async def send_with_session(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                if MCP_SESSION in answered:
                    answered[MCP_SESSION] = f"{self._number + 1}-{answered[MCP_SESSION]}"
            await send(message)

        await self._app(scope, receive, send_with_session)

    async def _forward(self, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands a request on, piece by piece, and its answer back, until either side has enough."""
        body, is_begun = _ForwardedBody(receive), False

        async def send_and_note(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        relaying = asyncio.create_task(self._relay(number, scope, body, send_and_note))
        leaving = asyncio.create_task(body.left())
        try:
            await asyncio.wait((relaying, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_done = relaying.done()
            for task in (relaying, leaving):
                task.cancel()
            await asyncio.gather(relaying, leaving, return_exceptions=True)
        if not is_done or is_begun or relaying.cancelled():
            return
        if isinstance(relaying.exception(), aiohttp.ClientConnectionError):
            # It has died, or is being started again, and its sessions are gone: the client opens another.
            await wire.error_response(wire.not_found("This MCP session is gone."))(scope, receive, send)

    async def _relay(self, number: int, scope: Scope, body: "_ForwardedBody", send: Send) -> None:
        async with self._asked(number, scope, body.pieces()) as answer:
            headers = [one for one in answer.raw_headers if one[0].decode("latin-1").lower() not in HOP_BY_HOP]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    @asynccontextmanager
    async def _asked(
        self, number: int, scope: Scope, body: AsyncIterator[bytes] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        # The length of the body stays: it is judged where it is read.
        left_out = HOP_BY_HOP - {"content-length"}
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        headers = [one for one in headers if one[0] not in (CLIENT, *left_out)]
        headers.append((CLIENT, scope["client"][0] if scope.get("client") else ""))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=1.0)
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self._sockets[number]),
                timeout=timeout,
                auto_decompress=False,
                skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            ) as http,
            http.request(scope["method"], f"http://sibling{scope['path']}", headers=headers, data=body) as answer,
        ):
            yield answer


class _ForwardedBody:
    """The body of a request, and what comes after it: that the client leaves."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_read = asyncio.Event()

    async def pieces(self) -> AsyncIterator[bytes]:
        while not self._is_read.is_set():
            message = await self._receive()
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                self._is_read.set()
            yield message.get("body", b"")

    async def left(self) -> None:
        await self._is_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def merged(pages: Mapping[str, str]) -> str:
    """Metrics of several processes on one page: each sample says of which process it is."""
    families: dict[str, list[str]] = {}
    for process, page in pages.items():
        samples: list[str] = []
        for line in page.removesuffix("\n").split("\n"):  # other ends of lines may be in values
            if line.startswith("# HELP "):
                samples = families.setdefault(line.split(" ", 3)[2], [])
            if not line.startswith("#"):
                samples.append(_labelled(line, process))
            elif line not in samples:
                samples.append(line)
    return "\n".join(line for lines in families.values() for line in lines) + "\n"


def _labelled(sample: str, process: str) -> str:
    """A sample with one more label: its first, since values of others may hold any character."""
    name, brace, rest = sample.partition("{")
    if brace and " " not in name:
        return f'{name}{{process="{process}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{process="{process}"}} {value}'
