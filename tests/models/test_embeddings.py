"""Embeddings of an endpoint: a real one on loopback, in good moods and bad."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from longhouse.errors import ProviderError
from longhouse.models.embeddings import AT_ONCE, EndpointEmbedder
from longhouse.models.http.client import open_endpoint

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def endpoint(answer: Answer) -> AsyncIterator[EndpointEmbedder]:
    app = web.Application()
    app.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with open_endpoint(f"http://127.0.0.1:{port}/v1", "sk-secret") as endpoint:
            embedder = EndpointEmbedder(endpoint, "text-small")
            yield embedder
    finally:
        await runner.cleanup()


async def lengths(request: web.Request) -> web.Response:
    """Answers out of order, with vectors that are not of length one."""
    asked = await request.json()
    assert request.headers["Authorization"] == "Bearer sk-secret"
    assert asked["model"] == "text-small"
    assert len(asked["input"]) <= AT_ONCE
    data = [{"index": n, "embedding": [3.0, 4.0, len(text) * 0.0]} for n, text in enumerate(asked["input"])]
    return web.json_response({"object": "list", "data": data[::-1]})


def always(body: Any, status: int = 200) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(body, status=status)

    return answer


async def test_vectors_come_in_the_order_of_the_texts_and_of_length_one() -> None:
    async with endpoint(lengths) as embedder:
        assert embedder.dimensions == 0
        vectors = await embedder.embed(["text"] * (AT_ONCE + 3))
        assert len(vectors) == AT_ONCE + 3
        assert vectors[0] == pytest.approx([0.6, 0.8, 0.0])
        assert embedder.dimensions == 3
        assert embedder.name == "text-small"


@pytest.mark.parametrize(
    ("body", "status", "retryable"),
    [
        ({"error": {"message": "your key sk-secret is wrong"}}, 401, False),
        ({"error": "later"}, 429, True),
        ({"error": "broken"}, 503, True),
        ({"data": "no list"}, 200, False),
        ({"data": []}, 200, False),
        ({"data": [{"index": 0, "embedding": []}]}, 200, False),
        ({"data": [{"index": 0, "embedding": [1.0] * 4001}]}, 200, False),
        ([1, 2], 200, False),
    ],
)
async def test_whatever_goes_wrong_is_a_provider_error_without_secrets(body: Any, status: int, retryable: bool) -> None:
    async with endpoint(always(body, status)) as embedder:
        with pytest.raises(ProviderError) as raised:
            await embedder.embed(["text"])
    assert raised.value.retryable is retryable
    assert "sk-secret" not in str(raised.value)


async def test_of_a_complaint_without_end_only_the_beginning_is_read() -> None:
    part, most, sent = b"broken " * 10_000, 64 * 2**20, 0

    async def complain(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(status=503)
        await response.prepare(request)
        while sent < most:
            await response.write(part)
            sent += len(part)
        return response

    async with endpoint(complain) as embedder:
        with pytest.raises(ProviderError, match="answered 503: broken broken") as raised:
            await embedder.embed(["text"])
    assert raised.value.retryable
    assert len(str(raised.value)) < 400
    assert sent < most, "we hung up before it had said everything"


async def test_an_endpoint_that_is_not_there_is_a_provider_error() -> None:
    async with open_endpoint("http://127.0.0.1:9/v1") as endpoint:
        embedder = EndpointEmbedder(endpoint, "m")
        with pytest.raises(ProviderError) as raised:
            await embedder.embed(["text"])
    assert raised.value.retryable
