"""The session with one MCP server: connect, list tools, call, detect a lost connection, reconnect."""

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, Final

import mcp_types
import msgspec
import structlog
from fastmcp.client import Client
from fastmcp.client.logging import LogMessage
from fastmcp.client.transports import ClientTransport
from mcp import MCPError
from mcp.client.subscriptions import Subscription, SubscriptionLost, listen
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from longhouse import clock, tracing
from longhouse.journal.messages import clean
from longhouse.redaction import Redaction
from longhouse.tools.bindings.base import Binding
from longhouse.tools.bindings.mcp import Unusable, mcp_binding
from longhouse.tools.context import ToolContext
from longhouse.tools.mcp.client import Away, publish_served
from longhouse.tools.mcp.config import McpServerConfig
from longhouse.tools.mcp.transport import MAX_LINE, MOST_BYTES, TOO_MUCH, HttpTransport, StdioTransport
from longhouse.tools.outcomes import CallError, NotBegun
from longhouse.tools.toolbox import Toolbox, ToolSource

log = structlog.get_logger()

CONNECT_WITHIN: Final = 45.0
"""Timeout in seconds; the first start may have to download the server's program."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
MAX_TOOLS: Final = 1_000
KEPT_LINES: Final = 30
"""The last lines of a server that operators can read."""
KEY: Final = "longhouse/idempotency-key"
REFUSALS: Final = (mcp_types.METHOD_NOT_FOUND, mcp_types.INVALID_PARAMS)
"""Errors by which a server says that it did nothing. Others it may have made in the middle of its work, or the library
about an answer that it could not read: that one it calls an invalid request."""
LIBRARIES: Final = ("fastmcp", "mcp", "httpx2", "httpcore2")


class McpServerAway(CallError):  # noqa: N818 - the agent reads the name
    """The server could not be reached, or the connection was lost; the next call reconnects."""


@asynccontextmanager
async def running(servers: Sequence[McpServerConfig], toolbox: Toolbox, start_within: float) -> AsyncIterator[Away]:
    kept = [ServerSession(server, toolbox) for server in servers]
    everything = Redaction(tuple(value for server in servers for value in server.secrets.values))
    with _quiet_libraries(everything):
        tasks = [asyncio.create_task(server.keep(), name=f"mcp {server.name}") for server in kept]
        try:
            await asyncio.wait([server.tried for server in kept], timeout=start_within)
            yield lambda: {server.name: server.trouble for server in kept if server.trouble}
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class McpConnection(msgspec.Struct):
    """A connected client, and its state since then."""

    client: Client[Any]
    updated: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    changed: bool = False
    """The server's tools have changed."""
    lost: bool = False

    def update(self, *, changed: bool = False, lost: bool = False) -> None:
        self.changed |= changed
        self.lost |= lost
        self.updated.set()


Attempt = asyncio.Future[McpConnection | str]
"""A connection, or a message that says why there is none."""


