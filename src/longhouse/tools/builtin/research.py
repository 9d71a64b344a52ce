"""Research tools: web search and page extraction. Results are kept as numbered sources."""

import itertools
import re
from collections import defaultdict
from typing import Any, ClassVar, Final

from pydantic import Field
from yarl import URL

from longhouse import clock
from longhouse.egress import LONGEST_URL, is_public_host
from longhouse.journal.roles import Role
from longhouse.tools.base import BaseTool
from longhouse.tools.builtin.tavily import SearchError, WebPage, WebSearch
from longhouse.tools.config import SearchConfig, ToolConfig
from longhouse.tools.context import ToolContext
from longhouse.tools.outcomes import bounded
from longhouse.tools.sgr.sources import FoundRecord

MOST_URLS: Final = 10
LONGEST_TITLE: Final = 300
LONGEST_PAGE: Final = 100_000
"""Maximum characters of a page that are kept with its source."""


class WebSearchTool(BaseTool):
    """Search the web. The results have numbers: cite them in the answer as [1], [2]."""

    tool_role: ClassVar[Role] = "searches"

    query: str = Field(min_length=1, max_length=1_000, description="What to look for, in a few specific words")
    max_results: int | None = Field(default=None, ge=1, description="How many results, if fewer than usual are enough")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        setup = _setup(config)
        most = min(self.max_results or setup.max_results, setup.max_results)
        found = await _service(context).search(self.query, max_results=most)
        numbers, shown = _numbers(context, setup), []
        for hit in found.results[:most]:
            if not _is_link(hit.url):
                continue
            snippet = (hit.content or "")[: setup.content_limit]
            shown.append(_keep(context, hit.url, numbers[hit.url], title=_line(hit.title or ""), snippet=snippet))
        cited = [{name: one[name] for name in ("number", "title", "url", "snippet")} for one in shown]
        search = {
            "query": self.query,
            "answer": found.answer,
            "citations": cited,
            "timestamp": clock.now().isoformat(timespec="seconds"),
        }
        context.searches.append(search)
        context.searches_used += 1
        results = [f"[{one['number']}] {one['title'] or 'Untitled'}\n{one['url']}\n{one['snippet']}" for one in cited]
        return "\n\n".join([f"Search query: {self.query}", *(results or ["Nothing was found."])])


class ExtractPageContentTool(BaseTool):
    """Read web pages that a search has found, when their snippets are not enough."""

    urls: list[str] = Field(min_length=1, max_length=MOST_URLS, description="The addresses of the pages")

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        setup, asked = _setup(config), list(dict.fromkeys(self.urls))
        unread = {url: why for url in asked if (why := refusal(url))}
        wanted = [url for url in asked if url not in unread]
        read = await _read(_service(context), wanted, unread) if wanted else {}
        if not read:
            raise SearchError("; ".join(f"{url[:LONGEST_URL]}: {why}" for url, why in unread.items()))
        numbers, shown = _numbers(context, setup), []
        for url, text in read.items():
            source = _keep(context, url, numbers[url])
            source["full_content"] = text[:LONGEST_PAGE]
            page = f"[{source['number']}] {source['title'] or 'Untitled'}\n{source['url']}"
            shown.append(f"{page}\n{bounded(text, setup.content_limit)}")
        return "\n\n".join([*shown, *(f"{url[:LONGEST_URL]}\n[not read: {why}]" for url, why in unread.items())])


async def _read(service: WebSearch, wanted: list[str], unread: dict[str, str]) -> dict[str, str]:
    """The text of each page that could be read; the reasons for the others go to `unread`."""
    answer = await service.extract(wanted)
    pages: dict[str, WebPage] = {page.url.rstrip("/"): page for page in answer.results}
    reasons = {failed.url.rstrip("/"): failed.error for failed in answer.failed_results}
    read = {}
    for url in wanted:
        page = pages.get(url.rstrip("/"))
        if page and page.raw_content:
            read[url] = page.raw_content
        else:
            unread[url] = _line(reasons.get(url.rstrip("/")) or "the page could not be read")
    return read


def _numbers(context: ToolContext, setup: SearchConfig) -> defaultdict[str, int]:
    """The number of each source by its URL; a new URL gets the next number of this call.

    Calls of one reply run in parallel and do not see each other's sources. So each call has its own range of numbers,
    above all numbers used so far; the index of the call in its reply selects the range.
    """
    given, index = known(context), context.call.rpartition("-")[2]
    nth = int(index) if index.isascii() and index.isdecimal() else 0
    first = max(given, default=0) + 1 + nth * max(setup.max_results, MOST_URLS)
    return defaultdict(itertools.count(first).__next__, {source["url"]: number for number, source in given.items()})


def _keep(context: ToolContext, url: str, number: int, *, title: str = "", snippet: str = "") -> dict[str, Any]:
    """Stores the source of this URL in the context; known fields are kept."""
    new = {"number": number, "title": title, "url": url, "snippet": snippet, "full_content": ""}
    there = context.sources.get(url)
    was = {name: value for name, value in there.items() if value} if isinstance(there, dict | FoundRecord) else {}
    # Recomputed whenever a source is read from the journal: the count of an earlier text must not remain.
    was.pop("char_count", None)
    context.sources[url] = source = {**new, **was}
    return source


def known(context: ToolContext) -> dict[int, dict[str, Any]]:
    """Every source number that the agent has seen, with its source.

    Two parallel searches may find the same page under different numbers: `sources` keeps one of them, `searches`
    has both.
    """
    searches = [search for search in context.searches if isinstance(search, dict | FoundRecord)]
    cited = [one for search in searches for one in search.get("citations", ())]
    every = [dict(one) for one in (*cited, *context.sources.values()) if isinstance(one, dict | FoundRecord)]
    return {one["number"]: one for one in every if isinstance(one.get("number"), int) and one.get("url")}


def refusal(url: str) -> str | None:
    """Why a page is not requested: a URL that is not public could lead the search service into a private network."""
    if not _is_link(url):
        return "it is not an address that starts with http:// or https://"
    return None if is_public_host(URL(url).raw_host or "") else "it is not a public address"


def _is_link(url: str) -> bool:
    if len(url) > LONGEST_URL or not url.isprintable() or any(c in url for c in ' \\"<>`'):
        return False
    try:
        parsed = URL(url)
    except ValueError:
        return False
    return bool(parsed.scheme in ("http", "https") and parsed.host and not parsed.user and not parsed.password)


def _service(context: ToolContext) -> WebSearch:
    if context.services.search is None:
        raise SearchError("no search service is set up here; go on without, or say that it is missing")
    return context.services.search


def _setup(config: Any) -> SearchConfig:
    return config.search if isinstance(config, ToolConfig) else SearchConfig()


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:LONGEST_TITLE]
