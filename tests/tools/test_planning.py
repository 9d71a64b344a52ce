"""Thinking aloud: reasoning, a plan, a changed plan."""

import json
from typing import Any

import pytest

from longhouse.journal import events
from longhouse.journal.events import Output
from longhouse.tools.builtin.planning import AdaptPlanTool, GeneratePlanTool, ReasoningTool
from longhouse.tools.toolbox import Result, Toolbox
from server_helpers import folded, opened, prompted, returned, started, turn_of, used

TOOLBOX = Toolbox([ReasoningTool, GeneratePlanTool, AdaptPlanTool])
THOUGHT = {
    "reasoning_steps": ["The city is known.", "The weather is not."],
    "current_situation": "Oslo; nothing looked up yet.",
    "plan_status": "One step left.",
    "enough_data": False,
    "remaining_steps": ["look it up"],
    "task_completed": False,
}
PLAN = {
    "research_goal": "rain in Oslo",
    "planned_steps": ["search", "read", "answer"],
    "search_strategies": ["met.no", "newspapers"],
}
CHANGE = {
    "original_goal": "rain in Oslo",
    "new_goal": "snow in Oslo",
    "plan_changes": ["it is winter"],
    "next_steps": ["search again", "answer"],
}


async def perform(tool: str, **arguments: Any) -> Result:
    call = used("1-action-0", tool=tool, arguments=json.dumps(arguments))
    session = folded(opened(), prompted("x"), started(2), events.Replied(), call)
    return await TOOLBOX.perform(session.due_calls[0], session, turn_of(session))


def output(result: Result) -> Any:
    assert isinstance(result.outcome, Output), result
    return json.loads(result.outcome.content)


async def test_reasoning_returns_its_own_json_in_order_and_stays_in_the_context() -> None:
    result = await perform("reasoningtool", **THOUGHT)
    assert list(output(result).items()) == list(THOUGHT.items())
    assert (result.writes, result.adds, result.made) == ({"current_step_reasoning": THOUGHT}, {}, ())


async def test_a_new_thought_takes_the_place_of_the_one_before() -> None:
    before = returned("0-action-0", writes={"current_step_reasoning": {**THOUGHT, "enough_data": True}})
    call = used("1-action-0", tool="reasoningtool", arguments=json.dumps(THOUGHT))
    past = (opened(), prompted("x"), started(2), events.Replied(), used("0-action-0"), before)
    session = folded(*past, events.Replied(), call)
    result = await TOOLBOX.perform(session.due_calls[0], session, turn_of(session))
    after = folded(returned("1-action-0", writes=result.writes, adds=result.adds), session=session)
    assert after.context["current_step_reasoning"] == THOUGHT


def test_reasoning_has_exactly_the_known_fields() -> None:
    schema = ReasoningTool.described().schema
    assert list(schema["properties"]) == list(THOUGHT)
    kinds = {name: prop["type"] for name, prop in schema["properties"].items()}
    assert kinds == {
        "reasoning_steps": "array",
        "current_situation": "string",
        "plan_status": "string",
        "enough_data": "boolean",
        "remaining_steps": "array",
        "task_completed": "boolean",
    }


@pytest.mark.parametrize(("tool", "arguments"), [("generateplantool", PLAN), ("adaptplantool", CHANGE)])
async def test_a_plan_is_returned_without_its_reasoning(tool: str, arguments: dict[str, Any]) -> None:
    result = await perform(tool, reasoning="because", **arguments)
    assert list(output(result).items()) == list(arguments.items())
    assert (result.writes, result.adds) == ({}, {})


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("generateplantool", {**PLAN, "planned_steps": []}),
        ("adaptplantool", {**CHANGE, "next_steps": []}),
        ("reasoningtool", {**THOUGHT, "task_completed": "perhaps"}),
    ],
)
async def test_a_plan_without_steps_or_a_thought_without_sense_is_explained(
    tool: str, arguments: dict[str, Any]
) -> None:
    found = TOOLBOX.find(tool)
    assert found is not None
    fault = await TOOLBOX.check(found, json.dumps(arguments))
    assert fault is not None
    assert fault.code == "bad_arguments"


def test_thinking_needs_no_worker_of_its_own() -> None:
    for tool in ("reasoningtool", "generateplantool", "adaptplantool"):
        found = TOOLBOX.find(tool)
        assert found is not None
        assert (found.inline, found.asks, found.finishes, found.effect) == (True, False, False, "read")
