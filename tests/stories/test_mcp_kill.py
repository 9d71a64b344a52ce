"""The house is killed, kill -9, while an MCP client waits: the turn goes on, and the next call finds its answer."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from custom_server import clerk_house, ledger
from mcp.shared.exceptions import MCPError

from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Hang, Say, call
from longhouse.models.scripted_server import serve as serve_model
from mcp_helpers import MODES, over_http, over_stdio, text_of
from server_helpers import AGENT, Process, data_folder, free_port, process


@pytest.fixture
def folder() -> Iterator[Path]:
    with data_folder() as folder:
        yield folder


async def begun(there: Process) -> dict[str, Any]:
    """The one session, once it is at work."""
    async with asyncio.timeout(20):
        while True:
            async with there.http.get("/v1/sessions") as response:
                for row in (await response.json())["data"]:
                    if row["state"] == "RESEARCHING":
                        return dict(row)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reach", [over_http, over_stdio])
async def test_a_call_survives_a_kill_of_its_server(folder: Path, mode: str, reach: Any) -> None:
    is_up = False

    def script(body: Body) -> Say:
        return call("finalanswertool", answer="Rain in Oslo.") if is_up else Say(fault=Hang(seconds=60))

    port = free_port()
    url, serve = f"http://127.0.0.1:{port}", ("serve", "--port", str(port))
    async with serve_model(script) as model, AsyncExitStack() as stack:
        settings = {"data_dir": str(folder), "llm_base_url": model.url, "llm_api_key": "k"}
        async with process(*serve, **settings) as there:
            client = await stack.enter_async_context(reach(url, mode=mode))
            asked = {"message": "Will it rain?", "conversation_id": "weather"}
            calling = asyncio.create_task(client.call_tool(AGENT, asked))
            session_id = (await begun(there))["session_id"]
            there.kill()
            await there.ended()
            with pytest.raises(MCPError):
                await calling
        is_up = True
        async with process(*serve, **settings) as there:
            assert (await there.until(session_id, "COMPLETED", within=30))["result"] == "Rain in Oslo."
            if reach is over_http:
                client = await stack.enter_async_context(reach(url, mode=mode))
            # The program that was started with its client has seen nothing of it.
            later = {"message": "", "conversation_id": "weather"}
            assert text_of(await client.call_tool(AGENT, later)) == "Rain in Oslo."
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
