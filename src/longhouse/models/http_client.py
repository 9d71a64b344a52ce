"""The one HTTP client, for models, embeddings, the search service and remote tools.

Connections lead only where the egress rules allow. Redirects are not followed, cookies are not kept, proxies of the
environment are not used. Each answer is read up to a bound. Whatever goes wrong on the way is an `HttpFailure`.
"""

import asyncio
import io
import os
import ssl
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from longhouse.egress import ANYWHERE, Egress, EgressRefused, Gate, Lookup, look_up
from longhouse.errors import SetupError
from longhouse.redaction import Redaction, redaction_of

CONNECT: Final = 10.0
"""Seconds to find the host and connect to it."""
CONNECTING: Final = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT)
"""Bounds nothing else: the caller does."""
HANG: Final = 60.0
"""Seconds without a single byte after which an answer counts as hung."""

_KEPT: Final = 30.0
"""Seconds that a connection, and the addresses checked for a name, are kept after use."""
_MOST_COMPLAINT: Final = 16 * 2**10
_COMPLAINT_WITHIN: Final = 5.0
_LINGER: Final = 0.1
_TROUBLE: Final = (aiohttp.ClientError, HttpProcessingError, OSError)


class HttpFailure(Exception):  # noqa: N818 - callers turn it into an error of theirs
    """A request brought no answer that can be used."""

    def __init__(self, what: str, why: str = "", *, kind: str = "", retryable: bool = True) -> None:
        super().__init__(what)
        self.what = what
        """What the other side did, to be put behind its name."""
        self.why = why
        """Details for the operator: one bounded line without secrets."""
        self.kind = kind
        """What kind of trouble the connection had; empty where an answer came."""
        self.retryable = retryable
        """May it be gone at the next try?"""

    def told(self, who: str) -> str:
        """The same in a sentence that anybody may read."""
        return f"{who} {self.what}"

    def sentence(self, who: str) -> str:
        """The same with its details."""
        return f"{self.told(who)}: {self.why}" if self.why else self.told(who)


class PackedAnswer(HttpFailure):
    """An answer whose Content-Encoding cannot be undone."""

    def told(self, who: str) -> str:
        return f"the answer {self.what} ({who} sent it)"


class StatusFailure(HttpFailure):
    """An answer with another status than 2xx; a redirect is one of them."""

    def __init__(self, response: aiohttp.ClientResponse, complaint: bytes, redaction: Redaction) -> None:
        self.status, self.reason, self.headers = response.status, response.reason, response.headers
        self.complaint = complaint
        """The beginning of its body, as it was sent."""
        if 300 <= self.status < 400:
            super().__init__(f"answered {self.status}, a redirect, which is not followed", retryable=False)
            return
        said = complaint.decode(errors="replace").strip()
        why = redaction.quoted(said) if not said.startswith("<") else ""
        super().__init__(f"answered {self.status}", why or "no reason given", retryable=passes(self.status))


def passes(status: int) -> bool:
    """Whether a failure with this status may be gone at the next try."""
    return status in (408, 409, 425, 429) or status >= 500


class BoundedResponse:
    """A response of success. Its body is read, and unpacked, up to a bound."""

    def __init__(self, response: aiohttp.ClientResponse, most_bytes: int) -> None:
        self.status, self.kind, self.headers = response.status, response.content_type, response.headers
        self._content = response.content
        self._most = most_bytes
        self._received = self._unpacked = 0
        self._unpacker = _unpacker(response)

    async def read(self) -> bytes:
        """All that has arrived since the last read; nothing at the end."""
        while piece := await self._content.readany():
            self._received += len(piece)
            if self._unpacker:
                piece = self._unpack(self._unpacker, piece)
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

    async def let_go(self) -> None:
        """Reads the few bytes behind the end of a stream, so that the connection can be used again."""
        if self._content.at_eof():
            return
        with suppress(*_TROUBLE):
            async with asyncio.timeout(_LINGER):
                while await self._content.readany():
                    pass

    def _unpack(self, unpacker: "zlib._Decompress", piece: bytes) -> bytes:
        try:
            unpacked = unpacker.decompress(piece, self._most + 1 - self._unpacked)
        except zlib.error:
            raise PackedAnswer("cannot be unpacked") from None
        self._unpacked += len(unpacked)
        return unpacked


