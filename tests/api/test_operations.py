"""What operators are told of the installation, and tools that they try outside any session."""

import asyncio
import json
import socket
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from key_helpers import admin_of, client_of, keyed

import longhouse
from delegating_server import answer
from longhouse.api.admin import operations
from longhouse.api.admin.docs import TOOL
from longhouse.api.admin.operations import sentences
from longhouse.models.scripted import ScriptedStatus, say
from longhouse.store.leases import WorkerRow
from longhouse.store.lists.statistics import SAMPLE_SIZE
from longhouse.tools import BaseTool, ToolContext
from mcp_nursery import forked
from server_helpers import House, Serving

MCP_SERVER = str(Path(__file__).parents[1] / "tools" / "mcp_test_server.py")


class SendTool(BaseTool):
    """Sends something, once."""

    tool_name = "send_tool"
    effect = "once"
    text: str

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return f"sent {self.text} for {context.owner}"


async def test_an_installation_is_told_in_figures_and_sentences(serving: Serving, monkeypatch: Any) -> None:
    monkeypatch.setattr(operations, "LOOKED_EVERY", 0.0)
    monkeypatch.setattr("longhouse.api.watching.statistics.COUNTED_EVERY", 0.0)
    replies = iter([answer("Done."), say("", fault=ScriptedStatus(status=400, message="no such model"))])
    async with keyed(serving, lambda body: next(replies)) as house:
        admin, shop = admin_of(house), await client_of(house, "shop")
        quiet = await admin.got("/admin/operations")
        assert (quiet["version"], quiet["states"], quiet["models"], quiet["mcp"]) == (longhouse.__version__, {}, [], [])
        assert {one["version"] for one in quiet["workers"]} == {longhouse.__version__}
        assert all(one["is_alive"] for one in quiet["workers"])
        assert {one["tone"] for one in quiet["sentences"]} == {"good"}
        await shop.say("one")
        await shop.say("two")
        await house.db.run("DELETE FROM database_sizes")
        await house.db.run("INSERT INTO database_sizes VALUES (now() - interval '24 hours', 1000)")
        await house.db.run(SAMPLE_SIZE)
        found = await admin.got("/admin/operations")
        assert found["states"] == {"COMPLETED": 1, "FAILED": 1}
        assert len(found["history"]) == 24
        # An hour may begin while this goes on.
        recent = [Counter(one["states"]) for one in found["history"][-2:]]
        assert recent[0] + recent[1] == {"COMPLETED": 1, "FAILED": 1}
        [model] = [one for one in found["models"] if one["calls"]]
        assert (model["calls"], model["p50_seconds"] > 0) == (1, True)
        [failed] = [one for one in found["models"] if one["errors"]]
        assert failed["last_error"]["text"]
        postgres = found["postgres"]
        assert postgres["growth_bytes_24h"] == postgres["bytes"] - 1000 > 0
        assert (found["mirror"], found["oldest_runnable_seconds"]) == ({"enabled": False, "lag_seconds": None}, None)
        texts = [one["text"] for one in found["sentences"]]
        assert "1 of 2 turns failed in the last 24 hours." in texts
        assert found["sentences"][0]["tone"] == "bad"
        assert found["sentences"][0]["text"].endswith(" answered 400: no such model"), texts[0]
        assert "no such model" not in str(await shop.got("/v1/sessions")), "users read that it failed, and no more"
        # Two who look at the same time make one look.
        looks = await asyncio.gather(*(admin.got("/admin/operations") for _ in range(4)))
        assert len({json.dumps(one["sentences"]) for one in looks}) == 1
        for path in ("/admin/operations", "/admin/mcp"):
            assert await shop.status("GET", path) == 403


