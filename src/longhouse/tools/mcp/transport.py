"""MCP transports: streamable HTTP and stdio. The size of a message is bounded while it is read, and a message that is
too long fails only its own call."""

import asyncio
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Unpack

import anyio
import httpcore2
import httpx2
import mcp_types
import msgspec
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.base import SessionKwargs, TransportOptions
from mcp import ClientSession
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage

from longhouse import tracing
from longhouse.confinement import end_group
from longhouse.egress import ANYWHERE, EgressResolver, Lookup, look_up
from longhouse.tools.mcp.config import ServerEntry

log = structlog.get_logger()

MOST_BYTES: Final = 8 * 2**20
"""Maximum bytes of one message of a server."""
TOO_MUCH: Final = f"its answer has more than {MOST_BYTES} bytes"
MAX_LINE: Final = 2_000
"""Maximum characters of a line that is logged."""

# Launcher: the server dies with us. A server that does not watch its standard input would survive our SIGKILL.
LAUNCHER: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""

_CHUNK: Final = 64 * 2**10
_ENDS: Final = 512
"""Bytes kept at both ends of a message that is too long, to find its request id."""
_UNCONNECTED: Final = ("connection.connect_tcp.failed", "connection.start_tls.failed")
"""Trace events of the HTTP library for a connection that failed."""
_TOGETHER: Final = 0.5
"""Seconds: the lines that a server writes within this time are one record, as the banner that it begins with."""
_MOST_LINES: Final = 100
"""Lines of one record."""
_EXIT_WITHIN: Final = 2.0
"""Seconds that a server has to exit after its input is closed, and again after each signal."""

# The request id of a long line is only read from its ends: names inside it may be anything.
_FIRST: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,(?!\s*"method")')
_LAST: Final = re.compile(rb'[,{]\s*"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')
_NO_ANSWER: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"id"\s*:[^,]*,\s*)?"method"')

_Received = MemoryObjectSendStream[SessionMessage | Exception]


def client_of(headers: dict[str, str] | None = None) -> httpx2.AsyncClient:
    """The library's HTTP client, with egress checks. It follows redirects only within the server's origin."""
    client, transport = create_mcp_http_client(headers), httpx2.AsyncHTTPTransport()
    transport._pool = httpcore2.AsyncConnectionPool(
        ssl_context=httpx2.create_ssl_context(),
        max_connections=100,
        keepalive_expiry=5.0,
        network_backend=Guarded(look_up),
    )
    # Proxies from the environment are mounted separately and resolve names themselves.
    client._transport = transport
    return client


class Guarded(httpcore2.AnyIOBackend):
    """Resolves names itself and connects only to the IP addresses that the egress check allowed."""

    def __init__(self, lookup: Lookup) -> None:
        self._gate = EgressResolver(ANYWHERE, lookup)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            found = await self._gate.resolve(host, port)
        except OSError as error:
            raise httpcore2.ConnectError(str(error.strerror or error)) from error
        for nth, address in enumerate(found, 1):
            try:
                return await super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if nth == len(found):
                    raise
        raise httpcore2.ConnectError(f"{host} has no address")


class UncheckedSession(ClientSession):
    """Takes results as they are: to a model they are text, and the SDK would check them on the event loop, for as long
    as the patterns of a server's schema take."""

    async def validate_tool_result(self, name: str, result: Any) -> None:
        pass


