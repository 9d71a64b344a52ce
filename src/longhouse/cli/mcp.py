"""The command `longhouse mcp`: the MCP server of a Longhouse that serves, on standard input and output.

Messages pass through as they are, in both directions. The turns are in the house: this process may end at any time.
"""

import asyncio
import base64
import re
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import aiohttp
import msgspec
import typer
from yarl import URL

from longhouse.cli.chat.client import NO_LIMIT, address_of, cause, lines_of
from longhouse.cli.running import run, stdin_lines
from longhouse.settings import Settings

PATH: Final = "/mcp"
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
"""In the `_meta` of every request since version 2026-07-28, which has no sessions."""
NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""Methods whose header names what is asked for, and the parameter that has it."""
KEY: Final = "longhouse/idempotency-key"
CANCELS: Final = "longhouse/cancel"
"""In the `_meta` of calls: by the key, a call that is cancelled is found again."""
FAILED: Final = -32000
PARSE_ERROR: Final = -32700
LOST: Final = (
    "The connection to Longhouse was lost. The agent goes on: call it again with its conversation_id and an empty"
    " message, and you get its answer."
)

Message = dict[str, Any]
cli = typer.Typer()


@cli.command()
def mcp(
    url: Annotated[
        str | None, typer.Option(help="Where Longhouse serves; by default as the settings say.", envvar="LONGHOUSE_URL")
    ] = None,
    key: Annotated[str, typer.Option(help="An API key, where one is needed.", envvar="LONGHOUSE_API_KEY")] = "",
) -> None:
    """Be an MCP server on standard input and output, with the agents of a Longhouse that serves."""

    async def main(settings: Settings) -> None:
        await serve(url or f"http://{settings.host}:{settings.port}", key)

    run(Settings(log_level="warning"), main)


async def serve(url: str, key: str) -> None:
    """Passes messages on until standard input ends."""
    headers = {"authorization": f"Bearer {key}"} if key else None
    async with aiohttp.ClientSession(headers=headers) as http, asyncio.TaskGroup() as tasks:
        bridge = Bridge(http, base_of(url), _write, tasks)
        lines = stdin_lines()
        while (line := await lines.get()) is not None:
            if line.strip():
                await bridge.receive(line)
        await bridge.close()


def base_of(url: str) -> URL:
    """The address of the server, perhaps below a path; that of its API or of its MCP server is accepted too."""
    path = URL(url).path.rstrip("/") if address_of(url) else ""
    return address_of(url).with_path(path.removesuffix("/v1").removesuffix(PATH))


def _write(message: bytes) -> None:
    sys.stdout.buffer.write(message + b"\n")
    sys.stdout.buffer.flush()


@dataclass
class Bridge:
    """A client on one side, the MCP server of a Longhouse on the other."""

    http: aiohttp.ClientSession
    url: URL
    write: Callable[[bytes], None]
    tasks: asyncio.TaskGroup
    _initialize: Message | None = None
    """How the client began, with which a session that the server has lost is opened again."""
    _session: str = ""
    _version: str = ""
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _asked: dict[Any, asyncio.Task[None]] = field(default_factory=dict)

    async def receive(self, line: bytes) -> None:
        """Passes on a message of the client. Requests wait for their answers side by side; the rest keeps its order."""
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeError):
            message = None
        if not isinstance(message, dict):
            self._fail(None, "A line should be one message of JSON-RPC 2.0.", PARSE_ERROR)
        elif "method" in message and "id" in message:
            meta = _meta(message)
            if VERSION_KEY in meta and message["method"] == "tools/call":
                meta.setdefault(KEY, uuid.uuid4().hex)
            self._asked[_key(message["id"])] = self.tasks.create_task(self._answered(message))
        elif message.get("method") == "notifications/cancelled" and not self._session:
            if asked := self._asked.get(_key((message.get("params") or {}).get("requestId"))):
                asked.cancel(CANCELS)
        else:
            await self._said(message)

    async def _said(self, message: Message) -> None:
        """Passes on what the client awaits no answer to."""
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self._post(message) as response:
                await response.read()

    async def close(self) -> None:
        for asked in self._asked.values():
            asked.cancel()
        if self._session:
            with suppress(aiohttp.ClientError, TimeoutError):
                headers = {"mcp-session-id": self._session, "mcp-protocol-version": self._version}
                async with self.http.delete(self.url.joinpath(PATH[1:]), headers=headers) as response:
                    await response.read()

    async def _answered(self, message: Message) -> None:
        try:
            await self._ask(message)
        except asyncio.CancelledError as error:
            # Without a session the server takes a response that was closed for a connection that was lost.
            if CANCELS in error.args and KEY in (meta := _meta(message)):
                meta[CANCELS] = True
                self.tasks.create_task(self._said(message))
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            self._fail(message["id"], f"Longhouse cannot be reached at {self.url}: {cause(error)}.")
        except (msgspec.MsgspecError, AttributeError, TypeError):
            self._fail(message["id"], f"What answers at {self.url} is not Longhouse.")
        finally:
            self._asked.pop(_key(message["id"]), None)

    async def _ask(self, message: Message, *, may_reopen: bool = True) -> None:
        session, is_first = self._session, message["method"] == "initialize"
        if is_first:
            self._initialize, self._session = message, ""
        async with self._post(message) as response:
            if is_first:
                self._session = response.headers.get("mcp-session-id", "")
            if not (response.status == 404 and session and may_reopen and not is_first):
                await self._pass_back(message, response)
                return
        await self._reopen(session)
        await self._ask(message, may_reopen=False)

    async def _pass_back(self, message: Message, response: aiohttp.ClientResponse) -> None:
        if response.status == 200 and response.content_type == "text/event-stream":
            is_answered = False
            with suppress(aiohttp.ClientError):  # it was cut off
                async for event in _events(response):
                    is_answered |= self._tell(message, event)
            if not is_answered:
                self._fail(message["id"], LOST)
            return
        body = await response.read()
        if response.status < 400:
            self._tell(message, body)
        else:
            self._fail(message["id"], *_reason(body, response.status))

    def _tell(self, message: Message, given: bytes) -> bool:
        """Passes a message of the server on; True if it answers `message`."""
        answer = msgspec.json.decode(given)
        self.write(msgspec.json.encode(answer))
        is_answer = "method" not in answer
        if is_answer and message["method"] == "initialize":
            self._version = (answer.get("result") or {}).get("protocolVersion", "")
        return is_answer

    async def _reopen(self, lost: str) -> None:
        """The server knows nothing of the session any more, for it was started again: opens another one."""
        async with self._opening:
            if self._session != lost or self._initialize is None:
                return
            self._session = ""
            async with self._post({**self._initialize, "id": "longhouse-again"}) as response:
                self._session = response.headers.get("mcp-session-id", "")
                await response.read()
            async with self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}) as response:
                await response.read()

    def _post(self, message: Message) -> Any:
        body, headers = msgspec.json.encode(message), self._headers(message)
        return self.http.post(self.url.joinpath(PATH[1:]), data=body, headers=headers, timeout=NO_LIMIT)

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        method, version = message.get("method"), _meta(message).get(VERSION_KEY)
        if isinstance(version, str) and isinstance(method, str):
            headers |= {"mcp-protocol-version": _value(version), "mcp-method": _value(method)}
            if method in NAMED:
                headers["mcp-name"] = _value(str(message["params"].get(NAMED[method], "")))
            return headers
        if self._session:
            headers["mcp-session-id"] = self._session
        if self._version and method != "initialize":
            headers["mcp-protocol-version"] = self._version
        return headers

    def _fail(self, message_id: Any, why: str, code: int = FAILED) -> None:
        error = {"code": code, "message": why}
        self.write(msgspec.json.encode({"jsonrpc": "2.0", "id": message_id, "error": error}))


def _meta(message: Message) -> dict[str, Any]:
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    return meta if isinstance(meta, dict) else {}


def _key(message_id: Any) -> tuple[str, str]:
    """The id of a request as a key: 1 and "1" are different ones."""
    return type(message_id).__name__, str(message_id)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of server-sent events, however long a line is."""
    data: list[bytes] = []
    async for line in lines_of(response):
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            yield b"\n".join(data)
            data = []


def _reason(body: bytes, status: int) -> tuple[str, int]:
    """Why a request was refused, and the code of that: in the words of the server, of whichever shape."""
    try:
        error = msgspec.json.decode(body)["error"]
        code = error.get("code")
        return str(error["message"]), code if isinstance(code, int) else FAILED
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return f"What answers there is not Longhouse: it says {status}.", FAILED


def _value(text: str) -> str:
    """The value of a header; what could not be sent in one is encoded, as the protocol says."""
    if re.fullmatch(r"[\x20-\x7e]*", text) and text == text.strip() and not text.startswith("=?base64?"):
        return text
    return f"=?base64?{base64.b64encode(text.encode()).decode()}?="
