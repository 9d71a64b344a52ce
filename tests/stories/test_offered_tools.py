"""An agent is offered what it names, however many tools there are beside, and the journal says why."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from longhouse.journal.events import Replied, encode
from longhouse.models.scripted import Say, call, say
from mcp_nursery import forked
from server_helpers import NO_FILES, House, Serving

SERVER = str(Path(__file__).parents[1] / "tools" / "mcp_six_tools.py")
NOBODY = "http://127.0.0.1:9/v1"
"""An embedding model that does not answer: search goes by words alone."""
MEMORY = (
    "createfiletool", "readfiletool", "updatefiletool", "deletefiletool", "checkiffileexiststool", "createdirtool",
    "checkifdirexiststool", "getsizetool", "getlistfilestool", "gotolinktool",
)  # fmt: skip
KEEPER = f"""\
agents:
  memory_agent:
    base_class: SGRToolCallingAgent
    tools: [{", ".join(MEMORY)}, clarificationtool, finalanswertool, reasoningtool]
"""
ENTRY = "write a new entry into the diary"
BUILT_IN = ("sgr_agent", "tool_calling_agent", "sgr_tool_calling_agent")
SAID = ("Запомни: меня зовут Алия", "Write this into the diary and remember it", "记住：我叫阿丽雅")
THOUGHT = {"reasoning_steps": ["a", "b"], "current_situation": "s", "plan_status": "p", "enough_data": False,
           "remaining_steps": ["r"], "task_completed": False}  # fmt: skip
DONE = call("finalanswertool", answer="Done.")


def with_diary() -> str:
    """A configuration that gives the diary to all agents."""
    command, *args = forked(SERVER)
    return json.dumps({"mcp": {"mcpServers": {"diary": {"command": command, "args": args}}}})


def thinks_first(body: Any) -> Say:
    """Whatever the way to think, the turn ends at once."""
    if body.response_format and b"NextStepTools" in bytes(body.response_format):
        function = {"tool_name_discriminator": "finalanswertool", "answer": "Done.", "status": "completed"}
        return say(json.dumps({**THOUGHT, "function": function}))
    forced = body.tool_choice["function"]["name"] if isinstance(body.tool_choice, dict) else ""
    return call(forced, **THOUGHT) if forced == "reasoningtool" else DONE


@asynccontextmanager
async def files(
    serving: Serving, folder: Path, script: Any = None, *, config: str = "", agents: str = "", **more: Any
) -> AsyncIterator[House]:
    (folder / "config.yaml").write_text(config or "{}")
    (folder / "agents.yaml").write_text(agents or "{}")
    named: dict[str, Any] = {**NO_FILES, "config_file": folder / "config.yaml", "agents_file": folder / "agents.yaml"}
    async with serving(script or thinks_first, **named, **more) as house:
        yield house


async def offered(house: House, session_id: str) -> list[str]:
    return [ref.partition("@")[0] for ref in (await house.folded(session_id)).offered]


async def offered_for(house: House, text: str, model: str) -> list[str]:
    """What an agent that is told this is offered."""
    return await offered(house, (await house.say(text, model=model))["model"])


@pytest.mark.parametrize("strategy", ["retrieval_sticky", "retrieval_per_step"])
@pytest.mark.parametrize("embeddings_base_url", [None, NOBODY], ids=["with vectors", "words alone"])
async def test_the_memory_agent_is_offered_its_memory(
    serving: Serving, tmp_path: Path, strategy: str, embeddings_base_url: str | None
) -> None:
    agents = f"{KEEPER}    tool_policy: {{selection_strategy: {strategy}, max_tools_in_prompt: 12}}\n"
    async with files(serving, tmp_path, agents=agents, embeddings_base_url=embeddings_base_url) as house:
        for text in SAID:
            names = await offered_for(house, text, "memory_agent")
            assert len(names) == 12, text
            assert {"finalanswertool", "reasoningtool"} <= {*names}
            assert len({*names} & {*MEMORY}) >= 9, text


async def test_a_global_server_takes_nothing_from_the_agents_that_name_their_tools(
    serving: Serving, tmp_path: Path
) -> None:
    agents = f"""{KEEPER}    tool_policy: {{max_tools_in_prompt: 12}}
  chief: {{tools: [agent.memory_agent, finalanswertool]}}
  finder: {{tools: [{", ".join(MEMORY)}], tool_policy: {{max_tools_in_prompt: 10, required: [findtoolstool]}}}}
