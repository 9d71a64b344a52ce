"""The house is killed, kill -9, while an MCP client waits: the turn goes on, and the next call finds its answer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from custom_server import clerk_house, ledger
from mcp.shared.exceptions import MCPError

from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Hang, Say, call
from longhouse.models.scripted_server import serve as serve_model
from mcp_helpers import MODES, over_http, over_stdio, text_of
from server_helpers import AGENT, Process, free_port, process


async def begun(there: Process) -> dict[str, Any]:
    """The one session, once it is at work."""
    async with asyncio.timeout(20):
        while True:
            async with there.http.get("/v1/sessions") as response:
                for row in (await response.json())["data"]:
                    if row["state"] == "RESEARCHING":
                        return dict(row)
            await asyncio.sleep(0.02)


class Weather:
    """A house that is killed and started again on the same port and folder, and a model that answers then."""

    def __init__(self, folder: Path, model_url: str) -> None:
        port = free_port()
        self.url, self._arguments = f"http://127.0.0.1:{port}", ("serve", "--port", str(port))
        self._settings = {"data_dir": str(folder), "llm_base_url": model_url, "llm_api_key": "k"}

    def house(self) -> AbstractAsyncContextManager[Process]:
        return process(*self._arguments, **self._settings)


@asynccontextmanager
async def weather(folder: Path) -> AsyncIterator[tuple[Weather, asyncio.Event]]:
    is_known = asyncio.Event()

    def script(body: Body) -> Say:
        return call("finalanswertool", answer="Rain in Oslo.") if is_known.is_set() else Say(fault=Hang(seconds=60))

    async with serve_model(script) as model:
        yield Weather(folder, model.url), is_known


ASKED = {"message": "Will it rain?", "conversation_id": "weather"}
LATER = {"message": "", "conversation_id": "weather"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_over_http_survives_a_kill_of_its_server(folder: Path, mode: str) -> None:
    async def doomed(url: str) -> None:
        async with over_http(url, mode=mode) as client:
            await client.call_tool(AGENT, ASKED)

    async with weather(folder) as (there, is_known):
        async with there.house() as house:
            calling = asyncio.create_task(doomed(there.url))
            session_id = (await begun(house))["session_id"]
            house.kill()
            await house.ended()
            # One of the SDK's own errors, or several at once.
            with pytest.raises((MCPError, BaseExceptionGroup)):
                await calling
        is_known.set()
        async with there.house() as house:
            assert (await house.until(session_id, "COMPLETED", within=30))["result"] == "Rain in Oslo."
            async with over_http(there.url, mode=mode) as client:
                assert text_of(await client.call_tool(AGENT, LATER)) == "Rain in Oslo."


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_over_stdio_goes_on_with_a_house_that_was_killed_and_is_there_again(
    folder: Path, mode: str
) -> None:
    async with weather(folder) as (there, is_known), AsyncExitStack() as stack:
        async with there.house() as house:
            client = await stack.enter_async_context(over_stdio(there.url, mode=mode))
            calling = asyncio.create_task(client.call_tool(AGENT, ASKED))
            session_id = (await begun(house))["session_id"]
            house.kill()
            await house.ended()
            with pytest.raises(MCPError):
                await calling
        is_known.set()
        async with there.house() as house:
            assert (await house.until(session_id, "COMPLETED", within=30))["result"] == "Rain in Oslo."
            assert text_of(await client.call_tool(AGENT, LATER)) == "Rain in Oslo."
            await stack.aclose()


async def test_a_direct_call_that_may_have_happened_is_not_made_twice(folder: Path, tmp_path: Path) -> None:
    settings = {"data_dir": str(folder)}
    async with clerk_house(tmp_path, **settings) as there, over_http(there.url) as client:
        calling = asyncio.create_task(client.call_tool("paytool", {}))
        async with asyncio.timeout(20):
            while not ledger(tmp_path):
                await asyncio.sleep(0.01)
        session_id = (await begun(there))["session_id"]
        there.kill()
        await there.ended()
        with suppress(Exception):
            await calling
    (tmp_path / "go").touch()
    async with clerk_house(tmp_path, **settings) as there:
        shown = await there.until(session_id, "WAITING_FOR_APPROVAL", within=30)
        assert [one["kind"] for one in shown["questions"]] == ["unknown_outcome"]
        assert len(ledger(tmp_path)) == 1
