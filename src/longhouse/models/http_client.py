"""The HTTP client of models, embeddings, the search service and remote tools.

It connects only where the egress rules allow. It follows no redirects, keeps no cookies and ignores the proxies of the
environment. The size of each response is bounded. Every failure is an `HttpFailure`.
"""

import asyncio
import io
import os
import ssl
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from longhouse import tracing
from longhouse.egress import (
    ANYWHERE,
    HTTP,
    PROXIES,
    SOCKS,
    SOCKS_PORT,
    Egress,
    EgressRefused,
    EgressResolver,
    Lookup,
    look_up,
)
from longhouse.errors import SetupError
from longhouse.models import socks
from longhouse.redaction import Redaction, redaction_of

CONNECT: Final = 10.0
"""Seconds for the DNS lookup and the connect."""
CONNECTING: Final = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
"""A connect timeout only: the caller sets the other limits."""
HANG: Final = 60.0
"""Seconds without a byte after which a response has timed out."""

LARGE_BODY: Final = 2**20
_KEEP_ALIVE: Final = 30.0
"""Seconds that an idle connection, and the checked addresses of a name, are kept."""
_MAX_ERROR_BODY: Final = 16 * 2**10
_ERROR_BODY_TIMEOUT: Final = 5.0
_LINGER: Final = 0.1
_CONNECTION_ERRORS: Final = (aiohttp.ClientError, HttpProcessingError, OSError)


class HttpFailure(Exception):  # noqa: N818 - callers turn it into an error of theirs
    """A request without a usable response."""

    def __init__(self, what: str, why: str = "", *, kind: str = "", retryable: bool = True) -> None:
        super().__init__(what)
        self.what = what
        """What the server did, safe for every reader; a sentence puts its name in front."""
        self.why = why
        """Details for the operator: one bounded line without secrets."""
        self.kind = kind
        """The type of the connection error; empty where a response arrived."""
        self.retryable = retryable
        """Whether a retry may succeed."""

    def sentence(self, who: str) -> str:
        return f"{who} {self.what}: {self.why}" if self.why else f"{who} {self.what}"


class StatusFailure(HttpFailure):
    """A response with a status other than 2xx, redirects included."""

    def __init__(self, response: aiohttp.ClientResponse, error_body: bytes, redaction: Redaction) -> None:
        self.status, self.reason, self.headers = response.status, response.reason, response.headers
        self.error_body = error_body
        """The first bytes of the response body, as they were sent."""
        if 300 <= self.status < 400:
            super().__init__(f"answered {self.status}, a redirect, which is not followed", retryable=False)
            return
        body = error_body.decode(errors="replace").strip()
        why = redaction.quoted(body) if not body.startswith("<") else ""
        super().__init__(f"answered {self.status}", why or "no reason given", retryable=is_retryable(self.status))


def is_retryable(status: int) -> bool:
    """Whether a request that failed with this status may be retried."""
    return status in (408, 409, 425, 429) or status >= 500


