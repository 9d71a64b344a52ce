"""Several processes behind one port, for what only one of them knows: its metrics, and its sessions of MCP.

They reach each other by sockets in a folder of their own. Everything else is in Postgres, and any of them answers.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiohttp
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from longhouse.api import wire

MCP_SESSION: Final = "mcp-session-id"
WITHIN: Final = 5.0
"""Seconds for the metrics of a process: one that stands still is left out."""
HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "date", "expect"})


class Siblings:
    """In front of the application of one of the processes."""

    def __init__(self, app: ASGIApp, folder: str, number: int, of: int, root_path: str = "") -> None:
        """`number`: which process this is, counted from 0, `of` how many."""
        self._app = app
        self._folder = Path(folder)
        self._number, self._of = number, of
        self._root = root_path

    def path_of(self, number: int) -> str:
        """Where a process is reached by the others."""
        return str(self._folder / str(number + 1))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(self._root) if scope["type"] == "http" else ""
        is_from_sibling = scope.get("client") is None
        if path == "/metrics" and not is_from_sibling:
            await (await self._metrics(scope))(scope, receive, send)
        elif path == "/mcp":
            await self._mcp(scope, receive, send, may_forward=not is_from_sibling)
        else:
            await self._app(scope, receive, send)

    # Metrics

    async def _metrics(self, scope: Scope) -> Response:
        """The numbers of all processes, on one page; a refusal as this process gives it."""
        pages = await asyncio.gather(*(self._fetched(number, scope) for number in range(self._of)))
        own = pages[self._number] or Response(status_code=503)
        if own.status_code != 200:
            return own
        texts = {str(number + 1): bytes(page.body).decode() for number, page in enumerate(pages) if page}
        return Response(merged(texts), media_type=own.headers["content-type"])

    async def _fetched(self, number: int, scope: Scope) -> Response | None:
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with asyncio.timeout(WITHIN), self._asked(number, scope) as answer:
                headers = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
                return Response(await answer.read(), answer.status, headers)
        return None

    # Sessions of MCP: their ids say which process has them

    async def _mcp(self, scope: Scope, receive: Receive, send: Send, *, may_forward: bool) -> None:
        headers = MutableHeaders(scope=scope)
        named = re.fullmatch(r"(\d{1,3})-(.+)", headers.get(MCP_SESSION, ""))
        number = int(named[1]) - 1 if named else self._number
        if number != self._number and 0 <= number < self._of and may_forward:
            await self._forward(number, scope, receive, send)
            return
        if named and number == self._number:
            scope = {**scope, "headers": list(scope["headers"])}
            MutableHeaders(scope=scope)[MCP_SESSION] = named[2]

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                if MCP_SESSION in answered:
                    answered[MCP_SESSION] = f"{self._number + 1}-{answered[MCP_SESSION]}"
            await send(message)

        await self._app(scope, receive, told)

    async def _forward(self, number: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands a request on, piece by piece, and its answer back, until either side has enough."""
        body = _Body(receive)
        relaying = asyncio.create_task(self._relay(number, scope, body, send))
        leaving = asyncio.create_task(body.left())
        try:
            await asyncio.wait((relaying, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_done = relaying.done()
            for task in (relaying, leaving):
                task.cancel()
            await asyncio.gather(relaying, leaving, return_exceptions=True)
        if is_done and not relaying.cancelled() and isinstance(relaying.exception(), aiohttp.ClientConnectorError):
            # It is being started again, and its sessions are gone: the client opens another.
            await wire.error_response(wire.not_found("This MCP session is gone."))(scope, receive, send)

    async def _relay(self, number: int, scope: Scope, body: "_Body", send: Send) -> None:
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
        headers = [one for one in headers if one[0] not in left_out]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=1.0)
        async with (
            aiohttp.ClientSession(
                connector=aiohttp.UnixConnector(self.path_of(number)), timeout=timeout, auto_decompress=False
            ) as http,
            http.request(scope["method"], f"http://sibling{scope['path']}", headers=headers, data=body) as answer,
        ):
            yield answer


class _Body:
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
        for line in page.splitlines():
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