"""

    def script(body: Any) -> Say:
        names, is_first = b"".join(map(bytes, body.tools)), len(body.messages) == 2
        if is_first and b"agent_memory_agent" in names:
            return call("agent_memory_agent", task=SAID[0])
        if is_first and b"findtoolstool" in names:
            return call("findtoolstool", query=ENTRY)
        return thinks_first(body)

    async with files(serving, tmp_path, script, config=with_diary(), agents=agents) as house:
        for model in BUILT_IN:
            for text in SAID:
                names = await offered_for(house, text, model)
                assert {"clarificationtool", "websearchtool", "extractpagecontenttool", "finalanswertool"} <= {*names}
                assert sum(name.startswith("diary.") for name in names) == 6, names
        await check_that_sub_agents_are_offered_what_they_name(house)
        await check_that_what_an_agent_finds_has_its_place(house)


DESK = f"""\
agents:
  desk: {{tools: [{", ".join(MEMORY)}, clarificationtool, finalanswertool, clocktool]}}
  open: {{tool_policy: {{max_risk_level: high}}}}
  wide: {{tools: [{", ".join(MEMORY)}, finalanswertool, crowd.*]}}
  thinker:
    base_class: SGRAgent
    tools: [{", ".join(MEMORY)}, clarificationtool, finalanswertool, clocktool]
  narrow: {{tools: [clocktool, getsizetool, finalanswertool], tool_policy: {{max_tools_in_prompt: 2}}}}
"""
CROWDED = str(Path(__file__).parents[1] / "tools" / "mcp_crowd.py")


async def test_what_is_named_one_by_one_is_offered_whole_and_what_fits_is_offered_all(
    serving: Serving, tmp_path: Path
) -> None:
    command, *args = forked(CROWDED)
    crowd = json.dumps({"mcpServers": {"crowd": {"command": command, "args": args}}})
    agents = DESK.replace("wide: {", f"wide: {{mcp: {crowd}, ")
    with capture_logs() as log:
        async with files(serving, tmp_path, agents=agents) as house:
            for text in SAID:
                assert len(await offered_for(house, text, "desk")) == 13
            assert len(await offered_for(house, SAID[1], "thinker")) == 13
            assert house.model is not None
            body = house.model.requests[-1]
            branches = body["response_format"]["json_schema"]["schema"]["properties"]["function"]["anyOf"]
            assert len(branches) == 13, "a structured reply can choose each of them"
            wide = await offered_for(house, SAID[1], "wide")
            assert {*MEMORY, "finalanswertool"} <= {*wide}, "what is named is whole beside a group that does not fit"
            assert len(wide) == 11 + 12
            assert len(await offered_for(house, SAID[1], "narrow")) == 2
    warned = [one for one in log if one["event"] == "listed_tools_left_out"]
    [narrow] = [one for one in warned if one["template"] == "narrow"]
    assert "agents.yaml:8: agents.narrow.tool_policy.max_tools_in_prompt: 3 tools are named" in narrow["message"]
    assert "max_tools_in_prompt is 2: 1 of them is left out at each step" in narrow["message"]
    assert [one["template"].partition("@")[0] for one in warned] == ["narrow", "wide"]


async def test_a_catalog_that_fits_is_offered_whole_in_an_order_that_stays(serving: Serving, tmp_path: Path) -> None:
    script = [call("clocktool"), call("clocktool"), DONE]
    async with files(serving, tmp_path, script, agents=DESK.replace(", crowd.*", "")) as house:
        session_id = (await house.say(SAID[1], model="open"))["model"]
        assert house.model is not None
        first, second, last = [
            [tool["function"]["name"] for tool in request["tools"]] for request in house.model.requests[-3:]
        ]
        assert len(first) > 12
        assert first == second == last
        assert (await request_of(house, session_id, 1))["selection"] is None, "nothing was left out"


async def until_found(house: House, name: str) -> None:
    """A server's tools are indexed some time after it has connected."""
    async with asyncio.timeout(30):
        while True:
            async with house.http.post("/admin/tools/search", json={"query": ENTRY}) as response:
                if name in [one["name"] for one in (await response.json())["data"]]:
                    return
            await asyncio.sleep(0.05)


