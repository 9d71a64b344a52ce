"""Longhouse on llama.cpp with a model of 135 million parameters: it understands little, and its grammars hold it."""

import asyncio
import json
from dataclasses import asdict
from typing import Any

import jsonschema
import pytest

from conftest import Llama
from longhouse.agents.strategies.protocol import Body
from longhouse.agents.strategies.structured import SGRAgent
from longhouse.agents.template import Abilities, ExecutionPolicy, LLMPolicy, PromptPack, Template, ToolPolicy
from longhouse.app import TOOLS
from longhouse.journal.events import Called, Fault, Replied, Returned
from longhouse.models.http.client import open_endpoint
from longhouse.models.openai import OpenAIModel
from longhouse.models.probe import ProbeFinding, probe, report
from longhouse.tools.toolbox import Toolbox
from server_helpers import House, Serving, folded, launched_words, opened, prompted, started

AT_ONCE = 12
"""Tools in one union: more take the small model long."""

CAN = Abilities(forced_tool_choice=False, parallel_tool_calls=False, json_schema=True)
"""What the probe finds of this server with this model, whose chat template knows no tools."""
PROMPT = PromptPack(
    system_prompt="Answer in JSON. Use few words: at most five in each string, at most two items in each list."
    "\n\nTools:\n{available_tools}"
)
SEED = 7
STEPS = 5
ENDS = ("COMPLETED", "FAILED")


def template(agent: str, *tools: str, steps: int, max_tokens: int = 1500) -> Template:
    return Template(
        name="small",
        base_agent_class=agent,
        tool_policy=ToolPolicy(allowlist=(*tools, "finalanswertool")),
        prompt_pack=PROMPT,
        llm_policy=LLMPolicy(temperature=0.4, max_tokens=max_tokens, context_tokens=4000, can=CAN),
        execution_policy=ExecutionPolicy(max_iterations=steps, max_clarifications=0),
    )


def on(llama: Llama) -> dict[str, Any]:
    return {"llm_base_url": llama.url, "llm_api_key": llama.key, "llm_model": "smollm2", "llm_timeout": 300}


async def ask(house: House, text: str, model: str = "small") -> Any:
    """One turn to its end, whichever it is."""
    async with asyncio.timeout(540):
        answered = await house.say(text, model=model, seed=SEED)
        [session_id] = [row["session_id"] for row in await sessions(house)]
        return await house.until(session_id, *ENDS), answered


async def sessions(house: House) -> Any:
    async with house.http.get("/v1/sessions") as response:
        return (await response.json())["data"]


async def schema_of(house: House, session_id: str, step: int) -> Any:
    """The schema that the model was held to, composed again from the journal."""
    async with house.http.get(f"/v1/sessions/{session_id}/steps/{step}/request") as response:
        composed = await response.json()
    assert composed["matches"]
    return composed["request"]["response_format"]["json_schema"]["schema"]


async def test_every_step_of_a_structured_session_is_valid_json_and_each_turn_ends(
    serving: Serving, llama: Llama
) -> None:
    thinker = template("SGRAgent", "clocktool", "readfiletool", steps=3)
    async with serving(templates=[thinker], **on(llama)) as house:
        shown, _ = await ask(house, "What time is it in Oslo?")
        replies: list[Replied] = []
        while True:
            events = [record.event for record in await house.journal(shown["session_id"])]
            replies = [event for event in events if isinstance(event, Replied)]
            if len(replies) >= STEPS:
                break
            shown, _ = await ask(house, "And what time is it in Tokyo?", model=shown["session_id"])
        for step, replied in enumerate(replies, start=1):
            assert not replied.problem
            jsonschema.validate(json.loads(replied.text), await schema_of(house, shown["session_id"], step))
        made = [event for event in events if isinstance(event, Called)]
        assert len(made) == len(replies)
        for called in made:
            assert called.tool in thinker.tool_policy.named
            assert isinstance(json.loads(called.arguments), dict)
            assert "discriminator" not in called.arguments
        outcomes = [event.outcome for event in events if isinstance(event, Returned)]
        assert "not_offered" not in [outcome.code for outcome in outcomes if isinstance(outcome, Fault)]