class ServerSession:
    """Keeps one server connected. Only `keep` connects and lists tools; calls request it."""

    def __init__(self, server: McpServerConfig, toolbox: Toolbox) -> None:
        self.name = server.name
        self._server = server
        self._toolbox = toolbox
        self._names: set[str] = set()
        self._attempt: Attempt = asyncio.get_running_loop().create_future()
        self._connect_requested = asyncio.Event()
        self._connect_requested.set()
        self.tried: Attempt = self._attempt
        """The first attempt, which start-up waits for."""
        self.trouble = "it has not answered yet"
        """Why the server cannot be called; empty while it is connected."""
        self._last_words: deque[tuple[datetime, str]] = deque(maxlen=KEPT_LINES)
        toolbox.sources[server.name] = self.source

    def source(self) -> ToolSource:
        """The server as it is now, for operators."""
        return ToolSource(self.name, self.trouble, frozenset(self._names), tuple(self._last_words))

    async def keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            # Without known tools there are no calls: only the timeout triggers the next attempt.
            await self._wait_for_request(None if self._names else pause)
            pause, attempt = min(pause * 2, LONGEST_PAUSE), self._attempt
            try:
                async with self._connected() as connection:
                    pause, self.trouble = FIRST_PAUSE, ""
                    attempt.set_result(connection)
                    await self._follow_connection(connection)
            except Exception as error:  # noqa: BLE001 - whatever a server or the library does, we go on
                reason = self._words(error)
            else:
                reason = "the connection was lost"
            self.trouble = reason
            log.warning(
                "mcp_server_unreachable", message="an MCP server cannot be reached", server=self.name, reason=reason
            )
            if not attempt.done():
                attempt.set_result(reason)

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> mcp_types.CallToolResult:
        try:
            connection = await asyncio.shield(self._current())
        except asyncio.CancelledError:
            raise NotBegun(f"the MCP server {self.name!r} could not be reached") from None
        if isinstance(connection, str):
            raise McpServerAway(f"the MCP server {self.name!r} cannot be reached: {connection}")
        if f"{self.name}.{name}" not in self._names:
            raise McpServerAway(f"the MCP server {self.name!r} does not offer {name!r} any more")
        # A digest: the server must not see our session ids.
        key = hashlib.sha256(context.key.encode()).hexdigest()[:32]
        try:
            return await connection.client.call_tool_mcp(name, arguments, meta={KEY: key, **tracing.sent()})
        except MCPError as error:
            if TOO_MUCH in str(error) or f"{MOST_BYTES} byte limit" in str(error):
                message = f"the MCP server {self.name!r} sent more than {MOST_BYTES} bytes"
                raise McpServerAway(message, in_doubt=True) from None
            if not _is_lost(error):
                message = f"the MCP server {self.name!r} refused: {self._words(error)}"
                raise McpServerAway(message, in_doubt=error.code not in REFUSALS) from None
            reason = self._words(error)
        except Exception as error:  # noqa: BLE001 - the library raises what its transports raise
            reason = self._words(error)
        connection.update(lost=True)
        if isinstance(connection.client.transport, HttpTransport) and connection.client.transport.is_unsent(key):
            raise McpServerAway(f"the MCP server {self.name!r} cannot be reached: nothing was sent")
        raise McpServerAway(f"the MCP server {self.name!r} was lost during the call ({reason})", in_doubt=True)

    def _current(self) -> Attempt:
        """The attempt in progress or the live connection; a new attempt if the last one failed or was lost."""
        attempt = self._attempt
        if attempt.done():
            result = attempt.result()
            if isinstance(result, str) or result.lost:
                self._attempt = asyncio.get_running_loop().create_future()
                self._connect_requested.set()
        return self._attempt

    async def _wait_for_request(self, pause: float | None) -> None:
        try:
            async with asyncio.timeout(pause):
                await self._connect_requested.wait()
        except TimeoutError:
            self._current()
        self._connect_requested.clear()

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[McpConnection]:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(CONNECT_WITHIN):
                connection = await self._opened(stack)
                await self._subscribe(connection, stack)
                await self._list(connection)
            # Runs first when the stack closes, for any reason: later calls request a new connection.
            stack.callback(connection.update, lost=True)
            log.info(
                "mcp_server_connected", message="an MCP server is connected", server=self.name, tools=len(self._names)
            )
            yield connection

    async def _opened(self, stack: AsyncExitStack) -> McpConnection:
        async def on_message(message: Any) -> None:
            if isinstance(message, mcp_types.ToolListChangedNotification):
                connection.update(changed=True)

        entry = self._server.entry
        transport: ClientTransport = (
            HttpTransport(entry.url, entry.headers)
            if entry.url
            else StdioTransport(entry, self._note, lambda: connection.update(lost=True))
        )
        client = Client(
            transport, name=self.name, log_handler=self._log, message_handler=on_message, init_timeout=CONNECT_WITHIN
        )
        connection = McpConnection(client)
        await stack.enter_async_context(client)
        return connection

    async def _follow_connection(self, connection: McpConnection) -> None:
        """Lists the tools again when the server reports a change; returns when the connection is lost."""
        while not connection.lost:
            await connection.updated.wait()
            connection.updated.clear()
            if connection.changed and not connection.lost:
                connection.changed = False
                async with asyncio.timeout(CONNECT_WITHIN):
                    await self._list(connection)

    async def _list(self, connection: McpConnection) -> None:
        listed = await connection.client.list_tools()
        bindings: dict[str, Binding] = {}
        for tool in listed[:MAX_TOOLS]:
            try:
                binding = mcp_binding(
                    self.name, tool, self.call, timeout=self._server.entry.timeout, secrets=self._server.secrets
                )
                name = binding.tool.name
                if name in bindings or (name not in self._names and self._toolbox.find(name)):
                    raise Unusable("twice")
            except Unusable as error:
                message = "a tool of an MCP server is skipped"
                log.warning("mcp_tool_skipped", message=message, server=self.name, tool=tool.name, reason=str(error))
                continue
            bindings[name] = binding
        if self._toolbox.catalog:  # search finds them there
            await publish_served(self._toolbox.catalog, self.name, [binding.tool for binding in bindings.values()])
        for binding in bindings.values():
            self._toolbox.add(binding)
        for gone in self._names - bindings.keys():
            self._toolbox.remove(gone)
        self._names = set(bindings)

    async def _subscribe(self, connection: McpConnection, stack: AsyncExitStack) -> None:
        """Subscribes to changes: servers of the newest protocol send them only to subscribers."""
        client = connection.client
        tools = client.server_capabilities and client.server_capabilities.tools
        if not (tools and tools.list_changed and client.protocol_version in MODERN_PROTOCOL_VERSIONS):
            return
        try:
            changes = await stack.enter_async_context(listen(client.session, tools_list_changed=True))
        except MCPError as error:
            self._log_unsubscribed(error)
            return
        following = asyncio.create_task(self._follow(connection, changes))
        stack.callback(following.cancel)

    async def _follow(self, connection: McpConnection, changes: Subscription) -> None:
        try:
            async for _ in changes:
                connection.update(changed=True)
        except SubscriptionLost as error:
            self._log_unsubscribed(error)

    def _log_unsubscribed(self, error: Exception) -> None:
        message = "an MCP server has refused or ended the subscription to changes"
        log.info("mcp_changes_unavailable", message=message, server=self.name, reason=self._words(error))

    async def _log(self, message: LogMessage) -> None:
        self._note([f"{message.level}: {message.data}"])

    def _note(self, lines: Sequence[str]) -> None:
        shown = [line for one in lines if (line := clean(self._server.secrets.hide(one)).strip()[:MAX_LINE])]
        self._last_words.extend((clock.now(), line) for line in shown)
        if shown:
            output = "\n".join(shown)[: 4 * MAX_LINE]
            log.info("mcp_server_output", message="an MCP server wrote this", server=self.name, line=output)

    def _words(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError):
            return f"it did not answer within {CONNECT_WITHIN:g} seconds"
        text = str(error).removeprefix("Client failed to connect: ") or type(error).__name__
        return clean(self._server.secrets.hide(text))[:500]


def _is_lost(error: MCPError) -> bool:
    """Does this error end the connection, not only the call?"""
    return error.code == mcp_types.CONNECTION_CLOSED or "Session terminated" in str(error)


@contextmanager
def _quiet_libraries(secrets: Redaction) -> Iterator[None]:
    """Turns the log records of the libraries into ours, with secrets redacted; they never reach a terminal."""
    handler = _Hiding(secrets)
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        for logger, handlers, propagate, level in before:
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)


class _Hiding(logging.Handler):
    def __init__(self, secrets: Redaction) -> None:
        super().__init__()
        self._secrets = secrets

    def emit(self, record: logging.LogRecord) -> None:
        # Without the traceback: only its last line matters here, and it may quote a server.
        reason = repr(record.exc_info[1]) if record.exc_info and record.exc_info[1] else None
        text = self._secrets.hide(f"{record.getMessage()}: {reason}" if reason else record.getMessage())
        log.log(record.levelno, "library_log", message=clean(text)[:MAX_LINE], source=record.name)