async def check_that_sub_agents_are_offered_what_they_name(house: House) -> None:
    chief = (await house.say(SAID[0], model="chief"))["model"]
    child = await house.db.value("SELECT id FROM sessions WHERE agent = 'memory_agent'")
    for session_id, own, whole in ((chief, 2, 8), (child, 12, 12)):
        names = await offered(house, session_id)
        assert sum(not name.startswith("diary.") for name in names) == own
        assert len(names) == whole


async def check_that_what_an_agent_finds_has_its_place(house: House) -> None:
    await until_found(house, "diary.add_entry")
    session_id = (await house.say(SAID[0], model="finder"))["model"]
    found = (await house.folded(session_id)).context["found_tools"]
    assert "diary.add_entry" in found
    before, after = [await request_of(house, session_id, nth) for nth in (1, 2)]
    names = [[tool["name"] for tool in one["selection"]["offered"]] for one in (before, after)]
    assert not any(name.startswith("diary.") for name in names[0]), "ten places, twelve names"
    assert {*found} <= {*names[1]}
    assert len(names[1]) == 10


async def test_what_was_left_out_is_in_the_journal_the_log_and_the_request_of_the_step(
    serving: Serving, tmp_path: Path
) -> None:
    script = [
        call("reasoningtool", **THOUGHT),
        call("getsizetool"),
        call("reasoningtool", **{**THOUGHT, "remaining_steps": ["read the link"]}),
        DONE,
    ]
    agents = f"{KEEPER}    tool_policy: {{max_tools_in_prompt: 12}}\n"
    with capture_logs() as log:
        async with files(serving, tmp_path, script, agents=agents, embeddings_base_url=NOBODY) as house:
            session_id = (await house.say(SAID[0], model="memory_agent"))["model"]
            replies = [one.event for one in await house.journal(session_id) if isinstance(one.event, Replied)]
            requests = [await request_of(house, session_id, nth) for nth in (1, 2, 3, 4)]
    assert [one.selection is not None for one in replies] == [True] * 4
    first, last = replies[0].selection, replies[3].selection
    assert first is not None
    assert (first.query, first.stage, first.scores, first.left_out) == (SAID[0], "plan", {}, ("clarificationtool",))
    assert last is not None
    assert last.query == f"read the link\n{SAID[0]}"
    assert last.scores["gotolinktool"] > 0
    for nth, request in enumerate(requests):
        assert request["matches"]
        shown = request["selection"]
        sent = [tool["function"]["name"] for tool in request["request"]["tools"]]
        assert [one["name"] for one in shown["offered"]] == sent
        assert [one["name"] for one in shown["left_out"]] == ["clarificationtool"], nth
    assert {one["name"]: one["score"] for one in requests[3]["selection"]["offered"]}["gotolinktool"] > 0
    records = [one for one in log if one["event"] == "tools_left_out"]
    assert [(one["session"], one["left_out"]) for one in records] == [(session_id, ["clarificationtool"])]
    assert SAID[0] not in str(records), "what people say is in the journal alone"


async def request_of(house: House, session_id: str, step: int) -> Any:
    async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
        return await response.json()


async def test_where_all_fits_nothing_is_recorded_and_old_replies_are_still_read(
    serving: Serving, tmp_path: Path
) -> None:
    async with files(serving, tmp_path) as house:
        session_id = (await house.say(SAID[0]))["model"]
        [replied] = [one.event for one in await house.journal(session_id) if isinstance(one.event, Replied)]
        assert replied.selection is None
        assert "selection" not in encode(replied), "a reply of an older release reads the same"
        shown = await request_of(house, session_id, 1)
        assert (shown["matches"], shown["selection"]) == (True, None)
