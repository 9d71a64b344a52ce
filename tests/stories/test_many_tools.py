"""A thousand tools in the catalog, twelve in the prompt: a step costs what it costs with twelve."""

import json
from itertools import pairwise
from typing import Any

from longhouse.agents.template import Template, ToolPolicy
from longhouse.agents.tool_descriptor import RuntimeBinding, SecurityPolicy, ToolDescriptor
from longhouse.journal.events import Fault
from longhouse.models import embedding_table
from longhouse.models.scripted import call
from longhouse.search.indexer import Indexer
from server_helpers import House, Serving

CAP = 12
OWN = ("clocktool", "findtoolstool", "finalanswertool")
THINGS = ("invoice", "parcel", "recipe", "flight", "patient", "contract", "garden", "battery", "library", "festival")
ACTS = ("create", "cancel", "rename", "archive", "compare", "translate", "schedule", "measure", "publish", "inspect")


def tool(name: str, about: str, **extra: Any) -> ToolDescriptor:
    schema = {"type": "object", "properties": {"id": {"type": "string", "description": "Which one"}}}
    binding = RuntimeBinding(remote_endpoint="https://tools.example/call")
    return ToolDescriptor(name=name, description_short=about, input_schema=schema, runtime_binding=binding, **extra)


MANY = [
    tool(f"{act}_{thing}_{nth}", f"{act.title()} a {thing} of kind {nth} and say what came of it.")
    for act in ACTS
    for thing in THINGS
    for nth in range(10)
]
FEW = [one.name for one in MANY[:: len(MANY) // (CAP - len(OWN))]][: CAP - len(OWN)]
SEARCHING = Template(name="searching", tool_policy=ToolPolicy(required=OWN, max_tools_in_prompt=CAP))
NAMING = Template(name="naming", tool_policy=ToolPolicy(allowlist=(*OWN, *FEW)))
TEN_STEPS = [*[call("clocktool", timezone="UTC")] * 9, call("finalanswertool", answer="done")]


async def index(house: House) -> None:
    assert await Indexer(house.db, embedding_table.EmbeddedEmbedder()).catch_up()


async def furnished(house: House, *more: ToolDescriptor) -> None:
    await house.app.catalog.tools.publish([*MANY, *more], by="test")
    await house.app.catalog.templates.publish([SEARCHING, NAMING], by="test")
    await index(house)


def requests(house: House) -> list[Any]:
    assert house.model is not None
    return house.model.requests


def tools_of(request: Any) -> list[str]:
    return [one["function"]["name"] for one in request["tools"]]


async def test_a_step_costs_the_same_with_a_thousand_tools_as_with_twelve(serving: Serving) -> None:
    async with serving(TEN_STEPS * 2) as house:
        await furnished(house)
        for template in (NAMING, SEARCHING):
            await house.say("Cancel the flight", model=template.name)
        named, searched = requests(house)[:10], requests(house)[10:]
        assert len(searched) == 10
        for one, other in zip(named, searched, strict=True):
            assert len(one["tools"]) == len(other["tools"]) == CAP
            assert abs(len(json.dumps(one)) - len(json.dumps(other))) <= 0.1 * len(json.dumps(one))
        offered = [tools_of(request) for request in searched]
        assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(offered))
        assert {*OWN} <= {*offered[0]}
        assert sum(name.startswith("cancel_flight") for name in offered[0]) == CAP - len(OWN)


async def test_an_agent_finds_a_tool_and_has_it_in_the_next_step(serving: Serving) -> None:
    script = [call("findtoolstool", query="translate the festival"), call("finalanswertool", answer="ok")]
    async with serving(script) as house:
        await furnished(house)
        answered = await house.say("Say hello", model="searching")
        first, second = map(tools_of, requests(house))
        found = (await house.folded(answered["model"])).context["found_tools"]
        assert found[0].startswith("translate_festival")
        assert not {*found} <= {*first}
        assert {*found} <= {*second}
        assert len(second) == CAP


async def test_what_is_denied_foreign_or_inactive_is_never_offered_and_a_call_of_it_is_refused(
    serving: Serving,
) -> None:
    stuffed = tool("stuffed", "cancel flight " * 200)
    foreign = tool("cancel_flight_of_others", "Cancel a flight of others.", owner="somebody-else")
    risky = tool("cancel_flight_risky", "Cancel a flight.", security_policy=SecurityPolicy(risk_level="high"))
    gone = tool("cancel_flight_gone", "Cancel a flight.")
    policy = ToolPolicy(
        required=("finalanswertool",), denylist=("cancel_flight_0",), max_risk_level="medium", max_tools_in_prompt=CAP
    )
    careful = Template(name="careful", tool_policy=policy)
    hidden = {"cancel_flight_0", foreign.name, risky.name, gone.name}
    script = [*[call(name, id="1") for name in sorted(hidden)], call("finalanswertool", answer="ok")]
    async with serving(script) as house:
        await furnished(house, stuffed, foreign, risky, gone)
        await house.app.catalog.tools.deactivate(gone.name)
        await house.app.catalog.templates.publish([careful], by="test")
        await index(house)
        answered = await house.say("Cancel the flight", model="careful")
        for request in requests(house):
            assert not hidden & {*tools_of(request)}
            assert len(tools_of(request)) <= CAP
        assert sum(name.startswith("cancel_flight") for name in tools_of(requests(house)[0])) >= 5
        session = await house.folded(answered["model"])
        outcomes = [use.outcome for step in session.steps for use in step.uses if use.tool in hidden]
        assert [one.code for one in outcomes if isinstance(one, Fault)] == ["not_offered"] * len(hidden)


async def test_per_step_retrieval_follows_what_remains_to_be_done(serving: Serving) -> None:
    policy = ToolPolicy(
        required=("reasoningtool", "finalanswertool"), max_tools_in_prompt=6, selection_strategy="retrieval_per_step"
    )
    thinker = Template(name="thinker", base_agent_class="SGRToolCallingAgent", tool_policy=policy)
    thought = {"reasoning_steps": ["a", "b"], "current_situation": "x", "plan_status": "y", "task_completed": False}
    script = [
        call("reasoningtool", remaining_steps=["translate the festival"], **thought),
        call("clocktool"),
        call("reasoningtool", remaining_steps=["measure the battery"], **thought),
        call("finalanswertool", answer="ok"),
    ]
    async with serving(script) as house:
        await furnished(house)
        await house.app.catalog.templates.publish([thinker], by="test")
        await house.say("Go", model="thinker")
        offered = [tools_of(request) for request in requests(house)]
        assert any(name.startswith("translate_festival") for name in offered[1])
        assert any(name.startswith("measure_battery") for name in offered[3])
        assert not any(name.startswith("translate_festival") for name in offered[3])