def test_bad_news_comes_first_and_says_what_to_do() -> None:
    now = datetime.now(UTC)
    ago = now - timedelta(minutes=5)
    lost = WorkerRow("host", 1, 8, now, ago, is_alive=False, sessions=2, version="0.1.0", worker_id="w1")
    found: Any = {
        "oldest_runnable_seconds": 400.0,
        "runnable": 3,
        "states": {"WAITING_FOR_APPROVAL": 1},
        "history": [{"at": now, "states": {"COMPLETED": 99, "FAILED": 1}}],
        "models": [{"model": "m", "errors": 0, "retries": 2}],
        "postgres": {"bytes": 81_000_000, "growth_bytes_24h": -2_000},
        "mirror": {"enabled": True, "lag_seconds": 90.0},
        "mcp": [{"name": "depot", "trouble": "it is gone"}],
    }
    told = list(sentences(found, [lost], troubled=2, troubled_seconds=130.0))
    assert [one.tone for one in told] == sorted((one.tone for one in told), key=["bad", "wait", "good"].index)
    texts = " ".join(one.text for one in told)
    for words in (
        "No worker is alive", "Start `longhouse`", "3 sessions could go on", "the oldest for 6 minutes",
        "A model does not answer: 2 sessions must wait", "The Redis mirror is 90 seconds behind",
        "depot cannot be reached: it is",
        "1 session waits for a person", "1 of 100 turns failed", "m had to be asked again 2 times",
        "81.0 MB, 2.0 kB less than a day ago",
    ):  # fmt: skip
        assert words in texts
    old = WorkerRow("host", 2, 4, now, now, is_alive=True, sessions=4, version="", worker_id="w2")
    new = WorkerRow("host", 3, 4, now, now, is_alive=True, sessions=4, version="0.2.0", worker_id="w3")
    texts = " ".join(one.text for one in sentences(found, [old, new], 0, None))
    assert "all 8 slots are taken" in texts
    assert "Workers run different versions: 0.2.0, an earlier release." in texts


async def tried(house: House, name: str, **body: Any) -> tuple[int, Any]:
    async with admin_of(house).ask("POST", f"/admin/tools/{name}/try", body) as response:
        return response.status, await response.json()


async def test_a_tool_is_tried_outside_any_session(serving: Serving) -> None:
    async with keyed(serving, lambda body: answer("Done."), tools=(SendTool,)) as house:
        admin = admin_of(house)
        status, shown = await tried(house, "clocktool")
        assert (status, shown["status"], shown["error"], shown["files"]) == (200, "ok", None, [])
        assert shown["seconds"] > 0
        status, wrong = await tried(house, "clocktool", arguments={"timezone": ["x"]})
        assert (status, wrong["status"], wrong["error"]["code"]) == (200, "error", "bad_arguments")
        # What happens once is asked for twice.
        status, refused = await tried(house, "send_tool", arguments={"text": "it"})
        assert (status, refused["error"]["code"], refused["error"]["param"]) == (409, "confirm_needed", "confirm")
        _, sent = await tried(house, "send_tool", arguments={"text": "it"}, confirm=True)
        assert sent["content"] == "sent it for local"
        # The operator's switch and the rate limit hold here too.
        policy = "/admin/tools/send_tool/security_policy"
        assert await admin.status("PUT", policy, {"enabled": False}) == 200
        _, off = await tried(house, "send_tool", arguments={"text": "it"}, confirm=True)
        assert off["error"]["code"] == "switched_off"
        assert await admin.status("PUT", policy, {"rate_limits": {"per_minute": 1}}) == 200
        codes = [(await tried(house, "send_tool", arguments={"text": "x"}, confirm=True))[1]["error"] for _ in range(2)]
        assert [one and one["code"] for one in codes] == [None, "rate_limited"]
        for name, code in (("agent.analytic", "tool_not_runnable"), ("clarificationtool", "tool_not_runnable")):
            status, refused = await tried(house, name, arguments={})
            assert (status, refused["error"]["code"]) == (409, code)
        assert (await tried(house, "nothing"))[0] == 404
        assert await admin.status("POST", "/admin/tools", TOOL) == 201
        assert (await tried(house, "stock_of_item", version=9))[0] == 404
        shop = await client_of(house, "shop")
        assert await shop.status("POST", "/admin/tools/clocktool/try", {}) == 403
        assert await house.db.value("SELECT count(*) FROM sessions") == 0


async def test_mcp_servers_tell_how_they_are_and_what_they_said(serving: Serving, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"
        command, *arguments = forked(MCP_SERVER, "stdio")
        stdio = {"command": command, "args": arguments, "env": {"NOTES": str(tmp_path / "notes")}}
        config = tmp_path / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"near": stdio, "far": {"url": away}}}))
        async with keyed(serving, lambda body: answer("Done."), mcp_config=config) as house:
            far, near = (await admin_of(house).got("/admin/mcp"))["data"]
            assert (far["name"], far["is_connected"], far["tools"]) == ("far", False, [])
            assert far["trouble"]
            assert (near["name"], near["is_connected"], near["trouble"]) == ("near", True, None)
            assert all(name.startswith("near.") for name in near["tools"])
            assert near["tools"]
            shown = await admin_of(house).got("/admin/operations")
            assert [one["name"] for one in shown["mcp"]] == ["far", "near"]
            assert any("far cannot be reached" in one["text"] for one in shown["sentences"])
