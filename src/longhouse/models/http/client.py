"""The HTTP client of models, embeddings, the search service, remote tools, webhooks and traces.

It connects only where the egress rules allow. It follows no redirects, keeps no cookies and ignores the proxies of the
environment. The size of each response is bounded. Every failure is an `HttpFailure`.

It is our own because each step of an agent makes one request: a client for everything spent a tenth of the step on
features that are not wanted here. `connection` has the exchange, `pool` the connections that are kept, `dialing`
how they are opened. Our own processes call each other by aiohttp: commands a server, and a server its siblings.
"""

import asyncio
import math
import re
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from yarl import URL

from longhouse import tracing
from longhouse.egress import ANYWHERE, HTTP, PROXIES, SOCKS_PORT, Egress, Lookup, look_up
from longhouse.errors import SetupError
from longhouse.models.http.connection import CONNECT, Connection, Response, Timeouts
from longhouse.models.http.dialing import Dialer, basic
from longhouse.models.http.failure import HttpFailure, is_retryable
from longhouse.models.http.pool import HttpPool
from longhouse.redaction import Redaction, redaction_of

HANG: Final = 60.0
"""Seconds without a byte after which a response has timed out."""

_MAX_ERROR_BODY: Final = 16 * 2**10
_ERROR_BODY_TIMEOUT: Final = 5.0
_LINGER: Final = 0.1
_BREAKS: Final = re.compile(r"[\r\n\0]")


class StatusFailure(HttpFailure):
    """A response with a status other than 2xx, redirects included."""

    def __init__(self, response: Response, error_body: bytes, redaction: Redaction) -> None:
        self.status, self.reason, self.headers = response.status, _text(response.reason), _headers_of(response)
        self.error_body = error_body
        """The first bytes of the response body, as they were sent."""
        if 300 <= self.status < 400:
            super().__init__(f"answered {self.status}, a redirect, which is not followed", retryable=False)
            return
        body = error_body.decode(errors="replace").strip()
        why = redaction.quoted(body) if not body.startswith("<") else ""
        super().__init__(f"answered {self.status}", why or "no reason given", retryable=is_retryable(self.status))


class BoundedResponse:
    """A successful response. Its body is read and decompressed up to a bound."""

    def __init__(self, response: Response, most_bytes: int) -> None:
        self.status = response.status
        self.kind = _kind(response.headers.get(b"content-type", b"application/octet-stream"))
        self._response = response
        self._most = most_bytes
        self._received = self._unpacked = 0
        self._unpacker = None
        packing = response.headers.get(b"content-encoding", b"identity").strip().lower()
        if packing in (b"gzip", b"x-gzip", b"deflate"):
            self._unpacker = zlib.decompressobj(47)  # detects gzip and zlib by their headers
        self._is_readable = self._unpacker is not None or packing == b"identity"

    @property
    def headers(self) -> Mapping[str, str]:
        """By name in lower case."""
        return _headers_of(self._response)

    async def read(self) -> bytes:
        """The bytes that arrived since the last read; empty at the end."""
        if not self._is_readable:
            raise HttpFailure("sent an answer that is packed in a way that was not asked for")
        while piece := await self._response.read():
            self._received += len(piece)
            if self._unpacker:
                try:
                    piece = self._unpacker.decompress(piece, self._most + 1 - self._unpacked)
                except zlib.error:
                    raise HttpFailure("sent an answer that cannot be unpacked") from None
                self._unpacked += len(piece)
            if self._received > self._most or self._unpacked > self._most:
                raise HttpFailure(f"sent more than {self._most} bytes", retryable=False)
            if piece:
                return piece
        return b""

    async def body(self) -> bytes:
        pieces = []
        while piece := await self.read():
            pieces.append(piece)
        return b"".join(pieces)

    async def drain(self) -> None:
        """Reads the few bytes after the end of a stream, so that the connection can be reused."""
        if self._response.is_complete:
            return
        with suppress(HttpFailure, TimeoutError):
            async with asyncio.timeout(_LINGER):
                while await self._response.read():
                    pass


