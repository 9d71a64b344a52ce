"""Tools stand in the files beside the agents: the same files start anywhere, as a whole or not at all."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
from test_files import written
from test_takeover import eventually

from longhouse.agents.template import Template
from longhouse.agents.tool_descriptor import RuntimeBinding, ToolDescriptor
from longhouse.app.publish import publish_files
from longhouse.cli.upkeep.setting_up import publish_configured
from longhouse.errors import SetupError
from longhouse.models.scripted import call
from longhouse.settings import Settings
from longhouse.store.catalog.catalog import Catalog
from longhouse.store.database import Database
from mcp_nursery import forked
from own_module import own_module
from search_helpers import generation
from server_helpers import Serving, content

SERVER = str(Path(__file__).parents[1] / "tools" / "mcp_six_tools.py")
MODULE = '''
from longhouse import tool
from longhouse.agents.strategies.tool_calling import ToolCallingAgent


class PatientAgent(ToolCallingAgent):
    """Thinks as its parent does."""


@tool(effect="once")
async def pay(amount: int) -> str:
    """Pay a bill."""
    return f"paid {amount}"


async def refund(amount: int) -> str:
    """Pay back."""
    return f"paid back {amount}"


@tool
async def Count(word: str) -> str:
    """Count letters."""
    return str(len(word))
'''


@pytest.fixture
def module(tmp_path: Path) -> Iterator[str]:
    with own_module(tmp_path, MODULE) as name:
        yield name


def described(module: str, more: str = "") -> str:
    return f"""
tool_packages: [{module}]
tools:
  pay: {{runtime_binding: {{python_entrypoint: "{module}:pay"}}, needs_approval: true}}
{more}
agents:
  clerk:
    base_class: {module}.PatientAgent
    tools: [Pay, "{module}:Count", FinalAnswerTool]
"""


async def test_files_with_tools_start_on_an_empty_database_and_twice_change_nothing(
    dsn: str, db: Database, tmp_path: Path, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tools, templates = Catalog(db).tools, Catalog(db).templates
    settings = Settings(database_url=dsn, **written(tmp_path, agents=described(module)))
    await asyncio.gather(publish_configured(settings), publish_configured(settings))
    lines = capsys.readouterr().out.splitlines()
    for name in ("tool pay", "tool count", "clerk"):
        told = [line.removeprefix(f"{name}  version 1  ") for line in lines if line.startswith(f"{name} ")]
        assert (len(told), told.count("new")) == (2, 1), "two that start at once publish it once"
    found = await tools.find("pay")
    assert found is not None
    assert (found.description_short, found.effect, found.needs_approval) == ("Pay a bill.", None, True)
    assert list((found.input_schema or {})["properties"]) == ["amount"]
    before = await generation(tools), await generation(templates)
    await publish_configured(settings)
    assert (await generation(tools), await generation(templates)) == before
    assert await tools.activate("pay", 1)
    await tools.deactivate("pay")
    await publish_configured(settings)
    assert await tools.active("pay") is None, "what an operator decided stays"
    (tmp_path / f"{module}.py").write_text(MODULE.replace("Pay a bill.", "Pay any bill."))
    await publish_configured(settings)
    assert await tools.active("pay") == 2, "until the file or the class says something new"
    assert [one.published_by for one in await tools.versions("pay")] == ["files", "files"]


async def test_agents_use_tools_of_files_behind_every_way_in_two_processes(
    serving: Serving, tmp_path: Path, module: str
) -> None:
    async def forecast(request: aiohttp.web.BaseRequest) -> aiohttp.web.StreamResponse:
        return aiohttp.web.json_response(f"rain for {(await request.json())['city']}")

    runner = aiohttp.web.ServerRunner(aiohttp.web.Server(forecast, access_log=None))
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    command, *args = forked(SERVER)
    more = f"""
  forecast:
    description_short: Tell the weather.
    input_schema: {{type: object, properties: {{city: {{type: string}}}}, required: [city]}}
    runtime_binding: {{remote_endpoint: "http://127.0.0.1:{runner.addresses[0][1]}/"}}
    effect: read
  diary.add_entry: {{needs_approval: true, tags: [private]}}