class HttpTransport(ClientTransport):
    """Streamable HTTP."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        # Decompressed, a short answer may be very long.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._unsent: list[bytes] = []
        """Requests that found no connection: the session ends with the first of them."""

    def is_unsent(self, mark: str) -> bool:
        """Was the request that contains this mark never sent?"""
        return any(mark.encode() in request for request in self._unsent)

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Unpack[SessionKwargs]
    ) -> AsyncIterator[ClientSession]:
        client = client_of(self._headers)
        client.event_hooks = {"request": [self._trace], "response": [_bound]}
        async with (
            client as http,
            streamable_http_client(self._url, http_client=http, max_sse_event_size=MOST_BYTES) as (received, sent),
            UncheckedSession(received, sent, **session_kwargs) as session,
        ):
            yield session

    async def _trace(self, request: httpx2.Request) -> None:
        async def trace(step: str, info: Any) -> None:
            if step in _UNCONNECTED:
                self._unsent.append(request.content)

        request.extensions = {**request.extensions, "trace": trace}
        if context := _context_of(request.content):
            request.headers[tracing.HEADER] = context


def _context_of(request: bytes) -> str:
    """The trace context that a message carries. The library sends it from a task of its own, which knows no other."""
    if tracing.HEADER.encode() not in request:
        return ""
    try:
        return tracing.accepted(msgspec.json.decode(request)["params"]["_meta"][tracing.HEADER])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return ""


async def _bound(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise httpx2.DecodingError("the answer is compressed, which was not requested")
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)


class _BoundedStream(httpx2.AsyncByteStream):
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


@dataclass(eq=False)
class StdioTransport(ClientTransport):
    """A child process with one message per line."""

    entry: ServerEntry
    note: Callable[[Sequence[str]], None]
    """Takes the lines of the server's standard error, those together that were written together."""
    ended: Callable[[], None]
    """Called when the server sends no more messages."""

    @asynccontextmanager
    async def connect_session(
        self, *, transport_options: TransportOptions | None = None, **session_kwargs: Unpack[SessionKwargs]
    ) -> AsyncIterator[ClientSession]:
        process = await asyncio.create_subprocess_exec(
            *_command(self.entry),
            env=get_default_environment() | self.entry.env,
            cwd=self.entry.cwd,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin
        assert process.stdout
        assert process.stderr
        receiving, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, sending = anyio.create_memory_object_stream[SessionMessage](0)
        # Nothing is awaited between the start and `try`: a cancellation there would leave the process behind.
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive, process.stdout, receiving)
            tasks.start_soon(_send, process.stdin, sending, receiving)
            tasks.start_soon(_note_lines, process.stderr, self.note)
            try:
                async with UncheckedSession(received, sent, **session_kwargs) as session:
                    yield session
            finally:
                received.close()
                sent.close()
                # The server's output is drained meanwhile: a server that cannot write does not exit.
                with anyio.CancelScope(shield=True):
                    await _end(process)
                tasks.cancel_scope.cancel()
                process._transport.close()  # type: ignore[attr-defined]

    async def _receive(self, source: asyncio.StreamReader, receiving: _Received) -> None:
        """Forwards messages until the server closes its output; drains the rest if there is no receiver any more."""
        try:
            async with receiving:
                await _forward(source, receiving)
        except (ValueError, OSError) as error:
            message = "the output of an MCP server cannot be read"
            log.warning("mcp_output_unreadable", message=message, reason=str(error))
        self.ended()
        while await source.read(_CHUNK):
            pass


def _command(entry: ServerEntry) -> list[str]:
    assert entry.command is not None
    if shutil.which(entry.command, path=entry.env.get("PATH", os.environ.get("PATH"))) is None:
        raise FileNotFoundError(f"there is no command {entry.command!r}")
    launcher = [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid())] if sys.platform == "linux" else []
    return [*launcher, entry.command, *entry.args]


class _WireLine(msgspec.Struct):
    """A line being read. Past the size limit, only its ends are kept."""

    kept: bytearray = msgspec.field(default_factory=bytearray)
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
            try:
                return SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(self.kept, by_name=False))
            except ValueError as error:
                return error
        if found := _FIRST.match(self.kept) or _LAST.search(self.tail):
            too_much = mcp_types.ErrorData(code=mcp_types.PARSE_ERROR, message=TOO_MUCH)
            return SessionMessage(mcp_types.JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=too_much))
        if _NO_ANSWER.match(self.kept):
            return None
        raise ValueError("a message was too long, and does not say what it answers")


async def _forward(source: asyncio.StreamReader, receiving: _Received) -> None:
    line = _WireLine()
    while chunk := await source.read(_CHUNK):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            line.add(end)
            message, line = line.message(), _WireLine()
            try:
                if message is not None:
                    await receiving.send(message)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return
        line.add(rest)


async def _send(
    sink: asyncio.StreamWriter, sending: MemoryObjectReceiveStream[SessionMessage], receiving: _Received
) -> None:
    try:
        async with sending:
            async for one in sending:
                sink.write(one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await sink.drain()
    except OSError:
        # The server may still run, but requests cannot reach it: pending calls must fail.
        await receiving.aclose()


async def _note_lines(source: asyncio.StreamReader, note: Callable[[Sequence[str]], None]) -> None:
    rest, lines, until = b"", list[bytes](), math.inf
    try:
        while True:
            chunk = None
            with anyio.CancelScope(deadline=until):
                chunk = await source.read(_CHUNK)
            if chunk:
                *new, rest = (rest + chunk).split(b"\n")
                if len(rest) > 4 * MAX_LINE:  # the length of a line is bounded
                    new, rest = [*new, rest], b""
                until = until if lines else anyio.current_time() + _TOGETHER
                lines += new
            if chunk == b"":
                return
            if chunk is None or len(lines) >= _MOST_LINES:
                noted, lines, until = lines, [], math.inf
                note([line.decode(errors="replace") for line in noted])
    finally:
        note([line.decode(errors="replace") for line in (*lines, rest)])


async def _end(process: asyncio.subprocess.Process) -> None:
    """Closes the server's input; a server that does not exit gets SIGTERM, then SIGKILL, also if we are cancelled."""
    assert process.stdin
    process.stdin.close()
    try:
        if not await _has_exited(process):
            end_group(process.pid, signal.SIGTERM)
            await _has_exited(process)
    finally:
        if process.returncode is None:
            end_group(process.pid)
    await _has_exited(process)


async def _has_exited(process: asyncio.subprocess.Process) -> bool:
    # Not `wait()`: that also waits for the pipes, which a child of the server may hold.
    with anyio.move_on_after(_EXIT_WITHIN):
        while process.returncode is None:  # noqa: ASYNC110 - nothing tells it without waiting for the pipes
            await anyio.sleep(0.01)
    return process.returncode is not None
