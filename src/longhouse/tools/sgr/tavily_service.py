"""The search service with the interface of SGR-Agent Core: results are SourceData."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from longhouse.tools.builtin.research import LONGEST_PAGE, MOST_URLS, refusal
from longhouse.tools.builtin.tavily import WebSearch, open_search
from longhouse.tools.config import SearchConfig
from longhouse.tools.sgr.sources import SourceData


class TavilySearchService:
    """Opens its connections for each request: a tool that creates this service never closes it."""

    def __init__(self, search_config: SearchConfig) -> None:
        self._config = search_config

    @staticmethod
    def rearrange_sources(sources: list[SourceData], starting_number: int = 1) -> list[SourceData]:
        """Renumbers the sources in sequence."""
        for number, source in enumerate(sources, starting_number):
            source.number = number
        return sources

    async def search(
        self, query: str, max_results: int | None = None, include_raw_content: bool = True
    ) -> list[SourceData]:
        """The search results, by default with the text of the pages."""
        async with self._open() as service:
            found = await service.search(query, max_results=max_results or self._config.max_results)
            hits = [hit for hit in found.results if refusal(hit.url) is None]
            texts = await _texts(service, [hit.url for hit in hits]) if include_raw_content else {}
        return [
            _source(number, hit.url, hit.title or "", texts.get(hit.url, ""), snippet=hit.content or "")
            for number, hit in enumerate(hits)
        ]

    async def extract(self, urls: Sequence[str]) -> list[SourceData]:
        """The pages that could be read; URLs that are not public are not requested."""
        async with self._open() as service:
            texts = await _texts(service, [url for url in urls if refusal(url) is None])
        return [
            _source(number, url, url.rstrip("/").rpartition("/")[2], text)
            for number, (url, text) in enumerate(texts.items())
        ]

    def _open(self) -> AbstractAsyncContextManager[WebSearch]:
        return open_search(self._config.tavily_api_base_url, self._config.tavily_api_key)


async def _texts(service: WebSearch, urls: Sequence[str]) -> dict[str, str]:
    """Text by URL, for the pages that have text."""
    if not urls:
        return {}
    answer = await service.extract(list(dict.fromkeys(urls))[:MOST_URLS])
    return {page.url: page.raw_content[:LONGEST_PAGE] for page in answer.results if page.raw_content}


def _source(number: int, url: str, title: str, text: str, *, snippet: str = "") -> SourceData:
    return SourceData(number=number, title=title, url=url, snippet=snippet, full_content=text, char_count=len(text))
