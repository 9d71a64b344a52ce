"""Any OpenAI-compatible endpoint. Whatever goes wrong on the way becomes a ProviderError of one sentence."""

import asyncio
import email.utils
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from longhouse import clock
from longhouse.agents.strategy import Body, StreamOptions
from longhouse.egress import ANYWHERE, Egress, EgressRefused, connector
from longhouse.errors import ProviderError, SetupError, quoted
from longhouse.models.chunks import Reading, Refused, Unreadable
from longhouse.models.model import Delta, paid_for

CONNECT: Final = 10.0
"""Seconds to find the host and connect to it."""
HANG: Final = 60.0
"""Seconds without a single byte after which an answer counts as hung."""
MOST_BYTES: Final = 32 * 2**20
"""No honest answer is longer; an endless one ends here."""
LONGEST_WAIT: Final = 120.0
"""Seconds; a provider that asks for a longer pause is asked again after this one."""

_LONGEST_COMPLAINT: Final = 16 * 2**10
_LINGER: Final = 0.1
_PASSING: Final = frozenset({408, 409, 425, 429})
_TROUBLE: Final = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One provider's address with its connections, which all models of that address share."""

    name: str
    """Host and port: what errors call it."""
    url: URL
    http: aiohttp.ClientSession
    headers: Mapping[str, str]
    """Of each request and not of the session: aiohttp would show those of the session, the key too, to a proxy."""
    secrets: tuple[str, ...] = ()
    connect: float = CONNECT
    hang: float = HANG

    def quoted(self, text: str) -> str:
        """A provider's words, without our secrets."""
        return quoted(text, self.secrets)

    def failed(self, what: str, words: str = "", *, retryable: bool, retry_after: float | None = None) -> ProviderError:
        """What the endpoint did; its name and its own `words` are for the operator alone."""
        message = f"{self.name} {what}: {words}" if words else f"{self.name} {what}"
        return ProviderError(message, told=f"the model {what}", retryable=retryable, retry_after=retry_after)