class Exchange:
    """The block in which a response is read. Leaving it early closes the connection."""

    __slots__ = ("_body", "_connected", "_connection", "_endpoint", "_most_bytes")

    def __init__(
        self, endpoint: "Endpoint", body: Sequence[bytes], most_bytes: int, connected: asyncio.Event | None
    ) -> None:
        self._endpoint = endpoint
        self._body = body
        self._most_bytes = most_bytes
        self._connected = connected
        self._connection: Connection

    async def __aenter__(self) -> BoundedResponse:
        endpoint, pool = self._endpoint, self._endpoint.pool
        self._connection = connection = await pool.take(endpoint.origin)
        try:
            if self._connected:
                self._connected.set()
            response = connection.send(endpoint.head(sum(map(len, self._body))), *self._body)
            await response.started()
            if 200 <= response.status < 300:
                return BoundedResponse(response, self._most_bytes)
            raise StatusFailure(response, await _error_body(response), endpoint.redaction)
        except BaseException:
            pool.give_back(connection)
            raise

    async def __aexit__(self, *_: object) -> None:
        self._endpoint.pool.give_back(self._connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A URL with its connection pool and the API key for its requests."""

    pool: HttpPool = field(repr=False)
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    redaction: Redaction
    origin: URL = field(init=False, repr=False)
    _head: bytes = field(init=False, repr=False)
    """The head of each request, but for what differs between them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", self.url.origin())
        object.__setattr__(self, "_head", _head_of(self.url, self.headers, self.pool))

    @property
    def name(self) -> str:
        """Host and port, as error messages name the endpoint."""
        return self.url.host_port_subcomponent or ""

    def at(self, *path: str, headers: Mapping[str, str] | None = None) -> "Endpoint":
        """The same endpoint with a path appended."""
        url = self.url.joinpath(*path).with_query(self.url.query)
        return replace(self, url=url, headers={**self.headers, **(headers or {})})

    def post(self, *body: bytes, most_bytes: int, connected: asyncio.Event | None = None) -> Exchange:
        """Sends one request, without retries; its body may come in pieces. `connected` is set before its first byte is
        sent."""
        return Exchange(self, body, most_bytes, connected)

    def head(self, length: int) -> bytes:
        """The head of a request with so many bytes in its body."""
        traced = tracing.sent()
        more = _lines(f"{name}: {value}" for name, value in traced.items()) if traced else b""
        return b"%b%bContent-Length: %d\r\n\r\n" % (self._head, more, length)


@asynccontextmanager
async def open_endpoint(
    base_url: str,
    api_key: str = "",
    *,
    whose: str = "the model's",
    has_user: bool = True,
    egress: Egress = ANYWHERE,
    proxy: str | None = None,
    connect: float = CONNECT,
    hang: float = HANG,
    within: float | None = None,
    limit: int = 0,
) -> AsyncIterator[Endpoint]:
    """Opens a connection pool to a base URL such as https://api.openai.com/v1; no request is sent yet.

    Through a proxy, the proxy resolves names: host names that the operator has not named are then refused as well.
    `has_user`: the URL may hold a user and a password.
    """
    url = _address(base_url, f"{whose} base URL", egress, has_user)
    via = _address(proxy, f"{whose} proxy", egress, schemes=PROXIES) if proxy else None
    if via and egress.refusal_behind_proxy(url):
        raise SetupError(f"{whose} proxy would look up the host of its base URL: name it in LONGHOUSE_ALLOW_EGRESS.")
    if not can_be_sent(api_key):
        raise SetupError(f"{whose} API key contains characters that an HTTP header cannot carry")
    headers = json_headers(api_key)
    if url.user and not api_key:
        headers["Authorization"] = basic(url)
    named = [one for one in (url, via) if one and one.user]
    secrets = filter(None, (api_key, url.password, via.password if via else None))
    # A server may quote the header that carried them, too.
    redaction = redaction_of([*secrets, *(basic(one).removeprefix("Basic ") for one in named)], "[secret]")
    timeouts = Timeouts(connect=connect, hang=hang, within=math.inf if within is None else within)
    async with open_pool(egress, timeouts, keep=True, limit=limit, proxy=via) as pool:
        yield Endpoint(pool=pool, url=url.with_user(None), headers=headers, redaction=redaction)


@asynccontextmanager
async def open_pool(
    egress: Egress,
    timeouts: Timeouts,
    *,
    lookup: Lookup = look_up,
    keep: bool = False,
    limit: int = 100,
    proxy: URL | None = None,
) -> AsyncIterator[HttpPool]:
    """Connections that are made only where the egress rules allow.

    Each connection is new, so each is checked. With `keep`, idle connections and the checked addresses of a name are
    reused for a while. `limit`: connections at once, 0 for no limit.
    """
    dialer = Dialer(egress, lookup, proxy, within=timeouts.connect, keep=keep)
    pool = HttpPool(dialer, timeouts, keep=keep, limit=limit)
    try:
        yield pool
    finally:
        await pool.close()


def json_headers(key: str = "") -> dict[str, str]:
    """The headers of a request with a JSON body, with the API key where there is one."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "longhouse",
    }
    return headers | {"Authorization": f"Bearer {key}"} if key else headers


def can_be_sent(key: str) -> bool:
    """Whether an HTTP header can carry this key."""
    return key.isascii() and key.isprintable()


def _address(text: str, what: str, egress: Egress, has_user: bool = True, schemes: Sequence[str] = HTTP) -> URL:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in schemes or not url.raw_host or (not has_user and (url.user or url.password)):
        starts = " or ".join(f"{scheme}://" for scheme in schemes)
        raise SetupError(f"{what} is not an address that starts with {starts}")
    if url.port is None:
        url = url.with_port(SOCKS_PORT)
    if refused := egress.refusal_of(url):
        if egress is ANYWHERE:  # configured by the operator, who reads this error
            raise SetupError(f"{what} cannot be used: {refused}.")
        # The host is left out: users of an agent may read this error.
        raise SetupError(f"{what} is an address that this server may not reach; see LONGHOUSE_ALLOW_EGRESS.")
    return url


async def _error_body(response: Response) -> bytes:
    """The first bytes of an error body, within a short timeout."""
    body = b""
    with suppress(HttpFailure, TimeoutError):
        bounded = BoundedResponse(response, 2**20)
        async with asyncio.timeout(_ERROR_BODY_TIMEOUT):
            while len(body) < _MAX_ERROR_BODY and (piece := await bounded.read()):
                body += piece
    return body[:_MAX_ERROR_BODY]


@lru_cache(maxsize=64)
def _kind(content_type: bytes) -> str:
    return content_type.partition(b";")[0].strip().lower().decode(errors="replace")


def _head_of(url: URL, headers: Mapping[str, str], pool: HttpPool) -> bytes:
    lines = [f"Host: {url.host_port_subcomponent}", *(f"{name}: {value}" for name, value in headers.items())]
    if not pool.keep:
        lines.append("Connection: close")
    target, proxy = url.raw_path_qs, pool.proxy
    if proxy and url.scheme == "http":
        target = str(url.with_fragment(None))
        if proxy.user:
            lines.append(f"Proxy-Authorization: {basic(proxy)}")
    return _lines([f"POST {target} HTTP/1.1", *lines])


def _lines(lines: Iterable[str]) -> bytes:
    """Lines of a head, each of which stays one."""
    head = ""
    for line in lines:
        if _BREAKS.search(line):
            raise ValueError("a header of the request holds a line break")
        head += f"{line}\r\n"
    return head.encode()


def _headers_of(response: Response) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in response.headers.items()}


def _text(content: bytes) -> str:
    return content.decode(errors="replace")
