"""Search over Tavily's HTTP API. The address is the operator's; what is searched for never changes whom we call."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from longhouse.egress import ANYWHERE, connector
from longhouse.errors import LonghouseError, SetupError, quoted

BASE_URL: Final = "https://api.tavily.com"
CONNECT: Final = 10.0
"""Seconds to find the host and connect to it."""
WITHIN: Final = 45.0
"""Seconds for a whole answer: one that comes in drops ends here."""
MOST_BYTES: Final = 8 * 2**20
"""No honest answer is longer, packed or unpacked."""

_PIECE: Final = 64 * 2**10
_PACKED: Final = {"gzip": 31, "x-gzip": 31, "deflate": 15}
_TROUBLE: Final = (aiohttp.ClientError, HttpProcessingError, OSError, zlib.error)


class SearchError(LonghouseError):
    """A search did not come to anything; in words that an agent can act on."""


class Hit(msgspec.Struct, frozen=True):
    """One result of a search."""

    url: str
    title: str | None = None
    content: str | None = None


class Hits(msgspec.Struct, frozen=True):
    results: list[Hit]
    answer: str | None = None


class Page(msgspec.Struct, frozen=True):
    url: str
    raw_content: str | None = None


class Unread(msgspec.Struct, frozen=True):
    url: str
    error: str | None = None


class Pages(msgspec.Struct, frozen=True):
    results: list[Page]
    failed_results: list[Unread] = []


_Answer = TypeVar("_Answer", Hits, Pages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search service with its connections, which all tools share."""

    http: aiohttp.ClientSession
    url: URL
    headers: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    within: float = WITHIN
    most_bytes: int = MOST_BYTES

    async def search(self, query: str, *, max_results: int) -> Hits:
        return await self._ask("search", {"query": query, "max_results": max_results}, Hits)

    async def extract(self, urls: list[str]) -> Pages:
        """What stands on these pages. The service reads them; we never do."""
        return await self._ask("extract", {"urls": urls}, Pages)

    async def _ask(self, path: str, body: dict[str, Any], shape: type[_Answer]) -> _Answer:
        deadline = asyncio.timeout(self.within)
        try:
            async with (
                deadline,
                self.http.post(
                    self.url.joinpath(path),
                    data=msgspec.json.encode(body),
                    headers=self.headers,
                    allow_redirects=False,
                ) as response,
            ):
                await self._accept(response)
                said = await self._read(response)
        except _TROUBLE as error:
            if isinstance(error, TimeoutError) and deadline.expired():
                raise SearchError(f"the search service did not answer within {self.within:g} seconds") from None
            # Not chained: it may hold an address with its password.
            raise SearchError(f"the search service could not be reached ({type(error).__name__})") from None
        try:
            return msgspec.json.decode(said, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SearchError("the search service sent what is no answer") from None

    async def _accept(self, response: aiohttp.ClientResponse) -> None:
        status = response.status
        if 300 <= status < 400:
            raise SearchError(f"the search service answered {status}, a redirect, which is not followed")
        if not 200 <= status < 300:
            raise SearchError(f"the search service answered {status}: {await self._complaint(response)}")
        if response.content_type != "application/json":
            raise SearchError(
                f"the search service sent {quoted(response.content_type, self.secrets)} in place of an answer"
            )

    async def _complaint(self, response: aiohttp.ClientResponse) -> str:
        said = (await self._read(response)).decode(errors="replace").strip()
        return (quoted(said, self.secrets) if said and not said.startswith("<") else "") or "no reason given"

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The whole body, unpacked by ourselves and never further than the bound."""
        read, packing = bytearray(), response.headers.get("Content-Encoding", "identity").lower()
        if packing not in _PACKED:
            if packing != "identity":
                raise SearchError("the search service packed its answer in a way that we did not ask for")
            async for piece in response.content.iter_chunked(_PIECE):
                read += piece
                self._bound(read)
            return bytes(read)
        unpacker, received = zlib.decompressobj(_PACKED[packing]), 0
        async for piece in response.content.iter_chunked(_PIECE):
            received += len(piece)
            read += unpacker.decompress(piece, self.most_bytes + 1 - len(read))
            self._bound(read, received)
        return bytes(read)

    def _bound(self, read: bytearray, received: int = 0) -> None:
        if max(len(read), received) > self.most_bytes:
            raise SearchError(f"the search service sent more than {self.most_bytes} bytes in one answer")


@asynccontextmanager
async def open_search(
    base_url: str = BASE_URL, api_key: str = "", *, within: float = WITHIN, most_bytes: int = MOST_BYTES
) -> AsyncIterator[Search]:
    """Opens the connections to a search service; no request is sent yet."""
    url = _address(base_url)
    if not api_key.isascii() or not api_key.isprintable():
        raise SetupError("the search service's API key holds characters that no HTTP header can carry")
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "gzip",
        "Content-Type": "application/json",
        "User-Agent": "longhouse",
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    async with aiohttp.ClientSession(
        connector=connector(ANYWHERE, limit=32, keep=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT),
    ) as http:
        yield Search(
            http=http,
            url=url,
            headers=headers,
            secrets=(api_key,) if api_key else (),
            within=within,
            most_bytes=most_bytes,
        )


def _address(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host or url.user or url.password:
        raise SetupError("the search service's base URL is not an address that starts with http:// or https://")
    if refused := ANYWHERE.refusal_of(url):
        raise SetupError(f"the search service's base URL cannot be used: {refused}.")
    return url
