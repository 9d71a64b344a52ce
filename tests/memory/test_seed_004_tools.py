"""Seed 004 for tools of other servers: a call of a remote or MCP tool is a pair of records, and tells no secret."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
import uvicorn
from aiohttp import web
from fastmcp import FastMCP
from fastmcp.server.dependencies import get_http_headers
from structlog.testing import capture_logs

from delegating_server import agent, answer, ask, cast, results
from ledger_helpers import ledger_of, listed
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.template import MemoryPolicy
from longhouse.journal.events import Collected
from longhouse.models.scripted import Say, call, calls, step_of
from longhouse.store.database import Database
from server_helpers import House, Serving, content

REMOTE_KEY, MCP_KEY = "canary-of-the-weather", "canary-of-the-tickets"
TOOLS = ("finalanswertool", "weather", "tickets.*")


@asynccontextmanager
async def weather() -> AsyncIterator[str]:
    """An endpoint that tells everybody which key it was sent, also when it fails."""

    async def told(request: web.BaseRequest) -> web.Response:
        city, key = json.loads(await request.text())["city"], request.headers["Authorization"]
        if city == "nowhere":
            return web.json_response({"error": f"{key} knows no such city"}, status=404)
        return web.json_response(f"Rain in {city}, by {key}.")

    runner = web.ServerRunner(web.Server(told, access_log=None), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def tickets() -> AsyncIterator[str]:
    """An MCP server over HTTP that does the same."""
    mcp = FastMCP("tickets")

    @mcp.tool(annotations={"readOnlyHint": True})
    def look(who: str) -> str:
        """Look for the tickets of somebody."""
        key = get_http_headers(include_all=True)["authorization"]
        if who == "nobody":
            raise ValueError(f"{key} has no tickets")
        return f"{who}: 2 tickets, by {key}."

    config = uvicorn.Config(mcp.http_app(), host="127.0.0.1", port=0, log_config=None, timeout_graceful_shutdown=1)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        server.should_exit = server.force_exit = True
        await server.shutdown()


def published(place: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    binding = {"remote_endpoint": f"http://{place}/weather", "api_key_ref": "weather"}
    return {
        "name": "weather", "description_short": "The weather in a city.", "input_schema": schema, "effect": "read",
        "runtime_binding": binding,
    }  # fmt: skip


def both(body: Body) -> Say:
    """Uses both, fails with both, and has a sub-agent use one."""
    match step_of(body.messages):
        case 0:
            return calls(call("weather", city="Осло"), call("tickets_look", who="李"))
        case 1:
            return calls(call("weather", city="nowhere"), call("tickets_look", who="nobody"))
        case 2:
            return ask("ann", "Look for Ann's.")
        case _:
            return answer(" ".join(results(body)[:2]))


def ann(body: Body) -> Say:
    return answer(results(body)[-1]) if step_of(body.messages) else call("tickets_look", who="Ann")


COLLECT: dict[str, tuple[Collected, ...]] = {"tools": ("tool",), "people": ("user", "agent"), "nothing": ()}


@asynccontextmanager
async def agency(
    serving: Serving, folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncIterator[House]:
    """Agents with the tools of both servers."""
    monkeypatch.setenv("LONGHOUSE_SECRET_WEATHER", REMOTE_KEY)
    monkeypatch.setenv("TICKETS_KEY", MCP_KEY)
    async with weather() as place, tickets() as url:
        entry = {"url": url, "headers": {"Authorization": "Bearer ${TICKETS_KEY}"}}
        path = folder / "mcp.json"
        path.write_text(json.dumps({"mcpServers": {"tickets": entry}}))
        policies = {"all": get_args(Collected), **COLLECT}
        agents = [
            agent(name, calls=("ann",), tools=TOOLS, memory_policy=MemoryPolicy(collect=collect))
            for name, collect in policies.items()
        ]
        script = cast(**dict.fromkeys(policies, both), ann=ann)
        settings |= {"allow_egress": place, "mcp_config": path}
        templates = [*agents, agent("ann", calls=(), tools=TOOLS)]
        async with serving(script, templates=[], **settings) as house:
            async with house.http.post("/admin/tools", json=published(place)) as response:
                assert response.status in (200, 201), await response.text()
            await house.app.catalog.templates.publish(templates, by="test")
            yield house


async def test_calls_of_remote_and_mcp_tools_are_pairs_of_records_without_secrets(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capture_logs() as log:
        async with agency(serving, tmp_path, monkeypatch) as house:
            said = await house.say("Look.", model="all", chat_id=12345)
            assert content(said) == "Rain in Осло, by Bearer [hidden]. 李: 2 tickets, by [hidden]."
            records = await listed(house)
            pairs_as_expected([one for one in records if "tool" in (one["source_type"], one["target_type"])], records)
            # Made again from the journals, they are the same; found by meaning, and told as the story of their trace.
            ledger = ledger_of(house.db)
            await ledger.reset()
            assert await listed(house) == records
            found = await listed(house, query="дождь в Осло", source_type="tool")
            assert found[0]["content"] == "Rain in Осло, by Bearer [hidden]."
            told = await ledger.story(records[0]["trace_id"])
            assert [one.id for one in reversed(told)] == [one["id"] for one in records]
            await switches_as_expected(house)
            assert await tables_with(house.db, REMOTE_KEY, MCP_KEY) == []
            assert house.model
            shown: list[Any] = [records, house.model.requests, log]
            async with house.http.get(f"/v1/sessions/{said['model']}/events?deltas=false") as response:
                shown.append(await response.text())
            async with house.http.get("/admin/tools") as response:
                shown.append(await response.text())
            assert not any(key in str(one) for one in shown for key in (REMOTE_KEY, MCP_KEY))


def pairs_as_expected(told: list[dict[str, Any]], records: list[dict[str, Any]]) -> None:
    told = [one for one in told if "finalanswertool" not in (one["source"], one["target"])]
    asked = {one["id"]: one for one in told if one["type"] == "input"}
    said = {one["pair_id"]: one for one in told if one["type"] == "output"}
    assert len(told) == 10
    assert asked.keys() == said.keys()
    work = sorted(
        (one["source"], one["target"], one["content"], said[pair]["content"].partition(" (")[0])
        for pair, one in asked.items()
    )
    assert [one[:3] for one in work] == [
        ("all", "tickets.look", '{"who":"nobody"}'),
        ("all", "tickets.look", '{"who":"李"}'),
        ("all", "weather", '{"city":"nowhere"}'),
        ("all", "weather", '{"city":"Осло"}'),
        ("ann", "tickets.look", '{"who":"Ann"}'),
    ]
    nobody, li, nowhere, oslo, of_ann = (one[3] for one in work)
    assert (li, oslo, of_ann) == (
        "李: 2 tickets, by [hidden].", "Rain in Осло, by Bearer [hidden].", "Ann: 2 tickets, by [hidden].",
    )  # fmt: skip
    assert ("[hidden] has no tickets" in nobody, "[hidden] knows no such city" in nowhere) == (True, True)
    for pair, one in asked.items():
        back = said[pair]
        assert (one["source_type"], one["target_type"], one["pair_id"]) == ("agent", "tool", pair)
        assert (back["source"], back["source_type"]) == (one["target"], "tool")
        assert (back["target"], back["target_type"]) == (one["source"], "agent")
        assert one["timestamp"] <= back["timestamp"]
    # One round of one conversation, the sub-agent's part too.
    first = next(one for one in records if one["source_type"] == "user")
    assert {(one["conversation_id"], one["trace_id"]) for one in told} == {("12345", first["trace_id"])}


async def switches_as_expected(house: House) -> None:
    """What a template does not collect of its turns is not there; the sub-agent's own template says what is of its."""
    for nth, (name, collect) in enumerate(COLLECT.items()):
        await house.say("Look.", model=name, chat_id=nth)
        records = await listed(house, str(nth))
        own = [one for one in records if "ann" not in (one["source"], one["target"])]
        other = {one["source_type"] for one in own if one["target_type"] == "agent"}
        assert other == set(collect) - {"agent"}
        expected = {"weather", "tickets.look", "finalanswertool"} if "tool" in collect else set()
        assert {one["target"] for one in own if one["target_type"] == "tool"} == expected
        assert any(one["source"] == "tickets.look" for one in records if "ann" in (one["source"], one["target"]))


