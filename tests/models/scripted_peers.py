"""Servers that say exactly what a test wants, byte for byte, and what our client makes of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from longhouse.agents.strategies.protocol import Body
from longhouse.errors import ProviderError
from longhouse.journal.events import Usage
from longhouse.journal.messages import User
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.protocol import Delta, Model

ASKED = Body(model="m", messages=[User(content="Hello?")])
KEY = "sk-very-secret"

Writer = asyncio.StreamWriter
Play = Callable[[Writer], Awaitable[None]]


@dataclass
class Peer:
    """A server that says exactly what a test wants, byte for byte."""

    url: str = ""
    heads: list[str] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)


async def _request(peer: Peer, reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    peer.heads.append(head)
    if length := next((int(line[15:]) for line in head.splitlines() if line.startswith("Content-Length:")), 0):
        peer.bodies.append(msgspec.json.decode(await reader.readexactly(length)))


@asynccontextmanager
async def peer_that(play: Play, *, requests: int = 1) -> AsyncIterator[Peer]:
    peer = Peer()

    async def meet(reader: asyncio.StreamReader, writer: Writer) -> None:
        peer.connections += 1
        try:
            for _ in range(requests):
                await _request(peer, reader)
                await play(writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            peer.left.set()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield peer
    finally:
        server.close()


def answer(
    body: bytes, *, kind: str = "text/event-stream", status: str = "200 OK", headers: Iterable[str] = ()
) -> bytes:
    """An HTTP answer that ends where the connection ends."""
    lines = [f"HTTP/1.1 {status}", *([f"Content-Type: {kind}"] if kind else []), *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


def sends(*parts: bytes, gap: float = 0.005) -> Play:
    async def play(writer: Writer) -> None:
        for number, part in enumerate(parts):
            if number:
                await asyncio.sleep(gap)
            writer.write(part)
            await writer.drain()

    return play


def chunk(finish: str | None = None, *, model: str = "m-1", **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "model": model, "choices": [choice], "usage": None})


def event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
STOP = chunk("stop")


@dataclass
class Reply:
    """Deltas added up, as the engine does it."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    usage: Usage | None = None
    finish: str | None = None
    model: str | None = None

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.reasoning += delta.reasoning
        self.refusal += delta.refusal
        for call in delta.calls:
            id_, name, arguments = self.calls.get(call.index, ("", "", ""))
            self.calls[call.index] = (id_ + call.id, name + call.name, arguments + call.arguments)
        self.usage, self.finish = delta.usage or self.usage, delta.finish or self.finish
        self.model = delta.model or self.model


def added_up(deltas: Iterable[Delta]) -> Reply:
    reply = Reply()
    for delta in deltas:
        reply.add(delta)
    return reply


async def deltas_of(model: Model) -> list[Delta]:
    return [delta async for delta in model.stream(ASKED)]


async def heard(peer: Peer, **options: Any) -> list[Delta]:
    async with open_endpoint(peer.url, KEY, **options) as endpoint:
        return await deltas_of(OpenAIModel(endpoint))


async def reply_to(*parts: bytes) -> Reply:
    async with peer_that(sends(*parts)) as peer:
        return added_up(await heard(peer))


async def error_for(play: Play, **options: Any) -> ProviderError:
    async with peer_that(play) as peer:
        with pytest.raises(ProviderError) as caught:
            await heard(peer, **options)
    assert "\n" not in str(caught.value)
    assert KEY not in str(caught.value)
    return caught.value


def call_chunk(*calls: dict[str, Any]) -> bytes:
    return chunk(tool_calls=list(calls))


def fragment(
    index: int | None, id_: str | None = None, name: str | None = None, arguments: Any = None
) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {"name": name, "arguments": arguments}, "id": id_}
    return call if index is None else call | {"index": index}
