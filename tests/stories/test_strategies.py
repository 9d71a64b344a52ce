"""Three ways to think, on the same engine: what the model is asked, and what becomes of its replies."""

import json
from typing import Any

import pytest

from longhouse.agents.template import Abilities, ExecutionPolicy, LLMPolicy, Template, ToolPolicy
from longhouse.models.scripted import Say, call, calls, say
from server_helpers import Serving, content

THOUGHT: dict[str, Any] = {
    "reasoning_steps": ["one", "two"],
    "current_situation": "here",
    "plan_status": "fine",
    "enough_data": False,
    "remaining_steps": ["look"],
    "task_completed": False,
}
TOOLS = ("clarificationtool", "clocktool", "finalanswertool")


def structured(tool: str, **arguments: Any) -> Say:
    return say(json.dumps({**THOUGHT, "function": {"tool_name_discriminator": tool, **arguments}}))


def template(agent: str, *tools: str, **can: bool) -> Template:
    policy = LLMPolicy(can=Abilities(**can))
    return Template(
        name="thinker", base_agent_class=agent, tool_policy=ToolPolicy(allowlist=(*tools, *TOOLS)), llm_policy=policy
    )


@pytest.mark.parametrize("name", ["sgr_agent", "tool_calling_agent", "sgr_tool_calling_agent"])
async def test_every_built_in_template_plays_its_scene_on_the_demo_model(serving: Serving, name: str) -> None:
    async with serving() as house:
        asked = await house.say("Hello", model=name)
        assert "which city" in content(asked)
        answered = await house.say("Bergen", model=asked["model"])
        assert "You asked: 'Hello'. You answered: 'Bergen'. The clock tool says it is 20" in content(answered)


async def test_a_hybrid_thinks_before_every_action_and_both_share_an_iteration(serving: Serving) -> None:
    script = [
        call("reasoningtool", **THOUGHT), call("clocktool"),
        call("reasoningtool", **THOUGHT), call("finalanswertool", answer="Noon."),
    ]  # fmt: skip
    async with serving(script, templates=[template("SGRToolCallingAgent", "reasoningtool")]) as house:
        answered = await house.say("What time is it?", model="thinker")
        assert content(answered) == "Noon."
        assert house.model is not None
        choices = [request["tool_choice"] for request in house.model.requests]
        forced = {"type": "function", "function": {"name": "reasoningtool"}}
        assert choices == [forced, "required", forced, "required"]
        tools = [[tool["function"]["name"] for tool in request["tools"]] for request in house.model.requests]
        assert tools == [tools[0]] * 4, "the same tools in both phases"
        used = [one["id"] for message in house.model.requests[-1]["messages"] for one in message.get("tool_calls", ())]
        assert used == ["1-reasoning", "1-action-0", "2-reasoning"]
        shown = await house.session(answered["model"])
        assert shown["counters"]["iteration"] == 2
        assert shown["context_snapshot"]["current_step_reasoning"] == THOUGHT


async def test_a_wrong_tool_in_the_reasoning_phase_is_corrected(serving: Serving) -> None:
    script = [
        call("clocktool"), call("reasoningtool", **THOUGHT), say("It is noon."),
    ]  # fmt: skip
    async with serving(script, templates=[template("SGRToolCallingAgent", "reasoningtool")]) as house:
        answered = await house.say("What time is it?", model="thinker")
        assert content(answered) == "It is noon.", "text instead of an action is the answer"
        assert house.model is not None
        refused = house.model.requests[1]["messages"][-1]
        assert refused["tool_call_id"] == "1-reasoning"
        assert refused["content"] == "Error: reason first: call reasoningtool, then act"


async def test_a_structured_agent_chooses_in_one_reply_and_history_shows_real_names(serving: Serving) -> None:
    script = [structured("clocktool", timezone=None), structured("finalanswertool", answer="Noon.", status="completed")]
    async with serving(script, templates=[template("SGRAgent")]) as house:
        answered = await house.say("What time is it?", model="thinker")
        assert content(answered) == "Noon."
        assert house.model is not None
        request = house.model.requests[1]
        assert "tools" not in request
        assert request["response_format"]["json_schema"]["name"] == "NextStepTools"
        assistant, result = request["messages"][-2:]
        assert json.loads(assistant["content"]) == THOUGHT
        function = assistant["tool_calls"][0]["function"]
        assert (function["name"], function["arguments"]) == ("clocktool", "{}")
        assert result["tool_call_id"] == "1-action-0"
        assert "discriminator" not in json.dumps(request["messages"])
        shown = await house.session(answered["model"])
        assert shown["context_snapshot"]["current_step_reasoning"] == THOUGHT
        reasoning = answered["choices"][0]["message"]["reasoning_content"]
        assert json.loads(reasoning.partition("}{")[0] + "}") == THOUGHT