async def test_with_the_switch_off_their_calls_are_not_collected(
    serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agency(serving, tmp_path, monkeypatch, conversation_memory_enabled=False) as house:
        assert content(await house.say("Look.", model="all", chat_id=12345)).startswith("Rain in Осло")
        await ledger_of(house.db).catch_up_all()
        assert await listed(house) == []
        assert await house.db.value("SELECT count(*) FROM ledger") == 0


async def tables_with(db: Database, *words: str) -> list[str]:
    """The tables in which one of these words is anywhere, also in bytes."""
    found = []
    tables = "SELECT format('%I', tablename) AS name FROM pg_tables WHERE schemaname = current_schema()"
    patterns = [f"%{form}%" for word in words for form in (word, word.encode().hex())]
    for row in await db.rows(tables):
        sql = f"SELECT count(*) FROM {row['name']} AS t WHERE t::text LIKE ANY(:patterns)"
        if await db.value(sql, patterns=patterns):
            found.append(row["name"])
    return found


async def test_a_remote_tool_that_says_what_it_remembers_is_a_source_of_knowledge(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGHOUSE_SECRET_WEATHER", REMOTE_KEY)

    def reads(body: Body) -> Say:
        return answer(results(body)[-1]) if step_of(body.messages) else call("weather", city="Осло")

    async with weather() as place:
        reader = agent("reader_of_rain", calls=(), tools=TOOLS[:2])
        async with serving(cast(reader_of_rain=reads), templates=[], allow_egress=place) as house:
            tool = published(place) | {"remembers": "search"}
            async with house.http.post("/admin/tools", json=tool) as response:
                assert response.status in (200, 201), await response.text()
            await house.app.catalog.templates.publish([reader], by="test")
            await house.say("Is there rain?", model="reader_of_rain", chat_id=12345)
            told = await listed(house, source_type="knowledge")
            assert [(one["source"], one["target"], one["type"]) for one in told] == [
                ("weather", "reader_of_rain", "output")
            ]
            assert "weather" not in {one["source"] for one in await listed(house, source_type="tool")}