@asynccontextmanager
async def open_endpoint(
    base_url: str,
    api_key: str = "",
    *,
    proxy: str | None = None,
    connect: float = CONNECT,
    hang: float = HANG,
    egress: Egress = ANYWHERE,
) -> AsyncIterator[Endpoint]:
    """Opens the connections to an endpoint such as https://api.openai.com/v1; no request is sent yet.

    Through a proxy it is the proxy that looks names up: beside what is clear by itself, names are refused that the
    operator has not named.
    """
    url = _address(base_url, "base URL", egress)
    via = _address(proxy, "proxy", egress) if proxy else None
    if via and egress.refusal_behind_proxy(url):
        raise SetupError("the model's base URL is a name that its proxy would look up; see LONGHOUSE_ALLOW_EGRESS.")
    if not api_key.isascii() or not api_key.isprintable():
        raise SetupError("the model's API key holds characters that no HTTP header can carry")
    async with aiohttp.ClientSession(
        connector=connector(egress, limit=0, keep=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        proxy=via,
        timeout=aiohttp.ClientTimeout(total=None, connect=connect, sock_connect=connect, sock_read=hang),
    ) as http:
        yield Endpoint(
            name=url.host_port_subcomponent or "",
            url=url.with_user(None).joinpath("chat", "completions").with_query(url.query),
            http=http,
            headers=_headers(url, api_key),
            secrets=tuple(filter(None, (api_key, url.password, via.password if via else None))),
            connect=connect,
            hang=hang,
        )


class OpenAIModel:
    """A model behind an OpenAI-compatible endpoint; the request's body says which one."""

    def __init__(self, endpoint: Endpoint, *, most_bytes: int = MOST_BYTES) -> None:
        self._endpoint = endpoint
        self._most_bytes = most_bytes

    async def stream(self, body: Body) -> AsyncGenerator[Delta, None]:
        """One request. Closing the generator hangs up at once, and the provider stops working for us."""
        endpoint, reading = self._endpoint, Reading()
        data = self._encoded(body)
        try:
            async with endpoint.http.post(
                endpoint.url, data=data, headers=endpoint.headers, allow_redirects=False
            ) as response:
                await self._accept(response)
                source = _Source(response.content, self._most_bytes)
                plain = response.content_type == "application/json"
                if plain and (delta := reading.whole(await source.rest())):
                    yield delta
                while not reading.done and (read := await source.read()):
                    if delta := reading.feed(read):
                        yield delta
                if not reading.finished and (delta := reading.end()):
                    yield delta
                await _let_go(response.content)
        except _TROUBLE as error:
            if not reading.finished:
                raise self._trouble(error) from None  # it may hold an address with its password
        except Refused as refused:
            raise self._refused(refused.error) from refused
        except _Endless as error:
            what = f"sent more than {self._most_bytes} bytes in one answer"
            raise endpoint.failed(what, retryable=False) from error
        except Unreadable as error:
            words = endpoint.quoted(str(error))
            trouble = endpoint.failed("sent what is no answer", words, retryable=True)
            raise paid_for(trouble, error.usage) from error
        if not reading.finished:
            raise endpoint.failed("broke off its answer", retryable=True)

    def _encoded(self, body: Body) -> io.BytesIO:
        if self._endpoint.http.closed:
            name = self._endpoint.name
            told = "the connections to the model are closed"
            raise ProviderError(f"the connections to {name} are closed", told=told, retryable=True)
        streamed = msgspec.structs.replace(body, stream=True, stream_options=StreamOptions())
        try:
            # As a file, because aiohttp warns of bytes over 1 MB, and of images there may be more.
            return io.BytesIO(msgspec.json.encode(streamed))
        except UnicodeEncodeError as error:
            raise ProviderError("the request holds text that no JSON can carry", retryable=False) from error

    async def _accept(self, response: aiohttp.ClientResponse) -> None:
        if not 200 <= response.status < 300:
            raise await self._failure(response)
        if (
            response.content_type not in ("text/event-stream", "application/json")
            and "Content-Type" in response.headers
        ):
            # Retryable: it is mostly a proxy's page about a model that is down for the moment.
            kind = self._endpoint.quoted(response.content_type)
            told = "the model sent something else in place of an answer"
            reason = f"{self._endpoint.name} sent {kind} in place of an answer"
            raise ProviderError(reason, told=told, retryable=True)

    async def _failure(self, response: aiohttp.ClientResponse) -> ProviderError:
        status = response.status
        if 300 <= status < 400:
            return self._endpoint.failed(f"answered {status}, a redirect, which is not followed", retryable=False)
        words = _words(await complaint(response.content)) or response.reason or "no reason given"
        retryable = {"true": True, "false": False}.get(response.headers.get("x-should-retry", ""), passes(status))
        return self._endpoint.failed(
            f"answered {status}",
            self._endpoint.quoted(words),
            retryable=retryable,
            retry_after=_retry_after(response.headers) if retryable else None,
        )

    def _refused(self, error: Any) -> ProviderError:
        said = _error(error)
        words = self._endpoint.quoted(said.message or "") or "no reason given"
        code = str(said.code)
        retryable = passes(int(code)) if code.isdecimal() and len(code) == 3 else said.type != "invalid_request_error"
        return self._endpoint.failed("answered with an error", words, retryable=retryable)

    def _trouble(self, error: Exception) -> ProviderError:
        words, retryable = "", True
        match error:
            case aiohttp.ConnectionTimeoutError():
                what = f"could not be reached within {self._endpoint.connect:g} s"
            case TimeoutError():
                what = f"sent nothing for {self._endpoint.hang:g} s"
            case aiohttp.ClientConnectorCertificateError():
                what, retryable = "has no certificate that we trust", False
            case aiohttp.ClientProxyConnectionError() | aiohttp.ClientHttpProxyError():
                what = "could not be reached through the proxy"
            case aiohttp.ClientConnectorError(os_error=EgressRefused() as refused):
                what, words, retryable = "could not be reached", str(refused.strerror), False
            case aiohttp.ClientConnectorError():
                what, words = "could not be reached", error.os_error.strerror or "no connection"
            case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError():
                what = "closed the connection without an answer"
            case aiohttp.ClientPayloadError():
                what = "broke off its answer"
            case _:
                what, words = "could not be talked to", type(error).__name__
        return self._endpoint.failed(what, words, retryable=retryable)


class _Endless(Exception):  # noqa: N818 - never leaves this module
    """An answer outgrew its bound."""


class _Source:
    """The bytes of one answer, up to a bound."""

    def __init__(self, content: aiohttp.StreamReader, most: int) -> None:
        self._content = content
        self._left = most

    async def read(self) -> bytes:
        """All that has arrived since the last read; nothing at the end."""
        read = await self._content.readany()
        self._left -= len(read)
        if self._left < 0:
            raise _Endless
        return read

    async def rest(self) -> bytes:
        reads = []
        while read := await self.read():
            reads.append(read)
        return b"".join(reads)


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    code: str | int | None = None


class _Envelope(msgspec.Struct):
    error: Any = None
    message: Any = None
    detail: Any = None


def _address(text: str, what: str, egress: Egress) -> URL:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise SetupError(f"the model's {what} is not an address that starts with http:// or https://")
    if refused := egress.refusal_of(url):
        if egress is ANYWHERE:  # set up by the operator, who reads this
            raise SetupError(f"the model's {what} cannot be used: {refused}.")
        # Without the host: users of an agent may read this.
        raise SetupError(f"the model's {what} leads where this server may not go; see LONGHOUSE_ALLOW_EGRESS.")
    return url


def _headers(url: URL, api_key: str) -> dict[str, str]:
    headers = {
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "longhouse",
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    elif url.user:
        headers["Authorization"] = aiohttp.encode_basic_auth(url.user, url.password or "")
    return headers


def passes(status: int) -> bool:
    """Whether a failure with this status may be gone at the next try."""
    return status in _PASSING or status >= 500


async def complaint(content: aiohttp.StreamReader) -> bytes:
    """The beginning of an error's body; a peer that is slow to complain is not waited for."""
    said = b""
    with suppress(*_TROUBLE):
        async with asyncio.timeout(5):
            while len(said) < _LONGEST_COMPLAINT and (read := await content.readany()):
                said += read
    return said[:_LONGEST_COMPLAINT]


def _words(complaint: bytes) -> str:
    """What an error's body says, in whichever of the usual envelopes."""
    try:
        found = msgspec.json.decode(complaint, type=_Envelope | list[_Envelope])
    except (ValueError, RecursionError):
        text = complaint.decode(errors="replace").strip()
        return "" if text.startswith("<") else text
    envelope = found if isinstance(found, _Envelope) else found[0] if found else _Envelope()
    return _error(envelope.error or envelope.message or envelope.detail).message or ""


def _error(error: Any) -> _Error:
    if isinstance(error, str) or error is None:
        return _Error(message=error)
    try:
        said = msgspec.convert(error, _Error)
    except msgspec.ValidationError:
        said = _Error()
    return said if said.message else _Error(message=json.dumps(error), type=said.type, code=said.code)


def _retry_after(headers: Mapping[str, str]) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _seconds(headers.get(name, ""))
        if seconds is not None and seconds >= 0:
            return min(seconds * unit, LONGEST_WAIT)
    return None


def _seconds(text: str) -> float | None:
    with suppress(ValueError):
        return float(text)
    with suppress(ValueError, OverflowError):
        moment = email.utils.parsedate_to_datetime(text)
        return max(0.0, moment.timestamp() - clock.now().timestamp())
    return None


async def _let_go(content: aiohttp.StreamReader) -> None:
    """Reads the few bytes behind the end, so that the connection can be used again."""
    if content.at_eof():
        return
    with suppress(*_TROUBLE):
        async with asyncio.timeout(_LINGER):
            while await content.readany():
                pass
