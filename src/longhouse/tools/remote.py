"""Tools that are HTTP endpoints: the arguments go there as JSON, the answer comes back as JSON.

Nothing is sent twice by us: whether a call may be made again is a matter of its effect, and of the engine.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from longhouse.agents.tool import Tool
from longhouse.egress import Egress, EgressRefused, Lookup, connector, look_up, parse
from longhouse.errors import quoted
from longhouse.journal.events import Fault
from longhouse.tools.arguments import BadSchema, Check, checker, read
from longhouse.tools.bindings.base import Work
from longhouse.tools.config import ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.doubt import CallError, NotBegun
from longhouse.tools.mcp_config import Secrets, secrets_of

CONNECT: Final = 10.0
"""Seconds to connect to the endpoint."""
MOST_BYTES: Final = 4 * 2**20
"""Of an answer, packed or unpacked."""

_PIECE: Final = 64 * 2**10
_MOST_COMPLAINT: Final = 16 * 2**10
_TROUBLE: Final = (aiohttp.ClientError, HttpProcessingError, OSError, ValueError)
_LOST_ON_THE_WAY: Final = (502, 504)
"""Said by a gateway that passed the request on and got no answer that it could use."""

SecretOf = Callable[[str], str | None]
"""The secret that a reference stands for in this process."""


class RemoteError(CallError):
    """A remote tool did not give an answer; in words that an agent can act on."""


@dataclass(slots=True)
class _Sending:
    """How far a request got."""

    is_connected: bool = False
    """From here on the endpoint may have been told what to do."""


class RemoteBinding:
    """A tool of the catalog at an endpoint. Its secret is looked up for each call and told to nobody else."""

    def __init__(
        self,
        tool: Tool,
        endpoint: str,
        http: aiohttp.ClientSession,
        *,
        api_key_ref: str | None = None,
        secret_of: SecretOf = lambda ref: None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.tool = tool
        self._url = parse(endpoint)
        self._http = http
        self._api_key_ref = api_key_ref
        self._secret_of = secret_of
        self._most_bytes = most_bytes

    def bind(self, arguments: str) -> Work | Fault:
        try:
            given = read(self.tool.name, arguments, self._check)
        except BadSchema as error:
            return Fault(code="tool_failed", message=f"{self.tool.name} cannot be used: {error}")
        if isinstance(given, Fault):
            return given

        async def work(context: ToolContext, config: ToolConfig) -> str:
            return await self._call(given, context.key)

        return work

    @cached_property
    def _check(self) -> Check:
        return checker(self.tool.schema)

    async def _call(self, given: dict[str, Any], key: str) -> str:
        secret, sending = self._secret(), _Sending()
        hidden = secrets_of([secret] if secret else [])
        try:
            async with self._http.post(
                self._url,
                # What was checked is what is sent, not what the model wrote: two parsers may read that in two ways.
                data=msgspec.json.encode(given),
                headers=_headers(key, secret),
                allow_redirects=False,
                trace_request_ctx=sending,
            ) as response:
                return hidden.hide(await self._answer(response, hidden))
        except asyncio.CancelledError:
            if not sending.is_connected:
                raise NotBegun(f"{self.tool.name} could not be reached") from None
            raise
        except _TROUBLE as error:
            # Not chained, and only in words of ours: such an error may quote what was sent.
            if sending.is_connected:
                told = f"{self.tool.name} was asked, and its answer was lost ({_why(error)})"
                raise RemoteError(told, in_doubt=True) from None
            raise RemoteError(f"{self.tool.name} could not be reached: {_why(error)}") from None

    def _secret(self) -> str | None:
        if self._api_key_ref is None:
            return None
        secret = self._secret_of(self._api_key_ref)
        if not secret:
            raise RemoteError(f"{self.tool.name} needs the secret {self._api_key_ref!r}, which is not set here")
        if not secret.isascii() or not secret.isprintable():
            raise RemoteError(f"the secret {self._api_key_ref!r} holds characters that no HTTP header can carry")
        return secret

    async def _answer(self, response: aiohttp.ClientResponse, hidden: Secrets) -> str:
        name, status, kind = self.tool.name, response.status, response.content_type
        if 300 <= status < 400:
            raise RemoteError(f"{name} answered {status}, a redirect, which is not followed")
        if not 200 <= status < 300:
            told = f"{name} answered {status}: {await self._complaint(response, hidden)}"
            raise RemoteError(told, in_doubt=status in _LOST_ON_THE_WAY)
        if status == 204:
            return ""
        if kind != "application/json" and not kind.endswith("+json"):
            raise RemoteError(f"{name} answered with {quoted(hidden.hide(kind))}, which is not JSON", in_doubt=True)
        body, is_whole = await read_body(response, self._most_bytes)
        if not is_whole:
            raise RemoteError(f"{name} sent more than {self._most_bytes} bytes", in_doubt=True)
        try:
            said = msgspec.json.decode(body)
            # Written anew, so that a secret that comes back is found however its characters were escaped.
            return said if isinstance(said, str) else msgspec.json.encode(said).decode()
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise RemoteError(f"{name} sent what is not valid JSON", in_doubt=True) from None

    async def _complaint(self, response: aiohttp.ClientResponse, hidden: Secrets) -> str:
        try:
            body, _ = await read_body(response, _MOST_COMPLAINT)
        except (RemoteError, *_TROUBLE):
            return "no reason given"
        said = body.decode(errors="replace").strip()
        # Hidden before it is cut: half a secret is still one.
        return quoted(hidden.hide(said)) if said and not said.startswith("<") else "no reason given"


@asynccontextmanager
async def open_remote(egress: Egress, *, lookup: Lookup = look_up) -> AsyncIterator[aiohttp.ClientSession]:
    """The connections of all remote tools; none is made where the rules do not allow it."""
    async with aiohttp.ClientSession(
        connector=connector(egress, lookup),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT),
        trace_configs=[_noting()],
    ) as http:
        yield http


def _noting() -> aiohttp.TraceConfig:
    """Notes in what a request brought along that its connection stands: names, sockets and TLS are behind it."""

    async def connected(
        http: aiohttp.ClientSession, trace: Any, params: aiohttp.TraceConnectionCreateEndParams
    ) -> None:
        if isinstance(trace.trace_request_ctx, _Sending):
            trace.trace_request_ctx.is_connected = True

    noting = aiohttp.TraceConfig()
    noting.on_connection_create_end.append(connected)
    return noting


async def read_body(response: aiohttp.ClientResponse, most: int) -> tuple[bytes, bool]:
    """The first `most` bytes of a body, unpacked no further than that; and whether they are all of it."""
    unpack, body, received = _unpacker(response), bytearray(), 0
    async for piece in response.content.iter_chunked(_PIECE):
        received += len(piece)
        try:
            body += unpack(piece, most + 1 - len(body))
        except zlib.error:
            raise RemoteError("the answer cannot be unpacked", in_doubt=True) from None
        if max(len(body), received) > most:
            return bytes(body[:most]), False
    return bytes(body), True


def _unpacker(response: aiohttp.ClientResponse) -> Callable[[bytes, int], bytes]:
    packing = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packing in ("gzip", "x-gzip"):
        return zlib.decompressobj(31).decompress
    if packing != "identity":
        raise RemoteError("the answer is packed in a way that was not asked for", in_doubt=True)
    return lambda piece, room: piece[:room]


def _headers(key: str, secret: str | None) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "gzip",
        "Content-Type": "application/json",
        "Idempotency-Key": key,
        "User-Agent": "longhouse",
    }
    return headers | {"Authorization": f"Bearer {secret}"} if secret else headers


def _why(error: Exception) -> str:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return str(cause.strerror) if isinstance(cause, EgressRefused) else type(cause).__name__
