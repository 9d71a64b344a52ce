"""Client of Tavily's search API. The operator sets its address; the query never changes which host is called."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from longhouse.errors import LonghouseError
from longhouse.models.http.client import Endpoint, open_endpoint
from longhouse.models.http.failure import HttpFailure

BASE_URL: Final = "https://api.tavily.com"
WITHIN: Final = 45.0
"""Timeout of a whole response in seconds, also for one that arrives slowly."""
MOST_BYTES: Final = 8 * 2**20
"""Maximum bytes of a response, compressed or not."""


class SearchError(LonghouseError):
    """A search failed; the agent reads the message."""


class WebHit(msgspec.Struct, frozen=True):
    """One result of a search."""

    url: str
    title: str | None = None
    content: str | None = None


class Hits(msgspec.Struct, frozen=True):
    results: list[WebHit]
    answer: str | None = None


class WebPage(msgspec.Struct, frozen=True):
    url: str
    raw_content: str | None = None


class Unread(msgspec.Struct, frozen=True):
    url: str
    error: str | None = None


class Pages(msgspec.Struct, frozen=True):
    results: list[WebPage]
    failed_results: list[Unread] = []


_Answer = TypeVar("_Answer", Hits, Pages)


class WebSearch(msgspec.Struct, frozen=True):
    """A search service with its connection pool, shared by all tools."""

    endpoint: Endpoint
    most_bytes: int = MOST_BYTES

    async def search(self, query: str, *, max_results: int) -> Hits:
        return await self._ask("search", {"query": query, "max_results": max_results}, Hits)

    async def extract(self, urls: list[str]) -> Pages:
        """The content of these pages. The service fetches them; this process never does."""
        return await self._ask("extract", {"urls": urls}, Pages)

    async def _ask(self, path: str, body: dict[str, Any], shape: type[_Answer]) -> _Answer:
        endpoint = self.endpoint.at(path, headers={"Accept-Encoding": "gzip"})
        try:
            async with endpoint.post(msgspec.json.encode(body), most_bytes=self.most_bytes) as answer:
                if answer.kind != "application/json":
                    kind = endpoint.redaction.quoted(answer.kind)
                    raise SearchError(f"the search service sent {kind} in place of an answer")
                return msgspec.json.decode(await answer.body(), type=shape)
        except HttpFailure as failure:
            raise SearchError(failure.sentence("the search service")) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise SearchError("the search service sent an answer that cannot be read") from None


@asynccontextmanager
async def open_search(
    base_url: str = BASE_URL, api_key: str = "", *, within: float = WITHIN, most_bytes: int = MOST_BYTES
) -> AsyncIterator[WebSearch]:
    """Opens a connection pool for a search service; sends no request yet."""
    async with open_endpoint(
        base_url, api_key, whose="the search service's", has_user=False, within=within, limit=32
    ) as endpoint:
        yield WebSearch(endpoint, most_bytes)
