"""An agent works with a tool of an MCP server as with its own, and outlives the server."""

import asyncio
import json
from pathlib import Path
from typing import Any

from longhouse.agents.template import Template, ToolPolicy
from longhouse.journal.events import Called
from longhouse.models.scripted import call
from mcp_nursery import forked
from server_helpers import House, Serving, content

SERVER = str(Path(__file__).parents[1] / "tools" / "mcp_test_server.py")
TEMPLATE = Template(name="counter", tool_policy=ToolPolicy(allowlist=("tried.*", "finalanswertool")))


def configured(folder: Path, **more: str) -> Path:
    env = {"NOTES": str(folder / "notes"), **more}
    command, *args = forked(SERVER, "stdio")
    servers: dict[str, Any] = {"tried": {"command": command, "args": args, "env": env}}
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


async def published(house: House, tool: str) -> None:
    """A start does not wait for slow servers: what they bring may come later."""
    async with asyncio.timeout(30):
        while True:
            async with house.http.get(f"/admin/tools/{tool}") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)


async def test_an_agent_calls_a_tool_of_an_mcp_server_that_dies_and_comes_back(
    serving: Serving, tmp_path: Path
) -> None:
    script = [
        call("tried_add", a=20, b=22),
        call("tried_die"),
        call("tried_add", a=1, b=1),
        call("finalanswertool", answer="42, then 2."),
    ]
    async with serving(script, templates=[TEMPLATE], mcp_config=configured(tmp_path)) as house:
        await published(house, "tried.die")
        answer = await house.say("Add", model="counter")
        assert "It is not known whether tried.die (2-action-0) took effect: `the MCP server 'tried' was" in content(
            answer
        )
        verdict = {"call_id": "2-action-0", "decision": "give_up"}
        async with house.http.post(f"/v1/sessions/{answer['model']}/approval", json=verdict) as response:
            assert response.status == 202
        assert (await house.until(answer["model"], "COMPLETED", within=60))["result"] == "42, then 2."
        assert house.model is not None
        first, *_, last = house.model.requests
        by_name = {tool["function"]["name"]: tool for tool in first["tools"]}
        add = by_name["tried_add"]
        assert add["function"]["description"] == "Add two numbers."
        told = [message["content"] for message in last["messages"] if message["role"] == "tool"]
        assert (told[0], told[2]) == ("42", "2")
        assert "nobody knows whether it happened, and it was given up" in told[1]
        journal = [record.event for record in await house.journal(answer["model"])]
        called = [event.tool for event in journal if isinstance(event, Called)]
        assert called == ["tried.add", "tried.die", "tried.add", "finalanswertool"]


async def test_a_server_that_is_away_keeps_nobody_from_starting_or_answering(serving: Serving, tmp_path: Path) -> None:
    servers = {"gone": {"command": "/no/such/program"}, "silent": {"url": "http://127.0.0.1:9/mcp"}}
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    template = Template(name="patient", tool_policy=ToolPolicy(allowlist=("gone.tool", "silent.*", "finalanswertool")))
    script = [call("finalanswertool", answer="Without them.")]
    async with serving(script, templates=[template], mcp_config=path) as house:
        assert content(await house.say("Go", model="patient")) == "Without them."
        assert house.model is not None
        assert [tool["function"]["name"] for tool in house.model.requests[0]["tools"]] == ["finalanswertool"]


async def test_a_server_that_changes_takes_no_decision_of_an_operator_away(serving: Serving, tmp_path: Path) -> None:
    send = "/admin/tools/tried.send"
    script = [call("tried_send", to="Bob"), call("finalanswertool", answer="Sent.")]

    async def asked(method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with house.http.request(method, path, json=body) as response:
            return response.status, await response.json() if response.status != 204 else None

    async with serving(script, templates=[TEMPLATE], mcp_config=configured(tmp_path)) as house:
        await published(house, "tried.send")
        gate = {"needs_approval": True, "security_policy": {"risk_level": "high"}}
        assert (await asked("PATCH", send, gate))[1] == {"name": "tried.send", "version": 2, "is_active": True}
    async with serving(script, templates=[TEMPLATE], mcp_config=configured(tmp_path, SENDS="Send at once.")) as house:
        _, shown = await asked("GET", send)
        assert (shown["version"], shown["latest"], shown["needs_approval"]) == (2, 3, True)
        _, compared = await asked("GET", f"{send}/diff?from=2&to=3")
        assert [one["path"] for one in compared["differences"]] == ["description_short"]
        session = (await house.say("Send", model="counter"))["model"]
        assert (await house.session(session))["state"] == "WAITING_FOR_APPROVAL"
        assert (await asked("DELETE", send))[0] == 204
    async with serving(script, templates=[TEMPLATE], mcp_config=configured(tmp_path, SENDS="Send now.")) as house:
        assert (await asked("GET", send))[0] == 404
        assert (await asked("GET", f"{send}@4"))[1]["description_short"] == "Send now."
