"""A stand-in for Tavily on a real socket: it knows a few pages, and remembers what it was asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

KEY = "tvly-very-secret"

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def hit(url: str, title: str = "", content: str = "") -> dict[str, Any]:
    """One result of a search, with the fields that Tavily sends beside those we read."""
    return {"url": url, "title": title, "content": content, "score": 0.9, "raw_content": None}


@dataclass(frozen=True)
class Asked:
    path: str
    body: Any
    headers: Mapping[str, str]


@dataclass
class Tavily:
    """What it knows: results by query, text by address. `answer`, if given, is said instead, whatever is asked."""

    results: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    pages: Mapping[str, str] = field(default_factory=dict)
    answer: Answer | None = None
    together: asyncio.Barrier | None = None
    url: str = ""
    requests: list[Asked] = field(default_factory=list)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        self.requests.append(Asked(request.path, body, dict(request.headers)))
        if self.together:
            await asyncio.wait_for(self.together.wait(), 10)
        if self.answer:
            return await self.answer(request)
        if request.path == "/search":
            found = list(self.results.get(body["query"], ()))[: body["max_results"]]
            return web.json_response({"query": body["query"], "answer": None, "results": found, "response_time": 0.1})
        if request.path == "/extract":
            return web.json_response(self._extracted(body["urls"]))
        return web.json_response({"detail": {"error": "Not found"}}, status=404)

    def _extracted(self, urls: list[str]) -> dict[str, Any]:
        read = [{"url": url, "raw_content": self.pages[url], "images": []} for url in urls if url in self.pages]
        failed = [{"url": url, "error": "Failed to fetch url"} for url in urls if url not in self.pages]
        return {"results": read, "failed_results": failed, "response_time": 0.1}


@asynccontextmanager
async def tavily(
    results: Mapping[str, Sequence[dict[str, Any]]] | None = None,
    pages: Mapping[str, str] | None = None,
    *,
    answer: Answer | None = None,
    together: int = 0,
) -> AsyncIterator[Tavily]:
    """`together`: no request is answered before so many are there."""
    stand_in = Tavily(results or {}, pages or {}, answer, asyncio.Barrier(together) if together else None)
    server = web.Server(stand_in.handle, handler_cancellation=True, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stand_in.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield stand_in
    finally:
        await runner.cleanup()