async def test_at_the_limit_the_grammar_itself_forces_the_end(serving: Serving, llama: Llama) -> None:
    thinker = template("SGRAgent", "generateplantool", "clocktool", steps=0)
    async with serving(templates=[thinker], **on(llama)) as house:
        shown, _ = await ask(house, "Make a plan.")
        [called] = [r.event for r in await house.journal(shown["session_id"]) if isinstance(r.event, Called)]
        assert called.tool == "finalanswertool"
        schema = await schema_of(house, shown["session_id"], 1)
        branches = schema["properties"]["function"]["anyOf"]
        assert [branch["properties"]["tool_name_discriminator"]["const"] for branch in branches] == ["finalanswertool"]


@pytest.mark.parametrize("agent", ["ToolCallingAgent", "SGRToolCallingAgent"])
async def test_agents_that_call_tools_get_through_where_none_can_be_forced(
    serving: Serving, llama: Llama, agent: str
) -> None:
    caller = template(agent, "reasoningtool", "clocktool", steps=3, max_tokens=200)
    async with serving(templates=[caller], **on(llama)) as house:
        shown, answered = await ask(house, "What is the capital of Norway?")
        assert shown["state"] == "COMPLETED"
        assert answered["choices"][0]["message"]["content"].strip()
        replies = [r.event for r in await house.journal(shown["session_id"]) if isinstance(r.event, Replied)]
        phases = {"ToolCallingAgent": [""], "SGRToolCallingAgent": ["reasoning", "action"]}
        assert [replied.phase for replied in replies] == phases[agent]


async def test_the_grammar_takes_the_schema_of_every_built_in_tool(llama: Llama) -> None:
    toolbox = Toolbox(TOOLS)
    tools = [tool for cls in TOOLS if (tool := toolbox.find(cls.tool_name))]
    assert len(tools) == len(TOOLS)
    session = folded(opened(), prompted("Well?"), started(2))
    unions = [tools[start : start + AT_ONCE] for start in range(0, len(tools), AT_ONCE)]
    unions += [tools[-AT_ONCE:], *([tool] for tool in tools)]
    for union in unions:
        body = SGRAgent().propose(session, template("SGRAgent", steps=3), union).body
        # A connection for each: this server closes those that it has said it would keep.
        async with open_endpoint(llama.url, llama.key, hang=300) as endpoint:
            text = await said(OpenAIModel(endpoint), body)
        assert text.lstrip().startswith("{"), [tool.name for tool in union]


async def said(model: OpenAIModel, body: Body) -> str:
    """The first words of a reply: a schema that cannot be a grammar is refused before them."""
    cut = Body(
        model=body.model, messages=body.messages, response_format=body.response_format, max_tokens=8, temperature=0.0
    )
    return "".join([delta.text async for delta in model.stream(cut)])


async def test_the_probe_finds_what_this_endpoint_can(llama: Llama) -> None:
    async with open_endpoint(llama.url, llama.key, hang=300) as endpoint:
        findings = await probe(OpenAIModel(endpoint), "smollm2")
    assert {one.ability: one.holds for one in findings} == asdict(CAN), report(findings)
    assert findings[2] == ProbeFinding("json_schema", True, "its reply fits the schema")


async def test_the_command_says_what_to_set(llama: Llama) -> None:
    settings = {"llm_base_url": llama.url, "llm_api_key": llama.key, "llm_model": "smollm2", "llm_timeout": "300"}
    code, words = await launched_words("probe", within=300, **settings)
    assert code == 0, words
    assert "set to false: forced_tool_choice, parallel_tool_calls." in words
    assert llama.key not in words


async def test_a_wrong_key_is_said_and_never_shown(llama: Llama) -> None:
    code, words = await launched_words("probe", llm_base_url=llama.url, llm_api_key="sk-wrong-canary")
    assert code == 1
    assert "answered 401" in words
    assert "canary" not in words
