"""What stories of /v1/responses are told with: streams whose every event is one of OpenAI's own types."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from server_helpers import AGENT, HouseClient, sse

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
RESPONSE: TypeAdapter[Response] = TypeAdapter(Response)


def checked(event: Any) -> Any:
    """An event, which the SDK's types describe: strictly, as the SDK itself does not."""
    return EVENT.validate_python(event)


class StreamReader:
    """One client's stream: what it was sent, in order."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._events = sse(response)
        self.events: list[Any] = []

    async def next(self) -> Any:
        event = await anext(self._events)
        assert event.event == event.json["type"]
        checked(event.json)
        self.events.append(event.json)
        return event.json

    async def until(self, kind: str, text: str = "") -> Any:
        """Reads on until an event of this kind; with `text`, until so much text has come."""
        while True:
            event = await self.next()
            if event["type"] == kind and (not text or self.text.endswith(text)):
                return event

    async def to_the_end(self) -> list[Any]:
        async for _ in self._rest():
            pass
        return self.events

    async def _rest(self) -> AsyncIterator[Any]:
        while True:
            try:
                yield await self.next()
            except StopAsyncIteration:
                return

    @property
    def text(self) -> str:
        return "".join(event["delta"] for event in self.events if event["type"] == "response.output_text.delta")

    @property
    def kinds(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]

    @property
    def numbers(self) -> list[int]:
        return [event["sequence_number"] for event in self.events]

    @property
    def id(self) -> str:
        return str(self.events[0]["response"]["id"])

    @property
    def last(self) -> Any:
        return self.events[-1]["response"]


@asynccontextmanager
async def streamed(house: HouseClient, text: Any = "Hello", **body: Any) -> AsyncIterator[StreamReader]:
    asked = {"model": AGENT, "input": text, "stream": True, **body}
    async with asyncio.timeout(30), house.http.post("/v1/responses", json=asked) as response:
        assert response.status == 200, await response.text()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield StreamReader(response)


@asynccontextmanager
async def resumed(house: HouseClient, response_id: str, after: int | None = None) -> AsyncIterator[StreamReader]:
    where = f"/v1/responses/{response_id}?stream=true" + ("" if after is None else f"&starting_after={after}")
    async with asyncio.timeout(30), house.http.get(where) as response:
        assert response.status == 200, await response.text()
        yield StreamReader(response)


async def ask(house: HouseClient, text: Any = "Hello", *, headers: Any = None, **body: Any) -> tuple[int, Any]:
    asked = {"model": AGENT, "input": text, **body}
    async with asyncio.timeout(30), house.http.post("/v1/responses", json=asked, headers=headers) as response:
        return response.status, await response.json()


async def said(house: HouseClient, text: Any = "Hello", **body: Any) -> Any:
    """A response that was not streamed, as it is."""
    status, answer = await ask(house, text, **body)
    assert status == 200, answer
    RESPONSE.validate_python(answer)
    return answer


async def get(house: HouseClient, path: str, method: str = "GET", **extra: Any) -> tuple[int, Any]:
    async with asyncio.timeout(30), house.http.request(method, path, **extra) as response:
        return response.status, await response.json()


async def ended(house: HouseClient, response_id: str, within: float = 20.0) -> Any:
    """A response, once it has ended."""
    async with asyncio.timeout(within):
        while True:
            _, found = await get(house, f"/v1/responses/{response_id}")
            if found.get("status") not in ("queued", "in_progress"):
                return found
            await asyncio.sleep(0.03)


def text_of(response: Any) -> str:
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for message in messages for part in message["content"])


def types_of(response: Any) -> list[str]:
    return [item["type"] for item in response["output"]]
