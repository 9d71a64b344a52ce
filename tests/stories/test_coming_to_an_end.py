"""Every agent can come to an end: what finishes a turn is offered, whatever else its policy says."""

import json
from typing import Any, ClassVar

import pytest

from longhouse.agents.template import SelectionStrategy, Template, ToolPolicy
from longhouse.models.scripted import call, say
from longhouse.tools import BaseTool, ToolContext
from server_helpers import House, Serving, content

END = "finalanswertool"
DONE = call(END, answer="Done.")
STRATEGIES: tuple[SelectionStrategy, ...] = ("static", "retrieval_per_step", "retrieval_sticky")


class GlanceTool(BaseTool):
    """Glance at something."""

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        return "seen"


class SubmitTool(BaseTool):
    """Submit the order and end."""

    finishes: ClassVar[bool] = True

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        context.state = "COMPLETED"
        context.execution_result = "submitted"
        return "submitted"


def agent(name: str, base: str = "ToolCallingAgent", **policy: Any) -> Template:
    return Template(name=name, base_agent_class=base, tool_policy=ToolPolicy(**policy))


def offered(house: House) -> list[str]:
    """The tools of the last request."""
    assert house.model is not None
    request = house.model.requests[-1]
    if "response_format" in request:
        schema = request["response_format"]["json_schema"]["schema"]
        branches = schema["properties"]["function"]["anyOf"]
        return [one["properties"]["tool_name_discriminator"]["const"] for one in branches]
    return [one["function"]["name"] for one in request.get("tools", ())]


@pytest.mark.parametrize("base", ["ToolCallingAgent", "SGRToolCallingAgent", "SGRAgent"])
async def test_a_template_that_says_nothing_of_tools_can_finish(serving: Serving, base: str) -> None:
    thought = {"reasoning_steps": ["a"], "current_situation": "s", "plan_status": "p", "enough_data": True}
    thought |= {"remaining_steps": [], "task_completed": True}

    def finish(body: Any) -> Any:
        if isinstance(body.tool_choice, dict):
            return call("reasoningtool", **thought)
        function = {"tool_name_discriminator": END, "answer": "Done.", "status": "completed"}
        return DONE if body.tools else say(json.dumps({**thought, "function": function}))

    async with serving(finish, templates=[Template(name="a", base_agent_class=base)]) as house:
        assert content(await house.say("What is the capital of France?", model="a")) == "Done."
        assert END in offered(house)
        assert ("reasoningtool" in offered(house)) or base != "SGRToolCallingAgent"


async def test_a_policy_that_names_other_tools_only_brings_what_finishes(serving: Serving) -> None:
    every = {f"all-{one}": {"allowlist": ("glancetool",), "selection_strategy": one} for one in STRATEGIES}
    narrow = {f"one-{one}": {"max_tools_in_prompt": 1, **every[f"all-{one}"]} for one in STRATEGIES}
    required = {"required": {"required": ("glancetool",), "allowlist": ("clocktool",), "max_tools_in_prompt": 2}}
    of_a_kind = {"kind": {"tool_types": ("domain",), "allowlist": ("glancetool",)}}
    policies: dict[str, dict[str, Any]] = {**every, **narrow, **required, **of_a_kind}
    templates = [agent(name, **policy) for name, policy in policies.items()]
    async with serving(lambda body: DONE, templates=templates, tools=[GlanceTool]) as house:
        for name, policy in policies.items():
            assert content(await house.say("hi", model=name)) == "Done."
            assert END in offered(house), name
            assert len(offered(house)) <= policy.get("max_tools_in_prompt", 12)
            assert "glancetool" in offered(house) or name in narrow


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_what_finishes_is_there_when_the_policy_names_more_than_may_be_offered(
    serving: Serving, strategy: SelectionStrategy
) -> None:
    named = ("glancetool", "clocktool", "generateplantool", "adaptplantool", END)
    one = agent("a", allowlist=named, max_tools_in_prompt=3, selection_strategy=strategy)
    async with serving(lambda body: DONE, templates=[one], tools=[GlanceTool]) as house:
        assert content(await house.say("look at the clock and make a plan", model="a")) == "Done."
        assert END in offered(house)
        assert len(offered(house)) == 3


async def test_an_agent_ends_with_the_tool_that_its_policy_names_for_it(serving: Serving) -> None:
    templates = [
        agent("orders", allowlist=("glancetool", "submittool")),
        agent("mistaken", allowlist=("glancetool", "submittool"), denylist=("submittool",)),
    ]
    tools = [GlanceTool, SubmitTool]

    def choose(body: Any) -> Any:
        names = b"".join(bytes(raw) for raw in body.tools)
        return call("submittool") if b"submittool" in names else DONE if END.encode() in names else say("In words.")

    async with serving(choose, templates=templates, tools=tools) as house:
        assert content(await house.say("hi", model="orders")) == "submitted"
        assert offered(house) == ["glancetool", "submittool"]
        assert content(await house.say("hi", model="mistaken")) == "Done."
        assert offered(house) == ["glancetool", END]


async def test_an_agent_without_any_tool_ends_in_words(serving: Serving) -> None:
    templates = [
        agent("none", allowlist=()),
        agent("still", selection_strategy="static"),
        agent("gone", allowlist=("x.*",)),
    ]
    async with serving(lambda body: say("In words."), templates=()) as house:
        await house.app.catalog.templates.publish(templates, by="a test")
        for template in templates:
            assert content(await house.say("hi", model=template.name)) == "In words."
            assert offered(house) == []


async def test_a_hybrid_thinks_first_although_its_policy_forgets_the_tool_for_it(serving: Serving) -> None:
    thought = {"reasoning_steps": ["a"], "current_situation": "s", "plan_status": "p", "enough_data": True}
    thinking = call("reasoningtool", remaining_steps=[], task_completed=True, **thought)
    one = agent("a", "SGRToolCallingAgent", allowlist=("glancetool",), max_tools_in_prompt=3)
    async with serving([thinking, DONE], templates=[one], tools=[GlanceTool]) as house:
        assert content(await house.say("hi", model="a")) == "Done."
        assert set(offered(house)) == {"glancetool", "reasoningtool", END}
        assert house.model is not None
        assert house.model.requests[0]["tool_choice"]["function"]["name"] == "reasoningtool"


@pytest.mark.parametrize("base", ["ToolCallingAgent", "SGRToolCallingAgent", "SGRAgent"])
async def test_the_demo_plays_its_scene_with_what_it_is_offered(serving: Serving, base: str) -> None:
    templates = [
        Template(name="min", base_agent_class=base),
        agent("few", base, allowlist=("glancetool",)),
        agent("none", base, allowlist=()),
    ]
    async with serving(templates=templates, tools=[GlanceTool]) as house:
        for name in ("min", "few", "none"):
            answer = await house.say("hi", model=name)
            if "which city" in content(answer):
                answer = await house.say("Oslo", model=answer["model"])
            assert "I am the demo model of Longhouse" in content(answer), name
            again = await house.say("and again", model=answer["model"])
            assert "demo model" in content(again), name