async def test_a_structured_answer_is_streamed_as_it_is_written(serving: Serving) -> None:
    long = structured("finalanswertool", answer="a long answer " * 10, status="completed")
    script = [Say(text=long.text, chunk=20, delay=0.001)]
    async with serving(script, templates=[template("SGRAgent")]) as house:
        stream = await house.client.chat.completions.create(
            model="thinker", messages=[{"role": "user", "content": "?"}], stream=True
        )
        pieces = [chunk.choices[0].delta.content async for chunk in stream if chunk.choices[0].delta.content]
        assert "".join(pieces) == "a long answer " * 10
        assert len(pieces) > 3


async def test_a_reply_that_cannot_be_read_is_asked_for_again_and_then_ends_the_turn(serving: Serving) -> None:
    script = [say("Let me think."), structured("finalanswertool", answer="Yes.", status="completed")]
    async with serving(script, templates=[template("SGRAgent")]) as house:
        answered = await house.say("Well?", model="thinker")
        assert content(answered) == "Yes."
        assert house.model is not None
        told = house.model.requests[1]["messages"][-1]
        assert told["role"] == "user"
        assert told["content"].startswith("Your last reply could not be read: ")
    async with serving([say("Hm.")] * 3, templates=[template("SGRAgent")]) as house:
        failed = await house.say("Well?", model="thinker")
        assert failed["error"]["code"] == "unreadable_reply"


async def test_slips_of_the_pen_are_mended(serving: Serving) -> None:
    fenced = "```json\n" + structured("finalanswertool", answer="Yes.").text[:-1] + ",}\n```"
    async with serving([say(fenced)], templates=[template("SGRAgent")]) as house:
        assert content(await house.say("Well?", model="thinker")) == "Yes."


async def test_where_an_endpoint_can_less_the_next_best_form_is_used(serving: Serving) -> None:
    less = {"forced_tool_choice": False, "parallel_tool_calls": False, "json_schema": False}
    async with serving(
        [structured("finalanswertool", answer="Yes.")], templates=[template("SGRAgent", **less)]
    ) as house:
        assert content(await house.say("Well?", model="thinker")) == "Yes."
        assert house.model is not None
        request = house.model.requests[0]
        assert "response_format" not in request
        assert "It must fit this JSON Schema" in request["messages"][0]["content"]
    script = [say("I should look at the clock."), call("clocktool"), say("Thinking."), say("Noon.")]
    async with serving(script, templates=[template("SGRToolCallingAgent", "reasoningtool", **less)]) as house:
        assert content(await house.say("Well?", model="thinker")) == "Noon."
        assert house.model is not None
        requests = house.model.requests
        assert [request["tool_choice"] for request in requests] == ["auto"] * 4
        assert [len(request["tools"]) for request in requests] == [1, 4, 1, 4]
        assert all("parallel_tool_calls" not in request for request in requests)


@pytest.mark.parametrize("agent", ["SGRAgent", "ToolCallingAgent", "SGRToolCallingAgent"])
async def test_no_strategy_ignores_its_limit_of_steps(serving: Serving, agent: str) -> None:
    def never_done(body: Any) -> Say:
        if isinstance(body.tool_choice, dict):
            return call("reasoningtool", **THOUGHT)
        if bytes(body.response_format):
            return structured("clocktool", timezone="UTC")
        return call("clocktool")

    chosen = Template(
        name="thinker", base_agent_class=agent, tool_policy=ToolPolicy(allowlist=("reasoningtool", *TOOLS)),
        execution_policy=ExecutionPolicy(max_iterations=3),
    )  # fmt: skip
    async with serving(never_done, templates=[chosen]) as house:
        failed = await house.say("Go on for ever", model="thinker")
        assert failed["error"]["code"] == "limit_reached"
        assert house.model is not None
        last = json.dumps(house.model.requests[-1])
        assert "finalanswertool" in last


async def test_parallel_calls_are_all_made_also_beside_a_question(serving: Serving) -> None:
    both = calls(
        call("clocktool"), call("clarificationtool", questions=["Where?"]), call("clocktool", timezone="Asia/Tokyo")
    )
    script = [both, call("finalanswertool", answer="Done.")]
    async with serving(script, templates=[template("ToolCallingAgent")]) as house:
        asked = await house.say("Times?", model="thinker")
        assert content(asked) == "Where?"
        assert content(await house.say("Here", model=asked["model"])) == "Done."
        assert house.model is not None
        roles = [message["role"] for message in house.model.requests[-1]["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "tool", "tool", "user"]


async def test_searches_side_by_side_do_not_pass_their_budget(serving: Serving) -> None:
    searcher = Template(
        name="thinker",
        tool_policy=ToolPolicy(allowlist=("websearchtool", "finalanswertool")),
        execution_policy=ExecutionPolicy(max_searches=1),
    )
    script = [calls(*[call("websearchtool", query=str(n)) for n in range(3)]), call("finalanswertool", answer="Done.")]
    async with serving(script, templates=[searcher]) as house:
        await house.say("Search", model="thinker")
        assert house.model is not None
        told = [message["content"] for message in house.model.requests[-1]["messages"] if message["role"] == "tool"]
        assert told[1:] == ["Error: all 1 searches of this turn are used"] * 2