mcp: {{mcpServers: {{diary: {{command: {command}, args: {json.dumps(args)}}}}}}}
"""
    files = written(tmp_path, agents=described(module, more).replace("[Pay,", "[Pay, forecast, diary.add_entry,"))
    script = [
        *(call("count", word="Привет"), call("forecast", city="Oslo"), call("pay", amount=7)),
        *(call("diary_add_entry", text="你好"), call("finalanswertool", answer="Done.")),
    ]
    try:
        async with serving(script, **files) as house, serving(**files, works=False):
            assert house.model is not None
            listed = house.app.catalog.tools
            await eventually(lambda: described_by_server(listed))
            session = (await house.say("Go", model="clerk"))["model"]
            for name in ("pay", "diary.add_entry"):
                shown = await house.until(session, "WAITING_FOR_APPROVAL", "FAILED", "COMPLETED")
                [question] = shown["questions"]
                assert question["tool"] == name
                verdict = {"call_id": question["call_id"], "decision": "approve"}
                async with house.http.post(f"/v1/sessions/{session}/approval", json=verdict) as response:
                    assert response.status == 202
            assert (await house.until(session, "COMPLETED"))["result"] == "Done."
            results = [one["content"] for one in house.model.requests[-1]["messages"] if one["role"] == "tool"]
            assert results == ["6", "rain for Oslo", "paid 7", "written: 你好"]
            found = await house.app.catalog.templates.find("clerk")
            assert found is not None
            assert found.base_agent_class == f"{module}:PatientAgent"
    finally:
        await runner.cleanup()


async def described_by_server(tools: Any) -> bool:
    """The file says that it needs approval, the server what it does."""
    found = await tools.find("diary.add_entry")
    is_whole = found is not None and found.description_short.startswith("Remember something")
    if is_whole:
        assert (found.needs_approval, found.tags) == (True, ("private",))
    return is_whole


async def test_what_is_wrong_with_tools_and_their_classes_is_told_at_once_and_nothing_is_published(
    dsn: str, db: Database, tmp_path: Path, module: str
) -> None:
    more = f"""  forecast: {{runtime_binding: {{remote_endpoint: "https://weather.example/", api_key_ref: unset}}}}
  weak: {{runtime_binding: {{python_entrypoint: "{module}:pay"}}, effect: read}}
  gone: {{runtime_binding: {{python_entrypoint: "{module}:Gone"}}}}
  misspelled: {{runtime_binding: {{python_entrypoint: "{module}:count"}}}}
  undecorated: {{runtime_binding: {{python_entrypoint: "{module}:refund"}}}}
  shell: {{runtime_binding: {{python_entrypoint: "os:system"}}}}
  clocktool: {{runtime_binding: {{python_entrypoint: "{module}:pay"}}}}
  far.away: {{needs_approval: true}}
  meta: {{description_short: x, runtime_binding: {{remote_endpoint: "http://169.254.169.254/"}}}}
