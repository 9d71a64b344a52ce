"""What `longhouse chat` asks the server over HTTP."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

import aiohttp
import msgspec
from yarl import URL

from longhouse.errors import LonghouseError, SetupError

Chunk = dict[str, Any]
NO_LIMIT: Final = aiohttp.ClientTimeout(total=None)
"""An answer may take hours; heartbeats come every few seconds."""


class UnansweredError(LonghouseError):
    """This request got no answer; the chat goes on."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class ServerEvent(msgspec.Struct, frozen=True):
    """One server-sent event."""

    name: str
    id: str
    data: Any


class ChatClient(msgspec.Struct, frozen=True):
    """A server, and who talks to it."""

    http: aiohttp.ClientSession
    url: str
    user: str

    async def say(self, model: str, text: str, reply_to: str = "") -> AsyncIterator[Chunk]:
        """Sends a message; the chunks of the answer."""
        body: dict[str, Any] = {"model": model, "stream": True, "user": self.user}
        body["messages"] = [{"role": "user", "content": text}]
        if reply_to:
            body["metadata"] = {"reply_to": reply_to}
        async with self.http.post("/v1/chat/completions", json=body, timeout=NO_LIMIT) as response:
            async for line in lines_of(response):
                data = line.removeprefix(b"data: ")
                if data in (line, b"[DONE]"):
                    continue
                chunk = msgspec.json.decode(data)
                if "error" in chunk:
                    raise _unanswered(chunk)
                yield chunk

    async def events(self, session_id: str, after: str = "") -> AsyncGenerator[ServerEvent, None]:
        """What happens in a session and in its sub-agents, until nobody can move without a person."""
        query = {"tree": "true", **({"after": after} if after else {})}
        path = f"/v1/sessions/{session_id}/events"
        async with self.http.get(path, params=query, timeout=NO_LIMIT) as response:
            fields: dict[bytes, bytes] = {}
            async for line in lines_of(response):
                if not line and b"data" in fields:
                    data = msgspec.json.decode(fields[b"data"])
                    yield ServerEvent(fields.get(b"event", b"").decode(), fields.get(b"id", b"").decode(), data)
                    fields = {}
                elif line and not line.startswith(b":"):
                    name, _, value = line.partition(b":")
                    fields[name] = value.removeprefix(b" ")

    async def now(self, session_id: str) -> str:
        """The place in the stream of events at which the session and its sub-agents are now, also while they work."""
        path, query = f"/v1/sessions/{session_id}/events", {"tree": "true", "after": "now"}
        async with self.http.get(path, params=query) as response, aclosing(lines_of(response)) as lines:
            async for line in lines:
                if line.startswith(b"id: "):
                    return line.removeprefix(b"id: ").decode()
        raise _unanswered(b"")

    async def get(self, path: str, **query: str) -> Any:
        async with self.http.get(path, params=query) as response:
            return await _answer(response)

    async def post(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        async with self.http.post(path, json=body) as response:
            return await _answer(response)

    def reason(self, error: aiohttp.ClientError | TimeoutError | UnansweredError) -> str:
        """Why there was no answer, in one sentence."""
        if not isinstance(error, UnansweredError):
            return f"Longhouse cannot be reached at {self.url}: {cause(error)}"
        if error.code == "invalid_api_key" and "authorization" not in self.http.headers:
            return f"{self.url} asks for an API key: give one with --key, or as LONGHOUSE_API_KEY."
        return str(error)


@asynccontextmanager
async def open_client(url: str, key: str, user: str) -> AsyncIterator[ChatClient]:
    headers = {"authorization": f"Bearer {key}"} if key else None
    async with aiohttp.ClientSession(address_of(url), headers=headers) as http:
        yield ChatClient(http, url, user)


def address_of(url: str) -> URL:
    """The address of the server; `/v1` at its end is accepted, as OpenAI's clients write it."""
    try:
        address = URL(url)
    except ValueError:
        address = URL()
    if address.scheme not in ("http", "https") or not address.host:
        raise SetupError(f"{url!r} is not an address such as http://127.0.0.1:8400")
    return address.origin()


async def lines_of(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The lines of a stream, however long: a line of an answer may be larger than aiohttp's own limit."""
    if response.status != 200:
        raise _unanswered(await response.read())
    rest = b""
    async for piece in response.content.iter_any():
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r")


async def _answer(response: aiohttp.ClientResponse) -> Any:
    content = await response.read()
    if response.status >= 400:
        raise _unanswered(content)
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        raise _unanswered(content) from None


def _unanswered(answer: bytes | Chunk) -> UnansweredError:
    try:
        error = (msgspec.json.decode(answer) if isinstance(answer, bytes) else answer)["error"]
        return UnansweredError(str(error["message"]), str(error.get("code") or ""))
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return UnansweredError("what answers there is not Longhouse")


def cause(error: aiohttp.ClientError | TimeoutError) -> str:
    """What failed, without the connector's own terms."""
    if isinstance(error, TimeoutError):
        return "it took too long to answer"
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error)
    failed, number = error.os_error, error.os_error.errno or 0
    # Numbers below zero are those of name look-ups, which have words of their own.
    return os.strerror(number) if number > 0 else failed.strerror or str(failed)
