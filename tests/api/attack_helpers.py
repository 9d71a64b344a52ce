"""What attacks are made with: raw bytes on a socket, a canary that hears every call, and a look at what is left."""

import asyncio
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from longhouse.models.scripted import Say, call
from longhouse.store.database import Database
from server_helpers import AGENT, House

CHAT = "/v1/chat/completions"
TABLES = ("sessions", "journal", "files", "requests", "rests", "snapshots")


def ask(body: Any = None) -> Say:
    """A script that asks one question, whatever it is told: its sessions stay open."""
    return call("clarificationtool", questions=["Which city?"])


def chat(**fields: Any) -> dict[str, Any]:
    """A request that would be fine, with these fields changed."""
    return {"model": AGENT, "messages": [{"role": "user", "content": "Will it rain?"}], **fields}


@dataclass(frozen=True)
class Refusal:
    status: int
    error: dict[str, Any]

    @property
    def param(self) -> Any:
        return self.error["param"]


async def refusal(response: aiohttp.ClientResponse) -> Refusal:
    """A refusal as it must be: a 4xx in the envelope, with a request id, without anything of our inside."""
    text = await response.text()
    assert 400 <= response.status < 500, (response.status, text[:500])
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"].startswith("req_")
    answer = msgspec.json.decode(text)
    assert list(answer) == ["error"]
    assert sorted(answer["error"]) == ["code", "message", "param", "type"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert len(text) < 2_000, "what was sent is not echoed"
    assert not re.search(r"Traceback|site-packages|\.py\b|asyncpg|pydantic", text)
    return Refusal(response.status, answer["error"])


async def refused(house: House, body: Any, path: str = CHAT, headers: dict[str, str] | None = None) -> Refusal:
    """The refusal of this body: JSON, or bytes that are sent as they are."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    headers = {"content-type": "application/json", **(headers or {})}
    # As a file: aiohttp warns of bytes over 1 MB.
    async with house.http.post(path, data=io.BytesIO(data), headers=headers) as response:
        return await refusal(response)


async def remains(db: Database) -> dict[str, Any]:
    """A digest of every table that remembers."""
    return {
        table: await db.value(f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {table} t")
        for table in TABLES
    }


@asynccontextmanager
async def leaves_no_trace(house: House) -> AsyncIterator[None]:
    """Whatever happens in the block, nothing is recorded, and the next request is answered."""
    before = await remains(house.db)
    yield
    assert await remains(house.db) == before
    async with house.http.get("/v1/models") as response:
        assert response.status == 200


async def raw(url: str, data: bytes, *, hang_up: bool = False, within: float = 10.0) -> bytes:
    """Sends bytes and returns all that comes back until the server closes."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        async with asyncio.timeout(within):
            writer.write(data)
            if hang_up:
                writer.write_eof()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def answers(received: bytes) -> list[int]:
    """The status of every response in these bytes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]


@dataclass
class Canary:
    """A listener that nobody should call."""

    url: str
    calls: int = 0


@asynccontextmanager
async def canary() -> AsyncIterator[Canary]:
    heard = Canary("")

    def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.calls += 1
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as server:
        heard.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield heard
