"""A collector of traces on a real socket: OTLP over HTTP, in JSON."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web


@dataclass
class Collector:
    url: str = ""
    spans: dict[str, Any] = field(default_factory=dict)
    """By id: a span that comes twice is one."""
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """The status of the next requests; after that all is well."""
    resource: dict[str, Any] = field(default_factory=dict)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if status := self.answers.pop(0) if self.answers else 0:
            return web.Response(status=status)
        self.raw.append(raw)
        for resource in msgspec.json.decode(raw)["resourceSpans"]:
            self.resource = attributes(resource["resource"])
            for scope in resource["scopeSpans"]:
                self.spans |= {span["spanId"]: span for span in scope["spans"]}
        return web.json_response({})

    async def until(self, *names: str, within: float = 20.0) -> dict[str, Any]:
        """All spans, once there are some of these names."""
        async with asyncio.timeout(within):
            while set(names) - {span["name"] for span in self.spans.values()}:
                await asyncio.sleep(0.02)
        return dict(self.spans)


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: _plain(one["value"]) for one in span["attributes"]}


def _plain(value: dict[str, Any]) -> Any:
    [(kind, plain)] = value.items()
    if kind == "arrayValue":
        return [_plain(one) for one in plain["values"]]
    return int(plain) if kind == "intValue" else plain


def tree(spans: dict[str, Any], parent: str = "") -> list[Any]:
    """The names of spans, each with those below it; what belongs to no known span is not in it."""
    below: defaultdict[str, list[Any]] = defaultdict(list)
    for span in sorted(spans.values(), key=lambda span: (int(span["startTimeUnixNano"]), span["name"])):
        below[span.get("parentSpanId", "")].append(span)

    def grown(parent: str) -> list[Any]:
        return [[span["name"], *grown(span["spanId"])] for span in below[parent]]

    return grown(parent)


async def _listen(runner: web.AppRunner, port: int) -> None:
    """Listens at a port that was ours before: a connection of another test may have it for a moment."""
    for pause in (*[0.2] * 50, None):
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        except OSError:
            if pause is None:
                raise
            await asyncio.sleep(pause)
        else:
            return


@asynccontextmanager
async def collecting(port: int = 0) -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await _listen(runner, port)
        collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield collector
    finally:
        await runner.cleanup()
