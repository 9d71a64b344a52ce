"""The OpenAI Agents SDK with its default transport talks to our agents: functions, streams, questions, approvals."""

from typing import Any, ClassVar

import pytest

from longhouse.agents.template import Template, ToolPolicy
from longhouse.models.scripted import Say, call, say
from longhouse.tools import BaseTool, ToolContext
from server_helpers import AGENT, House, Serving

agents = pytest.importorskip("agents", reason="the OpenAI Agents SDK is not installed")


class SignTool(BaseTool):
    """Sign a letter."""

    needs_approval: ClassVar[bool] = True
    signed: ClassVar[list[str]] = []

    letter: str

    async def __call__(self, context: ToolContext, config: Any = None, **kwargs: Any) -> str:
        self.signed.append(self.letter)
        return f"signed: {self.letter}"


CLERK = Template(name=AGENT, tool_policy=ToolPolicy(allowlist=("signtool", "clocktool", "finalanswertool")))
MCP = {"type": "mcp", "server_label": "longhouse", "server_url": "http://127.0.0.1:8400", "require_approval": "always"}


def agent(house: House, *tools: Any, **more: Any) -> Any:
    agents.set_tracing_disabled(True)
    model = agents.OpenAIResponsesModel(AGENT, house.client)
    return agents.Agent(name="Clerk", instructions="Be brief.", model=model, tools=[*tools], **more)


async def test_it_runs_functions_and_goes_on_with_what_was_said(serving: Serving) -> None:
    asked: list[str] = []

    def get_price(thing: str) -> str:
        """The price of a thing."""
        asked.append(thing)
        return "3 euros"

    script = [
        Say(text="One moment.", calls=call("clocktool").calls),
        call("get_price", thing="tea"),
        say("Tea is 3 euros."),
        say("You asked for tea."),
    ]
    async with serving(script) as house:
        clerk = agent(house, agents.function_tool(get_price))
        first = await agents.Runner.run(clerk, "What is the price of tea?")
        assert first.final_output == "Tea is 3 euros."
        assert asked == ["tea"]
        second = await agents.Runner.run(clerk, [*first.to_input_list(), {"role": "user", "content": "What was it?"}])
        assert second.final_output == "You asked for tea."
        assert await house.db.value("SELECT count(*) FROM sessions") == 1, "all of it is one session"


async def test_its_stream_is_read(serving: Serving) -> None:
    async with serving([Say(text="Let me see.", calls=call("clocktool").calls), say("It is late.")]) as house:
        streamed = agents.Runner.run_streamed(agent(house), "What time is it?")
        deltas = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        assert "".join(deltas) == "Let me see.It is late."
        assert streamed.final_output == "It is late."


async def test_it_goes_on_by_the_last_response(serving: Serving) -> None:
    async with serving([call("clarificationtool", questions=["Which city?"]), say("Rain in Oslo.")]) as house:
        first = await agents.Runner.run(agent(house), "Will it rain?")
        assert first.final_output == "Which city?"
        second = await agents.Runner.run(agent(house), "Oslo", previous_response_id=first.last_response_id)
        assert second.final_output == "Rain in Oslo."
        assert await house.db.value("SELECT count(*) FROM sessions") == 1


async def test_an_approval_is_given_in_it(serving: Serving) -> None:
    SignTool.signed.clear()
    script = [call("signtool", letter="L-1"), say("It is signed.")]
    async with serving(script, templates=[CLERK], tools=[SignTool]) as house:
        decided: list[str] = []

        def approve(request: Any) -> Any:
            decided.append(request.data.name)
            return {"approve": True}

        tool = agents.HostedMCPTool(tool_config=MCP, on_approval_request=approve)
        result = await agents.Runner.run(agent(house, tool), "Sign it.")
        assert result.final_output == "It is signed."
        assert (decided, SignTool.signed) == (["signtool"], ["L-1"])
