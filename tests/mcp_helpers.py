"""What stories about our MCP server are told with: the official client, over HTTP or standard input and output."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

LEGACY, MODERN = "legacy", "2026-07-28"
MODES = (LEGACY, MODERN)
"""With sessions and questions that the server sends; without them, every request on its own."""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
"""The first request of a session, where the official client is not the subject."""
ACCEPT = {"accept": "application/json, text/event-stream"}


def negotiated(mode: str) -> str:
    """The newest version is found out; the others need to be asked for."""
    return LEGACY if mode == LEGACY else "auto"


class Person:
    """Answers what a client is asked to ask: with the next of these answers; None declines."""

    def __init__(self, *answers: str | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.schemas: list[Any] = []

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        assert isinstance(params, types.ElicitRequestFormParams)
        self.asked.append(params.message)
        self.schemas.append(params.requested_schema)
        answer = self.answers.pop(0)
        if answer is None:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content={"answer": answer})


@asynccontextmanager
async def over_http(
    url: str, key: str = "", *, mode: str = LEGACY, person: Person | None = None, **headers: str
) -> AsyncIterator[Client]:
    given = {"authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(headers={**given, **headers}, timeout=30.0, verify=False) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=negotiated(mode), elicitation_callback=person, cache=None) as client:
            assert (client.protocol_version == MODERN) == (mode == MODERN)
            yield client


@asynccontextmanager
async def over_stdio(
    url: str, key: str = "", *, mode: str = LEGACY, person: Person | None = None
) -> AsyncIterator[Client]:
    env = {"LONGHOUSE_URL": url, "LONGHOUSE_API_KEY": key, "PYTHONPATH": os.pathsep.join(sys.path)}
    server = StdioServerParameters(command=sys.executable, args=["-m", "longhouse", "mcp"], env=env)
    async with Client(server, mode=negotiated(mode), elicitation_callback=person, cache=None) as client:
        assert (client.protocol_version == MODERN) == (mode == MODERN)
        yield client


def text_of(result: types.CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, types.TextContent)
    return content.text


def names_of(tools: types.ListToolsResult) -> Sequence[str]:
    return [tool.name for tool in tools.tools]
