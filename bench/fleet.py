"""A gateway and a worker in processes of their own: how long a prompt takes to the worker, and its words back."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import msgspec
import numpy as np
from aiohttp import web

from bench.house import Ground, house, listening
from bench.nats_server import nats_server

PROMPTS: Final = 100
WORDS: Final = 20
"""Pieces of each answer."""
APART: Final = 0.03
"""Seconds between two pieces: each travels alone."""
AGENT: Final = "tool_calling_agent"


class _Model:
    """A model in this process, so that one clock tells when it was asked and when it wrote."""

    def __init__(self) -> None:
        self.asked_at = 0.0
        self.wrote_at: list[float] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked_at, self.wrote_at = time.perf_counter(), []
        await request.read()
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number in range(WORDS):
            await asyncio.sleep(APART)
            self.wrote_at.append(time.perf_counter())
            await response.write(_chunk({"content": f"<{number}>"}))
        await response.write(_chunk({}, finish="stop") + b"data: [DONE]\n\n")
        return response


def _chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + msgspec.json.encode({"choices": [choice]}) + b"\n\n"


async def measure(under: Ground, *, nats: bool) -> dict[str, Any]:
    model, to_model, to_client = _Model(), [], []
    async with AsyncExitStack() as stack:
        settings = {"llm_base_url": await stack.enter_async_context(listening(model.answer))}
        if nats:
            settings["nats_url"] = (await stack.enter_async_context(nats_server())).url
        await stack.enter_async_context(house(under, "work", **settings))
        gateway = await stack.enter_async_context(house(under, "serve", "--port", "0", "--no-worker", **settings))
        http = await stack.enter_async_context(aiohttp.ClientSession(gateway.url))
        for number in range(PROMPTS + 5):
            began = time.perf_counter()
            read = await _ask(http)
            if number >= 5:  # the first ones warm up
                to_model.append(1000 * (model.asked_at - began))
                to_client += [1000 * (at - wrote) for at, wrote in zip(read, model.wrote_at, strict=True)]
    return {
        "hints by": "NATS" if nats else "Postgres",
        "prompt to model p50 ms": f"{np.median(to_model):.1f}",
        "p95": f"{np.percentile(to_model, 95):.1f}",
        "delta to client p50 ms": f"{np.median(to_client):.1f}",
        "delta p95": f"{np.percentile(to_client, 95):.1f}",
    }


async def _ask(http: aiohttp.ClientSession) -> list[float]:
    """When each piece of the answer was there."""
    body = {"model": AGENT, "messages": [{"role": "user", "content": "Go."}], "stream": True}
    read = [0.0] * WORDS
    seen = ""
    async with http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                seen += msgspec.json.decode(line[6:])["choices"][0]["delta"].get("content") or ""
                for number in range(WORDS):
                    if not read[number] and f"<{number}>" in seen:
                        read[number] = time.perf_counter()
    return read