def _unpacker(response: aiohttp.ClientResponse) -> "zlib._Decompress | None":
    packing = response.headers.get("Content-Encoding", "identity").strip().lower()
    if packing in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(47)  # finds out by itself which of them it is
    if packing != "identity":
        raise PackedAnswer("is packed in a way that was not asked for")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address, with connections to it, and the key that goes along."""

    http: aiohttp.ClientSession = field(repr=False)
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    """Of each request and not of the session: aiohttp would show those of the session, the key too, to a proxy."""
    redaction: Redaction

    @property
    def name(self) -> str:
        """Host and port: what errors call it."""
        return self.url.host_port_subcomponent or ""

    def at(self, *path: str, headers: Mapping[str, str] | None = None) -> "Endpoint":
        """The same, at a path beneath."""
        url = self.url.joinpath(*path).with_query(self.url.query)
        return replace(self, url=url, headers={**self.headers, **(headers or {})})

    @asynccontextmanager
    async def post(self, body: bytes, *, most_bytes: int, trace: object = None) -> AsyncIterator[BoundedResponse]:
        """One request, sent once. Leaving the block before the end of the answer hangs up."""
        if self.http.closed:
            raise HttpFailure("cannot be asked: the connections to it are closed")
        # As a file, because aiohttp warns of bytes over 1 MB, and of images there may be more.
        data = io.BytesIO(body)
        try:
            async with self.http.post(
                self.url, data=data, headers=self.headers, allow_redirects=False, trace_request_ctx=trace
            ) as response:
                if not 200 <= response.status < 300:
                    raise StatusFailure(response, await _complaint(response), self.redaction)
                yield BoundedResponse(response, most_bytes)
        except _TROUBLE as error:
            raise _failure(error, self.http.timeout) from None  # it may hold an address with its password


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
    """Opens the connections to an address such as https://api.openai.com/v1; no request is sent yet.

    Through a proxy it is the proxy that looks names up: beside what is clear by itself, names are refused that the
    operator has not named. `has_user`: the address may hold a user and a password.
    """
    url = _address(base_url, f"{whose} base URL", egress, has_user)
    via = _address(proxy, f"{whose} proxy", egress) if proxy else None
    if via and egress.refusal_behind_proxy(url):
        raise SetupError(f"{whose} base URL is a name that its proxy would look up; see LONGHOUSE_ALLOW_EGRESS.")
    if not can_be_sent(api_key):
        raise SetupError(f"{whose} API key holds characters that no HTTP header can carry")
    headers = json_headers(api_key)
    if url.user and not api_key:
        headers["Authorization"] = aiohttp.encode_basic_auth(url.user, url.password or "")
    secrets = filter(None, (api_key, url.password, via.password if via else None))
    redaction = redaction_of(secrets, "[secret]")
    # Where connections are limited, `connect` would count the wait for a free one too.
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
    """Connections that cannot lead where the rules do not allow.

    Each is new, so each is checked. With `keep` they are kept for a while after use, and so are addresses that were
    checked for a name. `limit`: of connections at once, 0 for any number.
    """
    gate = Gate(egress, lookup)
    kept: dict[str, Any] = {"keepalive_timeout": _KEPT} if keep else {"force_close": True, "use_dns_cache": False}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(resolver=gate, socket_factory=gate.socket, limit=limit, **kept),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        proxy=proxy,
        timeout=timeout,
        trace_configs=list(traces),
    ) as http:
        yield http


def json_headers(key: str = "") -> dict[str, str]:
    """Of a request with a JSON body, and with a key where there is one."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "longhouse",
    }
    return headers | {"Authorization": f"Bearer {key}"} if key else headers


def can_be_sent(key: str) -> bool:
    """Can an HTTP header carry this key?"""
    return key.isascii() and key.isprintable()


def _address(text: str, what: str, egress: Egress, has_user: bool = True) -> URL:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host or (not has_user and (url.user or url.password)):
        raise SetupError(f"{what} is not an address that starts with http:// or https://")
    if refused := egress.refusal_of(url):
        if egress is ANYWHERE:  # set up by the operator, who reads this
            raise SetupError(f"{what} cannot be used: {refused}.")
        # Without the host: users of an agent may read this.
        raise SetupError(f"{what} leads where this server may not go; see LONGHOUSE_ALLOW_EGRESS.")
    return url


async def _complaint(response: aiohttp.ClientResponse) -> bytes:
    """The beginning of an error's body; a peer that is slow to complain is not waited for."""
    said = b""
    with suppress(HttpFailure, *_TROUBLE):
        bounded = BoundedResponse(response, 2**20)
        async with asyncio.timeout(_COMPLAINT_WITHIN):
            while len(said) < _MOST_COMPLAINT and (piece := await bounded.read()):
                said += piece
    return said[:_MOST_COMPLAINT]


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
            what, why = "could not be talked to", kind
    return HttpFailure(what, why, kind=kind, retryable=retryable)


def _reason(error: OSError) -> str:
    """The system's words without the address that asyncio adds to them."""
    if (error.errno or 0) > 0 and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno or 0)
    return error.strerror or "no connection"
