"""A session that waits for its client outlives every process; whoever gets the result goes on."""

from pathlib import Path
from typing import Any

from test_kill import each_once, kinds

from client_tools import Program, finish
from longhouse.agents.strategies.protocol import Body
from longhouse.models.scripted import Say, call, calls
from longhouse.models.scripted_server import serve as serve_model
from server_helpers import Serving, content, process


def scene(body: Body) -> Say:
    """Asks the client for two cities and a clock of its own, then tells what the client said."""
    told = [one.content for one in body.messages if hasattr(one, "tool_call_id")]
    if told:
        return call("finalanswertool", answer=f"{told[0]}, {told[1]}")
    return calls(call("get_weather", city="Oslo"), call("get_weather", city="Rome"), call("clocktool"))


async def test_a_kill_of_server_and_postgres_loses_no_call(folder: Path) -> None:
    async with serve_model(scene) as model:
        settings: Any = {"data_dir": str(folder), "llm_base_url": model.url, "llm_api_key": "sk-test-canary"}
        async with process(**settings) as first:
            program = Program(first)
            asked = await program.say("Rain?")
            assert finish(asked) == "tool_calls"
            first.kill()
            await first.ended()
        async with process(**settings) as second:  # nobody sends anything to this one
            shown = await second.session(asked["model"])
            assert (shown["state"], [one["kind"] for one in shown["questions"]]) == (
                "WAITING_FOR_CLARIFICATION",
                ["client", "client"],
            )
            second.kill()
            await second.ended()
        async with process(**settings) as third:
            program.house = third
            told = await program.send(*program.results("wet", "dry"))
            assert (content(told), told["model"]) == ("wet, dry", asked["model"])
            facts = await third.facts(asked["model"])
            assert each_once(facts)
            assert kinds(facts).count("Resumed") == 0, "nobody held it"
            assert len(model.requests) == 2


async def test_another_process_takes_the_result(serving: Serving) -> None:
    async with serving(scene) as one:
        assert one.model is not None
        async with serving(llm_base_url=one.model.url) as other:
            program = Program(one)
            asked = await program.say("Rain?")
            program.house = other
            told = await program.send(*program.results("wet", "dry"))
            assert (content(told), told["model"]) == ("wet, dry", asked["model"])
