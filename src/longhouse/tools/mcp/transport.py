"""MCP transports: streamable HTTP and stdio. The size of a message is bounded while it is read, and a message that is
too long fails only its own call."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TextIO, Unpack

import anyio
import httpx2
import mcp_types
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import SessionKwargs, TransportOptions
from mcp import ClientSession
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from longhouse.tools.mcp import http as mcp_http

log = structlog.get_logger()

MOST_BYTES: Final = 8 * 2**20
"""Maximum bytes of one message of a server."""
TOO_MUCH: Final = f"its answer has more than {MOST_BYTES} bytes"

_PIECE: Final = 64 * 2**10
_ENDS: Final = 512
"""Bytes kept at both ends of a message that is too long, to find its request id."""
_NO_WAY: Final = ("connection.connect_tcp.failed", "connection.start_tls.failed")
"""Trace events of the HTTP library for a connection that failed."""
_LEAVE_WITHIN: Final = 2.0
"""Seconds that a server has to exit after its input is closed, and again after each signal."""

# The request id of a long line is only read from its ends: names inside it may be anything.
_FIRST: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,(?!\s*"method")')
_LAST: Final = re.compile(rb'[,{]\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
_NO_ANSWER: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"id"\s*:[^,]*,\s*)?"method"')

_Heard = MemoryObjectSendStream[SessionMessage | Exception]


class HttpWire(ClientTransport):
    """Streamable HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        # Decompressed, a short answer may be very long.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._unsent: list[bytes] = []
        """Requests that found no connection: the session ends with the first of them."""

    def has_kept(self, mark: str) -> bool:
        """Was the request that contains this mark never sent?"""
        return any(mark.encode() in request for request in self._unsent)

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Unpack[SessionKwargs]
    ) -> AsyncIterator[ClientSession]:
        options = transport_options or TransportOptions()
        client = mcp_http.client_of(self._headers)
        client.event_hooks = {"request": [self._follow], "response": [_bound]}
        async with (
            client as http,
            streamable_http_client(self._url, http_client=http, max_sse_event_size=MOST_BYTES) as (heard, said),
            options.session_class(heard, said, **session_kwargs) as session,
        ):
            yield session

    async def _follow(self, request: httpx2.Request) -> None:
        async def heard(step: str, info: Any) -> None:
            if step in _NO_WAY:
                self._unsent.append(request.content)

        request.extensions = {**request.extensions, "trace": heard}


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise httpx2.DecodingError("the answer is packed, which was not asked for")
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Bounded(response.stream)


class _Bounded(httpx2.AsyncByteStream):
    """A body stream that raises when it is too long."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for piece in self._stream:
            received += len(piece)
            if received > MOST_BYTES:
                raise httpx2.StreamError(TOO_MUCH)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class StdioWire(ClientTransport):
    """The stdio transport: a child process with one message per line."""

    def __init__(
        self, command: str, args: list[str], *, env: Mapping[str, str], cwd: str | None, errors: TextIO
    ) -> None:
        self._command = [command, *args]
        self._env = env
        self._cwd = cwd
        self._errors = errors

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Unpack[SessionKwargs]
    ) -> AsyncIterator[ClientSession]:
        options = transport_options or TransportOptions()
        heard_from, heard = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        said, said_to = anyio.create_memory_object_stream[SessionMessage](0)
        async with self._running() as process, anyio.create_task_group() as tasks:
            assert process.stdin
            assert process.stdout
            tasks.start_soon(_listen, process.stdout, heard_from)
            tasks.start_soon(_speak, process.stdin, said_to, heard_from)
            try:
                async with options.session_class(heard, said, **session_kwargs) as session:
                    yield session
            finally:
                heard.close()
                said.close()
                # The server's output is drained meanwhile: a server that cannot write does not exit.
                with anyio.CancelScope(shield=True):
                    await _end(process)
                tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            env=get_default_environment() | dict(self._env),
            cwd=self._cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                # The process is killed on any error.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)


@dataclass(slots=True)
class _WireLine:
    """A line being read. Past the size limit, only its ends are kept."""

    kept: bytearray = field(default_factory=bytearray)
    tail: bytes | None = None
    """Set if the line is too long."""

    def add(self, piece: bytes) -> None:
        if self.tail is not None:
            self.tail = (self.tail + piece)[-_ENDS:]
            return
        self.kept += piece
        if len(self.kept) > MOST_BYTES:
            self.tail = bytes(self.kept[-_ENDS:])
            del self.kept[_ENDS:]

    def message(self) -> SessionMessage | Exception | None:
        """The message; for a line that is too long, an error for its request. None: no request waits for it."""
        if self.tail is None:
            return _parsed(bytes(self.kept))
        if found := _FIRST.match(self.kept) or _LAST.search(self.tail):
            error = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message=TOO_MUCH)
            return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error))
        if _NO_ANSWER.match(self.kept):
            return None
        raise _Lost("a message was too long, and does not say what it answers")


class _Lost(Exception):  # noqa: N818 - it says what became of the connection
    pass


def _parsed(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _listen(source: asyncio.StreamReader, heard: _Heard) -> None:
    """Forwards messages until the server closes its output; drains the rest if there is no receiver any more."""
    try:
        async with heard:
            await _hand_on(source, heard)
    except (_Lost, OSError) as error:
        log.warning("mcp_output_unreadable", message="the output of an MCP server cannot be read", reason=str(error))
    while await source.read(_PIECE):
        pass


async def _hand_on(source: asyncio.StreamReader, heard: _Heard) -> None:
    line = _WireLine()
    while piece := await source.read(_PIECE):
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line.add(end)
            message, line = line.message(), _WireLine()
            try:
                if message is not None:
                    await heard.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
        line.add(rest)


async def _speak(sink: asyncio.StreamWriter, said: MemoryObjectReceiveStream[SessionMessage], heard: _Heard) -> None:
    try:
        async with said:
            async for one in said:
                sink.write(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await sink.drain()
    except OSError:
        # The server may still run, but requests cannot reach it: pending calls must fail.
        await heard.aclose()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Closes the server's input; a server that does not exit gets SIGTERM, then SIGKILL."""
    assert process.stdin
    process.stdin.close()
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if await _has_left(process):
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
    await _has_left(process)


async def _has_left(process: asyncio.subprocess.Process) -> bool:
    # Not `wait()`: that also waits for the pipes, which a child of the server may hold.
    with anyio.move_on_after(_LEAVE_WITHIN):
        while process.returncode is None:  # noqa: ASYNC110 - nothing tells it without waiting for the pipes
            await anyio.sleep(0.01)
    return process.returncode is not None
