"""`longhouse mcp`: the MCP server of a house on standard input and output, for programs that start their servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from mcp.shared.exceptions import MCPError
from yarl import URL

from longhouse.cli.mcp import VERSION_KEY, Bridge, base_of
from longhouse.errors import SetupError
from longhouse.models.scripted import Hang, Say, call
from mcp_helpers import MODES, Person, names_of, over_stdio, text_of
from server_helpers import AGENT, Serving, free_port

KEY = "k3y-of-the-house-9f27"
CITY = call("clarificationtool", questions=["Which city?"])
RAIN = call("finalanswertool", answer="Rain in Oslo.")


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_starts_it_lists_agents_and_is_asked_what_they_ask(serving: Serving, mode: str) -> None:
    person, seen = Person("Oslo"), list[str]()

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message or "")

    async with (
        serving([CITY, RAIN], admin_key=KEY) as house,
        over_stdio(house.url, KEY, mode=mode, person=person) as client,
    ):
        assert AGENT in names_of(await client.list_tools())
        asked = {"message": "Will it rain?", "conversation_id": "weather"}
        result = await client.call_tool(AGENT, asked, progress_callback=heard)
        assert text_of(result) == "Rain in Oslo."
        assert person.asked == ["Which city?"]
        assert "of the conversation weather" in seen[0]
        with pytest.raises(MCPError, match="There is no tool 'nobody'"):
            await client.call_tool("nobody", {"message": "hi"})


class Lines:
    """What the bridge writes, message by message."""

    def __init__(self) -> None:
        self.said = asyncio.Queue[Any]()

    def __call__(self, message: bytes) -> None:
        self.said.put_nowait(msgspec.json.decode(message))

    async def next(self) -> Any:
        async with asyncio.timeout(20):
            return await self.said.get()


@asynccontextmanager
async def bridged(url: str) -> AsyncIterator[tuple[Bridge, Lines]]:
    lines = Lines()
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
        bridge = Bridge(http, base_of(url), lines, tasks)
        try:
            yield bridge, lines
        finally:
            await bridge.close()


def line(method: str, message_id: Any = None, **params: Any) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params}
    return msgspec.json.encode(message if message_id is None else {**message, "id": message_id})


async def begin(bridge: Bridge, lines: Lines) -> Any:
    about = {"capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await bridge.receive(line("initialize", 1, protocolVersion="2025-11-25", **about))
    answer = await lines.next()
    await bridge.receive(line("notifications/initialized"))
    return answer


async def test_a_house_that_was_started_again_is_met_anew_without_a_word(serving: Serving) -> None:
    """The client of a program that runs for weeks knows nothing of deploys."""
    async with serving(works=False) as first, serving([RAIN]) as second, bridged(first.url) as (bridge, lines):
        assert (await begin(bridge, lines))["result"]["serverInfo"]["name"] == "longhouse"
        bridge.url = URL(second.url)  # which knows nothing of the session
        asked = {"name": AGENT, "arguments": {"message": "Will it rain?"}}
        await bridge.receive(line("tools/call", 2, **asked))
        answer = await lines.next()
        assert (answer["id"], answer["result"]["structuredContent"]["answer"]) == (2, "Rain in Oslo.")
        await bridge.receive(line("tools/list", "2"))
        assert (await lines.next())["id"] == "2"


async def test_what_cannot_be_passed_on_is_an_error_with_its_id(serving: Serving) -> None:
    async with bridged(f"http://127.0.0.1:{free_port()}") as (bridge, lines):
        await bridge.receive(line("tools/list", 7))
        answer = await lines.next()
        assert answer["id"] == 7
        assert "Longhouse cannot be reached at http://127.0.0.1:" in answer["error"]["message"]
        for wrong in (b"{\n", b"[]\n", b"7\n"):
            await bridge.receive(wrong)
            assert (await lines.next())["error"]["code"] == -32700
    async with serving(admin_key=KEY) as house, bridged(house.url) as (bridge, lines):
        answer = await begin(bridge, lines)
        assert answer["id"] == 1
        assert "Send an API key" in answer["error"]["message"]


async def test_a_client_cancels_its_call_and_one_that_ends_does_not(serving: Serving) -> None:
    """In the version without sessions, too, whose responses are closed by those who are lost and those who cancel."""
    meta = {VERSION_KEY: "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
    async with serving(lambda body: Say(fault=Hang(seconds=60))) as house:

        async def working(conversation: str) -> str:
            async with asyncio.timeout(20):
                while True:
                    path = f"/v1/sessions?conversation_id={conversation}&state=RESEARCHING"
                    async with house.http.get(path) as response:
                        if found := (await response.json())["data"]:
                            return str(found[0]["session_id"])
                    await asyncio.sleep(0.02)

        async with bridged(house.url) as (bridge, _):
            for number, conversation in ((1, "first"), ("1", "second")):
                arguments = {"message": "Will it rain?", "conversation_id": conversation}
                await bridge.receive(line("tools/call", number, name=AGENT, arguments=arguments, _meta=meta))
            first, second = await working("first"), await working("second")
            await bridge.receive(line("notifications/cancelled", requestId="2"))
            await bridge.receive(line("notifications/cancelled", requestId=1, _meta=meta))
            await house.until(first, "CANCELLED")
        assert (await house.session(second))["state"] == "RESEARCHING", "its client has only gone"


def test_the_address_may_be_that_of_the_api_or_below_a_path() -> None:
    for given in ("http://h:8400", "http://h:8400/", "http://h:8400/v1", "http://h:8400/mcp"):
        assert str(base_of(given) / "mcp") == "http://h:8400/mcp", given
    assert str(base_of("https://h/longhouse/v1/") / "mcp") == "https://h/longhouse/mcp"
    for wrong in ("h:8400", "ftp://h", "http://"):
        with pytest.raises(SetupError, match="is not an address"):
            base_of(wrong)