"""
    text = described(module, more).replace("[Pay,", "[Pay, forcast,")
    with pytest.raises(SetupError) as refused:
        await publish_configured(Settings(database_url=dsn, **written(tmp_path, agents=text)))
    lines = [line.partition(": ")[2] for line in str(refused.value).splitlines()[1:]]
    assert lines == [
        "tools.forecast.description_short: is needed: it is what the model reads of the tool",
        "tools.forecast.runtime_binding.api_key_ref: the secret 'unset' is not set here; give it to this process as "
        "LONGHOUSE_SECRET_UNSET",
        "tools.weak.effect: the class says once, and a descriptor cannot make that read; leave effect out",
        f"tools.gone.runtime_binding.python_entrypoint: {module} has no tool class Gone",
        f"tools.misspelled.runtime_binding.python_entrypoint: {module} has no tool class count; did you mean Count?",
        f"tools.undecorated.runtime_binding.python_entrypoint: refund of {module} is a function and no tool yet; "
        "put @tool of longhouse above it",
        "tools.shell.runtime_binding.python_entrypoint: os is not in a package that tools may come from; "
        "`tool_packages` lists those",
        "tools.clocktool.name: a tool of this name comes with the program; give yours another name",
        "tools.far.away: no MCP server of this name is configured: its tools are <server>.<tool>",
        "tools.meta.runtime_binding.remote_endpoint: 169.254.169.254 is a link-local or metadata address, which "
        "nothing here may reach",
        "agents.clerk.tools[1]: there is no tool 'forcast'; did you mean forecast?",
    ]
    assert await Catalog(db).templates.names() == []
    assert await Catalog(db).tools.active("pay") is None


async def test_a_place_is_kept_for_what_ends_a_turn_beside_tools_that_this_process_does_not_know(
    dsn: str, serving: Serving, tmp_path: Path, module: str
) -> None:
    text = described(module).replace(", FinalAnswerTool", "").replace(f"{module}.PatientAgent", "ToolCallingAgent")
    policy = "    tool_policy: {{required: [pay, count], max_tools_in_prompt: {}}}\n"
    two = written(tmp_path, agents=text + policy.format(2))
    with pytest.raises(SetupError, match=r"3 tools \(with finalanswertool, which its agents need\) would be offered"):
        await publish_configured(Settings(database_url=dsn, **two))
    three = written(tmp_path, agents=text + policy.format(3))
    async with serving([call("finalanswertool", answer="Done.")], **three) as house:
        session_id = (await house.say("Go", model="clerk"))["model"]
        offered = [ref.partition("@")[0] for ref in (await house.folded(session_id)).offered]
        assert {*offered} == {"finalanswertool", "pay", "count"}

    names = [f"shelf_{number}" for number in range(128)]
    shelves = "".join(f"@tool\ndef {name}() -> str:\n    'Look there.'\n    return ''\n" for name in names)
    with own_module(tmp_path, f"from longhouse import tool\n{shelves}") as many:
        tools = "".join(f"\n    - {many}:{name}" for name in names)
        whole = written(tmp_path, agents=f"tool_packages: [{many}]\nagents:\n  clerk:\n    tools:{tools}\n")
        with pytest.raises(SetupError, match=r"agents.clerk.tool_policy.required: 129 tools \(with finalanswertool"):
            await publish_configured(Settings(database_url=dsn, **whole))


async def test_a_publication_that_ends_in_the_middle_leaves_nothing(db: Database) -> None:
    catalog = Catalog(db)
    tool = ToolDescriptor(
        name="pay", description_short="Pay.", runtime_binding=RuntimeBinding(remote_endpoint="https://bank.example/")
    )
    with pytest.raises(asyncpg.PostgresError):
        await publish_files(catalog, [tool], [Template(name="fine"), Template(name="no\x00name")], touched=["fine"])
    assert await catalog.tools.named("pay") is None
    assert await catalog.templates.named("fine") is None
    assert await catalog.tools.named("agent.fine") is None
    await publish_files(catalog, [tool], [Template(name="fine")], touched=["fine"])
    assert [await catalog.tools.active(name) for name in ("pay", "agent.fine")] == [1, 1]


async def test_who_has_no_rights_publishes_neither_tools_nor_agents_and_sees_those_of_the_files(
    serving: Serving, tmp_path: Path, module: str
) -> None:
    script = [call("count", word="four"), call("finalanswertool", answer="4")]
    admin = {"authorization": "Bearer k3y-of-the-house-9f27"}
    files = written(tmp_path, agents=described(module))
    async with serving(script, admin_key=admin["authorization"].removeprefix("Bearer "), **files) as house:
        async with house.http.post("/admin/keys", json={"name": "Ann's", "owner": "ann"}, headers=admin) as response:
            mine = {"authorization": f"Bearer {(await response.json())['key']}"}
        tool = {"name": "x", "description_short": "x", "runtime_binding": {"python_entrypoint": f"{module}:pay"}}
        for path, body in (("tools", tool), ("templates", {"name": "x"})):
            async with house.http.post(f"/admin/{path}", json=body, headers=mine) as response:
                assert response.status == 403
        for place, status in ((f"{module}:PatientAgent", 201), ("os:Agent", 400), (f"{module}:Gone", 201)):
            agent = {"name": f"own{status}", "base_agent_class": place}
            async with house.http.post("/admin/templates", json=agent, headers=admin) as response:
                assert response.status == status, "only the text is looked at"
        asked = {"model": "clerk", "messages": [{"role": "user", "content": "Count"}]}
        async with house.http.post("/v1/chat/completions", json=asked, headers=mine) as response:
            assert content(await response.json()) == "4"