class BoundedResponse:
    """A successful response. Its body is read and decompressed up to a bound."""

    def __init__(self, response: aiohttp.ClientResponse, most_bytes: int) -> None:
        self.status, self.kind, self.headers = response.status, response.content_type, response.headers
        self._content = response.content
        self._most = most_bytes
        self._received = self._unpacked = 0
        self._unpacker = None
        packing = response.headers.get("Content-Encoding", "identity").strip().lower()
        if packing in ("gzip", "x-gzip", "deflate"):
            self._unpacker = zlib.decompressobj(47)  # detects gzip and zlib by their headers
        self._is_readable = self._unpacker is not None or packing == "identity"

    async def read(self) -> bytes:
        """The bytes that arrived since the last read; empty at the end."""
        if not self._is_readable:
            raise HttpFailure("sent an answer that is packed in a way that was not asked for")
        while piece := await self._content.readany():
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
        if self._content.at_eof():
            return
        with suppress(*_CONNECTION_ERRORS):
            async with asyncio.timeout(_LINGER):
                while await self._content.readany():
                    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A URL with its connection pool and the API key for its requests."""

    http: aiohttp.ClientSession = field(repr=False)
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    """Sent with each request, not set on the session: aiohttp would send session headers, with the key, to a proxy."""
    redaction: Redaction

    @property
    def name(self) -> str:
        """Host and port, as error messages name the endpoint."""
        return self.url.host_port_subcomponent or ""

    def at(self, *path: str, headers: Mapping[str, str] | None = None) -> "Endpoint":
        """The same endpoint with a path appended."""
        url = self.url.joinpath(*path).with_query(self.url.query)
        return replace(self, url=url, headers={**self.headers, **(headers or {})})

    @asynccontextmanager
    async def post(self, body: bytes, *, most_bytes: int, trace: object = None) -> AsyncIterator[BoundedResponse]:
        """Sends one request, without retries. Leaving the block early closes the connection."""
        if self.http.closed:
            raise HttpFailure("cannot be called: the connections to it are closed")
        # aiohttp warns about bytes over 1 MB, which images may be, but not about a file; that costs more, too.
        data = body if len(body) < LARGE_BODY else io.BytesIO(body)
        try:
            async with self.http.post(
                self.url,
                data=data,
                headers={**self.headers, **tracing.sent()},
                allow_redirects=False,
                trace_request_ctx=trace,
            ) as response:
                if not 200 <= response.status < 300:
                    raise StatusFailure(response, await _error_body(response), self.redaction)
                yield BoundedResponse(response, most_bytes)
        except _CONNECTION_ERRORS as error:
            raise _failure(error, self.http.timeout) from None  # the cause may hold a URL with a password


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
        raise SetupError(f"{whose} base URL is a name that its proxy would look up; see LONGHOUSE_ALLOW_EGRESS.")
    if not can_be_sent(api_key):
        raise SetupError(f"{whose} API key contains characters that an HTTP header cannot carry")
    headers = json_headers(api_key)
    if url.user and not api_key:
        headers["Authorization"] = aiohttp.encode_basic_auth(url.user, url.password or "")
    secrets = filter(None, (api_key, url.password, via.password if via else None))
    redaction = redaction_of(secrets, "[secret]")
    # With a limited pool, `connect` would include the wait for a free connection.
    free = None if limit else connect
    timeout = aiohttp.ClientTimeout(total=within, connect=free, sock_connect=connect, sock_read=hang)
    async with open_session(egress, timeout, keep=True, limit=limit, proxy=via) as http:
        yield Endpoint(http=http, url=url.with_user(None), headers=headers, redaction=redaction)


@asynccontextmanager
async def open_session(
    egress: Egress,
    timeout: aiohttp.ClientTimeout = CONNECTING,
    *,
    lookup: Lookup = look_up,
    keep: bool = False,
    limit: int = 100,
    proxy: URL | None = None,
    traces: Sequence[aiohttp.TraceConfig] = (),
) -> AsyncIterator[aiohttp.ClientSession]:
    """A client session that connects only where the egress rules allow.

    Each connection is new, so each is checked. With `keep`, idle connections and the checked addresses of a name are
    reused for a while. `limit`: connections at once, 0 for no limit.
    """
    gate = EgressResolver(egress, lookup)
    kept: dict[str, Any] = {"keepalive_timeout": _KEEP_ALIVE} if keep else {"force_close": True, "use_dns_cache": False}
    connector: Callable[..., aiohttp.TCPConnector] = aiohttp.TCPConnector
    if proxy and proxy.scheme in SOCKS:
        connector, proxy = partial(socks.SocksConnector, proxy), None
    async with aiohttp.ClientSession(
        connector=connector(resolver=gate, socket_factory=gate.socket, limit=limit, **kept),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        proxy=proxy,
        timeout=timeout,
        trace_configs=list(traces),
    ) as http:
        yield http


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
    if url.scheme not in schemes or not url.host or (not has_user and (url.user or url.password)):
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


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    """The first bytes of an error body, within a short timeout."""
    body = b""
    with suppress(HttpFailure, *_CONNECTION_ERRORS):
        bounded = BoundedResponse(response, 2**20)
        async with asyncio.timeout(_ERROR_BODY_TIMEOUT):
            while len(body) < _MAX_ERROR_BODY and (piece := await bounded.read()):
                body += piece
    return body[:_MAX_ERROR_BODY]


def _failure(error: Exception, timeout: aiohttp.ClientTimeout) -> HttpFailure:
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    kind, why, retryable = type(cause).__name__, "", True
    match error:
        case aiohttp.ConnectionTimeoutError():
            what = f"could not be reached within {timeout.sock_connect:g} s"
        case aiohttp.ServerTimeoutError():
            what = f"sent nothing for {timeout.sock_read:g} s"
        case TimeoutError() if timeout.total:
            what = f"did not answer within {timeout.total:g} seconds"
        case aiohttp.ClientConnectorCertificateError():
            what, retryable = "has no certificate that we trust", False
        case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
            what = "could not be reached through the proxy"
        case aiohttp.ClientConnectorError(os_error=EgressRefused() as refused):
            what, why, retryable = "could not be reached", str(refused.strerror), False
            kind = why
        case aiohttp.ClientConnectorError():
            what, why = "could not be reached", _reason(error.os_error)
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
            what = "closed the connection without an answer"
        case aiohttp.ClientPayloadError():
            what = "broke off its answer"
        case _:
            what, why = "did not complete the request", kind
    return HttpFailure(what, why, kind=kind, retryable=retryable)


def _reason(error: OSError) -> str:
    """The system's error message without the address that asyncio adds."""
    if (error.errno or 0) > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno or 0)
    return error.strerror or "no connection"
